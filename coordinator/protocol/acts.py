"""What users ask that a thread of its own carries out: replicas, a switch, a stop. Who may begin, and how each ends.

The caller waits for the end of the request, and for nothing else. What carries it out may still be at it then: a
stop begins once nothing else is carried out. Drains and rescales are requests, too; see ``emptying`` and ``rescaling``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Final

import attrs

from ...storage.errors import FencedError
from .errors import NotCarriedOutError
from .life import Life
from .user_requests import RequestPhase, UserRequest


class ActKind(enum.StrEnum):
    """What is asked for."""

    REPLICATE = "replicate"
    """A copy of a state, in another system."""
    DROP = "drop"
    """The end of such a copy, for good."""
    SWITCH = "switch"
    """That a shadow takes the pipeline over."""
    STOP = "stop"
    """The end of the pipeline."""


class Ending(enum.StrEnum):
    """What may end a request before it is carried out."""

    STOP = "a stop is asked for"
    FAILURE = "the pipeline fails for good"
    FENCE = "another driver takes over"


ENDS: Final[Mapping[ActKind, Mapping[Ending, RequestPhase | None]]] = {
    # A replica is a pipeline of its own: it goes on from the checkpoints that there are.
    ActKind.REPLICATE: {Ending.STOP: RequestPhase.CANCELLED, Ending.FENCE: RequestPhase.CANCELLED},
    ActKind.DROP: {Ending.FENCE: RequestPhase.CANCELLED},
    # The fence may be what was asked for: the shadow says so.
    ActKind.SWITCH: {
        Ending.STOP: RequestPhase.CANCELLED,
        Ending.FAILURE: RequestPhase.FAILED,
        Ending.FENCE: None,
    },
    # Whatever has happened, everything is to end. Another stop comes after it.
    ActKind.STOP: {},
}
"""What becomes of a request in such an event; None: it goes on, as in all others, and when a host or a query is lost. A
request that comes after such an event is refused."""


@attrs.define
class Act:
    """A request that a thread carries out."""

    number: int
    kind: ActKind
    name: str
    """Of the replica that it is about; of the pipeline if it is about none."""
    request: UserRequest
    is_carried_out: bool = False
    """Whether a thread is at it, perhaps for nobody."""

    @property
    def subject(self) -> tuple[ActKind, str]:
        """What no other act may be about at the same time."""
        return ActKind.REPLICATE if self.kind is ActKind.DROP else self.kind, self.name


@attrs.define
class Acts:
    """The acts of a pipeline."""

    life: Life = attrs.field(factory=Life, init=False)
    """The pipeline's."""
    _open: list[Act] = attrs.field(factory=list, init=False)
    """Those that are not over, or are still carried out, in the order in which they were asked for."""
    _asked: int = attrs.field(default=0, init=False)
    _has_stopped: bool = attrs.field(default=False, init=False)

    @property
    def is_stopping(self) -> bool:
        """Whether a stop is carried out. One that waits for other acts keeps nobody waiting."""
        return any(act.kind is ActKind.STOP and act.is_carried_out for act in self._open)

    def ask(self, kind: ActKind, name: str) -> Act:
        """Return what was asked for, which is refused if it cannot be carried out now."""
        self._asked += 1
        act = Act(self._asked, kind, name, UserRequest(f"{kind.value} {name!r}", math.inf))
        if (error := self._refusal(act)) is not None:
            act.request.enter(RequestPhase.REFUSED, error)
            return act
        act.request.enter(RequestPhase.ADMITTED)
        self._open.append(act)
        if kind is ActKind.STOP:
            self._end(Ending.STOP)
        self._begin_what_may()
        return act

    def ended(self, number: int, error: BaseException | None) -> None:
        """Take in that an act is carried out no longer: it is done, or this error has ended it."""
        (act,) = (one for one in self._open if one.number == number)
        self._open.remove(act)
        if not act.request.is_over:
            if error is None:
                act.request.enter(RequestPhase.DONE)
            else:
                is_fenced = isinstance(error, FencedError)
                act.request.enter(RequestPhase.CANCELLED if is_fenced else RequestPhase.FAILED, error)
        self._has_stopped |= act.kind is ActKind.STOP and error is None
        self._begin_what_may()

    def lives(self, life: Life) -> None:
        """End what the pipeline's life ends."""
        self.life = life
        for ending in _endings_in(life):
            self._end(ending)

    def _refusal(self, act: Act) -> Exception | None:
        is_stopped = self._has_stopped or any(one.kind is ActKind.STOP for one in self._open)
        endings = [*_endings_in(self.life), *([Ending.STOP] if is_stopped else [])]
        for ending in endings:
            if ending in ENDS[act.kind]:
                return self._error(act, ending)
        if act.kind is not ActKind.STOP and any(one.subject == act.subject for one in self._open):
            return _not_carried_out(act, "one such request at a time", "another one, which is not over")
        return None

    def _end(self, ending: Ending) -> None:
        for act in self._open:
            if (phase := ENDS[act.kind].get(ending)) is not None and not act.request.is_over:
                act.request.enter(phase, self._error(act, ending))
        self._open = [one for one in self._open if one.is_carried_out or not one.request.is_over]

    def _error(self, act: Act, ending: Ending) -> Exception:
        if ending is Ending.STOP:
            return _not_carried_out(act, "a pipeline that runs", "one that its user stops")
        error = self.life.error
        assert error is not None, "a pipeline fails by an error"
        if isinstance(error, FencedError):
            return error
        return _not_carried_out(act, "a pipeline that runs", f"one that has failed for good: {error}")

    def _begin_what_may(self) -> None:
        for act in self._open:
            others = [one for one in self._open if one is not act and one.is_carried_out]
            if act.request.phase is RequestPhase.ADMITTED and (act.kind is not ActKind.STOP or not others):
                act.request.enter(RequestPhase.UNDER_WAY)
                act.is_carried_out = True


def _endings_in(life: Life) -> list[Ending]:
    """Return what has happened to a pipeline of this life."""
    if life.error is None:
        return []
    return [Ending.FENCE if isinstance(life.error, FencedError) else Ending.FAILURE]


def _not_carried_out(act: Act, expected: str, found: str) -> NotCarriedOutError:
    return NotCarriedOutError(
        f"the request to {act.request.what} is not carried out",
        expected,
        found,
        "ask again once that is over",
    )
