"""What a shadow has found so far, as a value: how much was compared, and since when the two versions differ."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs

from ..storage.ids import BatchId, CheckpointId

KEPT_FINDINGS: Final = 20
"""The first so many are kept. What differs later mostly follows from them."""


class Kind(enum.StrEnum):
    """What was compared."""

    OUTPUT = "output"
    STATE = "state"
    FAILURE = "failure"
    """The batch failed in the shadow; the leader has committed it."""


@attrs.frozen(kw_only=True)
class Finding:
    """Something that differs between the leader and its shadow."""

    kind: Kind
    query: str
    batch: BatchId
    """The leader's batch after which it was seen."""
    checkpoint: CheckpointId
    """The leader's checkpoint that has this batch."""
    what: str
    """Of what: a sink or an operator's state."""
    says: str
    """How it differs, in a sentence."""
    example: str = ""
    """One row or key, as both sides have it; empty: there is none to show."""
    kept: str = ""
    """Key in the pipeline's storage of the Parquet file with the first of what differs; empty: there is none."""


class Phase(enum.StrEnum):
    """What a shadow does."""

    STARTS = "starts"
    FOLLOWS = "follows"
    WAITS = "waits"
    """For something that somebody else has to do; ``because`` says for what."""
    ENDED = "ended"
    FAILED = "failed"


@attrs.frozen(kw_only=True)
class ShadowVerdict:
    """What a shadow has found in all of its lives."""

    shadow: str
    pipeline: str
    phase: Phase = Phase.STARTS
    because: str = ""
    """Why it is in this phase, if that needs a reason."""
    batches: int = 0
    """Batches that were run and compared."""
    equal: int = 0
    """How many in a row were equal, up to the newest."""
    unrecorded: int = 0
    """Batches of those of whose output the leader has no digest. Their state alone was compared."""
    skipped: int = 0
    """Batches that were passed over."""
    skipped_because: str = ""
    """Why the latest of them were."""
    states: int = 0
    """Checkpoints at which state of operators was compared."""
    state_is_equal: bool = True
    """Whether it was the same at the newest of them."""
    differing: int = 0
    """Comparisons of a batch or of state that have found a difference."""
    findings: tuple[Finding, ...] = ()
    """The first ones."""
    behind: int = 0
    """Batches of the leader that were neither run nor passed over."""
    passed: CheckpointId | None = None
    """The newest checkpoint of the leader at whose cut the shadow has been."""
    stood: dict[str, BatchId] = attrs.field(factory=dict)
    """The newest batch of each query that was run or passed over."""
    ignored: tuple[str, ...] = ()
    seconds_per_batch: float | None = None
    """What a batch takes the shadow, on average of late; None: not known yet."""
    leader_seconds_per_batch: float | None = None
    """The time from one batch of the leader to the next, on average of late."""
    lives: tuple[str, ...] = ()
    """The folders of its lives that are not known to be deleted."""
    updated_at: float = 0.0
    """Seconds since 1970, by the shadow's clock."""

    @property
    def is_equal(self) -> bool:
        """Whether nothing has differed so far."""
        return self.differing == 0

    @property
    def says(self) -> str:
        """Whether all was equal, or since which batch not."""
        first = self.first
        if first is not None:
            return f"differs since batch {first.batch} of query {first.query!r}: {first.what}: {first.says}"
        return "equal so far" if self.has_compared else "nothing compared yet"

    @property
    def pace(self) -> str:
        """How fast the shadow is beside its leader, and what it needs if that is too slow; empty: not known yet."""
        mine, theirs = self.seconds_per_batch, self.leader_seconds_per_batch
        if not mine or not theirs:
            return ""
        says = f"it runs {1 / mine:.2g} batches a second, and its leader {1 / theirs:.2g}"
        return (
            f"{says}: it needs a faster machine, or a leader with larger batches" if mine > theirs else says
        )

    @property
    def has_compared(self) -> bool:
        """Whether there was anything to compare: output with a digest, or state of operators."""
        return self.states > 0 or self.batches > self.unrecorded

    @property
    def first(self) -> Finding | None:
        """What differed first."""
        return self.findings[0] if self.findings else None

    def ran(self, found: Sequence[Finding], seconds: float, *, recorded: bool) -> ShadowVerdict:
        """Return the verdict after one more batch.

        Args:
            found: what differs in its output.
            seconds: what it took.
            recorded: whether the leader has a digest of its output.
        """
        return attrs.evolve(
            self._with(found),
            batches=self.batches + 1,
            equal=0 if found else self.equal + 1,
            unrecorded=self.unrecorded + (not recorded),
            seconds_per_batch=_of_late(self.seconds_per_batch, seconds),
        )

    def failed(self, found: Finding) -> ShadowVerdict:
        """Return the verdict after a batch has failed that did not fail in the leader."""
        return attrs.evolve(self._with([found]), equal=0)

    def compared(self, found: Sequence[Finding]) -> ShadowVerdict:
        """Return the verdict after one more comparison of state."""
        return attrs.evolve(self._with(found), states=self.states + 1, state_is_equal=not found)

    def _with(self, found: Sequence[Finding]) -> ShadowVerdict:
        room = max(0, KEPT_FINDINGS - len(self.findings))
        return attrs.evolve(
            self,
            differing=self.differing + bool(found),
            findings=(*self.findings, *found[:room]),
        )


def _of_late(average: float | None, newest: float) -> float:
    return newest if average is None else average + (newest - average) / 16
