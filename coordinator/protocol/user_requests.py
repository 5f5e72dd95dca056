"""What a user asks of a running pipeline: a value with one lifecycle. It is decided and ended by a state machine alone.

Whoever has asked waits for the outcome, and for nothing else: no lock is held meanwhile, and whatever happens to the
pipeline ends the request. Checkpoints and savepoints are asked for by ``requests``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from .errors import PhaseError


class RequestPhase(enum.StrEnum):
    """How far a user's request is. ``NEXT`` says which phases may follow each."""

    ASKED = "asked"
    """Nobody has decided yet."""
    ADMITTED = "admitted"
    """It waits, for a batch to end or for the pipeline to recover. The pipeline is as it was."""
    UNDER_WAY = "under way"
    """It is being carried out."""
    DONE = "done"
    """What was asked for holds."""
    REFUSED = "refused"
    """It cannot be carried out. The pipeline is as it was."""
    FAILED = "failed"
    """The time is up, or the pipeline has failed for good."""
    CANCELLED = "cancelled"
    """The pipeline stops, or another driver has taken it over."""


_ENDS: Final = frozenset({RequestPhase.DONE, RequestPhase.FAILED, RequestPhase.CANCELLED})
NEXT: Final[Mapping[RequestPhase, frozenset[RequestPhase]]] = {
    RequestPhase.ASKED: frozenset({RequestPhase.ADMITTED, RequestPhase.REFUSED}),
    RequestPhase.ADMITTED: _ENDS | {RequestPhase.UNDER_WAY},
    RequestPhase.UNDER_WAY: _ENDS,
    RequestPhase.DONE: frozenset(),
    RequestPhase.REFUSED: frozenset(),
    RequestPhase.FAILED: frozenset(),
    RequestPhase.CANCELLED: frozenset(),
}


@attrs.define
class UserRequest:
    """A request, and how far it is. Only the state machine that it was given to changes it."""

    what: str
    """What is asked for, for people."""
    deadline: float
    """When it ends at the latest, in seconds since 1970, unless it is being carried out already."""
    phase: RequestPhase = attrs.field(default=RequestPhase.ASKED, init=False)
    error: BaseException | None = attrs.field(default=None, init=False, eq=str)
    """Why it is not done; None while it is under way, and if it is done."""

    @property
    def is_over(self) -> bool:
        """Whether it has its outcome."""
        return not NEXT[self.phase]

    def enter(self, phase: RequestPhase, error: BaseException | None = None) -> None:
        """Go to the next phase.

        Args:
            error: why the request is refused, has failed or is cancelled; None for all other phases.

        Raises:
            PhaseError: the phase cannot follow; nothing has changed.
        """
        has_failed = phase in (RequestPhase.REFUSED, RequestPhase.FAILED, RequestPhase.CANCELLED)
        if phase not in NEXT[self.phase] or has_failed is (error is None):
            raise PhaseError(f"the request to {self.what}", self.phase, phase)
        self.phase, self.error = phase, error

    def check(self) -> None:
        """Raise the error with which it has ended, if it has ended with one."""
        if self.error is not None:
            raise self.error
