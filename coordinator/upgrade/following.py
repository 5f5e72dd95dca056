"""Decides what a shadow does next: a state machine over what the leader has completed, without I/O.

A shadow *stands at* a batch of each query: it has run that one, and none after it. It walks along the leader's
completed checkpoints, its *branch*: it runs the batches up to the cut of the next one, compares state there, and has
*passed* it. All that it needs of a batch is in the checkpoints' records, so it goes on where a checkpoint has been
dropped meanwhile; only to begin anew, and to compare state, a checkpoint must still be there.

A leader goes back only to a completed checkpoint, and what it completes next begins there. So a checkpoint that does
not continue the newest one of the branch continues an older one, and everything between the two is given up; or it
continues none that is known, and the shadow begins anew. Two checkpoints at batches of the same number are told apart
by the last batch of the first one: records begin with the last batch of the checkpoint before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from ...storage.checkpoints.batch_record import BatchRecord, BatchRecords
from ...storage.ids import NO_BATCH, BatchId, CheckpointId

NO_RECORDS = "the next checkpoint of the leader is the first one with records of its batches"
NO_CHECKPOINT = "the leader has no checkpoint"
GONE = "the checkpoints that lead to them were gone"
CAUGHT_UP = ""
"""Nothing is wrong: the leader has not completed anything new."""


@attrs.frozen
class Stage:
    """A completed checkpoint of the leader, as its shadow sees it."""

    id: CheckpointId
    cuts: Mapping[str, BatchId]
    """The last batch of each query."""
    records: Mapping[str, BatchRecords]
    """The batches of each query since an earlier checkpoint; nothing for a query that records none."""

    def cut(self, query: str) -> BatchId:
        """Return the last batch of a query."""
        return self.cuts.get(query, NO_BATCH)

    def record(self, query: str, batch: BatchId) -> BatchRecord | None:
        """Return the record of a batch; None if this checkpoint does not have it."""
        records = self.records.get(query)
        if records is None:
            return None
        return next((record for record in records.batches if record.batch == batch), None)


# --- what to do ---------------------------------------------------------------------------------------------


@attrs.frozen
class Restore:
    """Begin anew from a checkpoint of the leader."""

    stage: Stage
    why: str = GONE
    """Why batches are passed over, if there are any between this checkpoint and where the shadow stood."""


@attrs.frozen
class RunBatch:
    """Run a batch, and compare what it gives."""

    query: str
    record: BatchRecord
    stage: Stage
    """The checkpoint that has it."""


@attrs.frozen
class CompareState:
    """Compare state at the cut of a checkpoint, at which the shadow stands."""

    stage: Stage


@attrs.frozen
class Wait:
    """There is nothing to do until the leader has completed another checkpoint."""

    why: str = CAUGHT_UP


Step = Restore | RunBatch | CompareState | Wait


# --- the state machine --------------------------------------------------------------------------------------


@attrs.define
class Following:
    """Where a shadow stands, and what it knows of its leader."""

    queries: tuple[str, ...]
    """The queries of the shadow's program, in the order in which their batches run."""
    most_behind: int
    """Batches that it may be behind."""
    begin_at: CheckpointId | None = None
    """The checkpoint to restore, or else the first one there is after it; None: the newest."""
    skipped: int = 0
    """Batches that were passed over, because no checkpoint was left that leads to them, or because it was too far
    behind, or because they could not be run."""
    stood: dict[str, BatchId] = attrs.field(factory=dict)
    """The newest batch of each query that has been run or passed over."""
    _branch: list[Stage] = attrs.field(factory=list, init=False)
    """Checkpoints that each continue the one before, oldest first."""
    _there: set[CheckpointId] = attrs.field(factory=set, init=False)
    """Those that the leader still has."""
    _unusable: set[CheckpointId] = attrs.field(factory=set, init=False)
    _at: dict[str, BatchId] | None = attrs.field(default=None, init=False)
    """The batch of each query at which the shadow stands; None: nowhere."""
    _passed: int = attrs.field(default=0, init=False)
    """Which checkpoint of the branch it has passed last."""
    _has_compared: bool = attrs.field(default=False, init=False)
    """Whether it has passed any since it began anew."""

    # --- what the leader has --------------------------------------------------------------------------------

    def see(self, stages: Sequence[Stage]) -> None:
        """Take in the leader's completed checkpoints that are there now, oldest first."""
        self._there = {stage.id for stage in stages}
        for stage in stages:
            if not self._branch or stage.id > self._branch[-1].id:
                self._take(stage)
        first = self._passed if self._at is not None else len(self._branch)
        kept = [n for n, stage in enumerate(self._branch) if n >= first or stage.id in self._there]
        self._passed = kept.index(self._passed) if self._at is not None else 0
        self._branch = [self._branch[n] for n in kept]

    def lost(self, stage: Stage) -> None:
        """Learn that a checkpoint cannot be used: it has just been dropped, or it is damaged."""
        self._unusable.add(stage.id)

    def _take(self, stage: Stage) -> None:
        for number in reversed(range(len(self._branch))):
            if self._continues(number, stage):
                break
        else:
            self._branch, self._at = [stage], None
            if self.begin_at is not None and self.begin_at < stage.id:
                self.begin_at = None
            return
        origin, given_up = self._branch[number], self._branch[number + 1 :]
        self._branch[number + 1 :] = [stage]
        if self._at is not None:
            is_beyond = any(batch > origin.cut(query) for query, batch in self._at.items())
            if self._passed > number or is_beyond:
                self._at, self.begin_at = None, origin.id
        elif self.begin_at in {one.id for one in given_up}:
            self.begin_at = origin.id
        if given_up:
            self.stood = {query: min(batch, origin.cut(query)) for query, batch in self.stood.items()}

    def _continues(self, number: int, stage: Stage) -> bool:
        """Whether a checkpoint has the batches behind one of the branch, and no others."""
        before = self._branch[number]
        for query in self.queries:
            last, cut = before.cut(query), stage.cut(query)
            if cut < last or (query in before.cuts and query not in stage.cuts):
                return False
            records = stage.records.get(query)
            if records is None:
                if cut > last:
                    return False
                continue
            if any(stage.record(query, batch) is None for batch in map(BatchId, range(last + 1, cut + 1))):
                return False
            if records.after < last and not _same(self._record(query, last), stage.record(query, last)):
                return False
        return True

    def _record(self, query: str, batch: BatchId) -> BatchRecord | None:
        found = (stage.record(query, batch) for stage in self._branch)
        return next((record for record in found if record is not None), None)

    # --- what to do -----------------------------------------------------------------------------------------

    @property
    def behind(self) -> int:
        """How many batches the leader has completed that were neither run nor passed over."""
        if not self._branch:
            return 0
        newest = self._branch[-1]
        return sum(
            max(0, newest.cut(query) - self.stood.get(query, newest.cut(query))) for query in self.queries
        )

    @property
    def ahead(self) -> list[Stage]:
        """The checkpoints of the leader at which it can still compare state, oldest first."""
        first = 0 if self._at is None else self._passed + 1
        return [stage for stage in self._branch[first:] if self._is_usable(stage)]

    @property
    def passed(self) -> CheckpointId | None:
        """The checkpoint of the leader that was passed last, from which the shadow could begin again."""
        return None if self._at is None else self._branch[self._passed].id

    def next(self) -> Step:
        """Return what to do next. It may be asked again at any time."""
        if not self._branch:
            return Wait(NO_CHECKPOINT)
        if self._at is None:
            return self._beginning()
        while self._passed + 1 < len(self._branch):
            if (ahead := self._too_far_ahead()) is not None:
                return Restore(
                    ahead, f"it was {self.behind:,} batches behind, and may be {self.most_behind:,}"
                )
            stage = self._branch[self._passed + 1]
            for query in self.queries:
                if self._at[query] < stage.cut(query):
                    record = self._record(query, BatchId(self._at[query] + 1))
                    assert record is not None, (
                        "each checkpoint of a branch has the batches behind the one before"
                    )
                    return RunBatch(query, record, stage)
            if self._is_usable(stage):
                return CompareState(stage)
            self._pass()
        return Wait()

    def _beginning(self) -> Step:
        newest = self._branch[-1]
        if any(newest.cut(query) > NO_BATCH and query not in newest.records for query in self.queries):
            return Wait(NO_RECORDS)
        usable = [stage for stage in self._branch if self._is_usable(stage)]
        if not usable:
            return Wait(NO_CHECKPOINT)
        if self.begin_at is not None:
            later = [stage for stage in usable if stage.id >= self.begin_at]
            return Restore(later[0]) if later else Wait(NO_CHECKPOINT)
        return Restore(usable[-1])

    def _too_far_ahead(self) -> Stage | None:
        """Return the checkpoint with which to begin anew, because the leader is too far ahead."""
        # Otherwise a leader that is fast enough would never be compared.
        if self.behind <= self.most_behind or not self._has_compared:
            return None
        later = [stage for stage in self._branch[self._passed + 2 :] if self._is_usable(stage)]
        return later[-1] if later else None

    def _is_usable(self, stage: Stage) -> bool:
        return stage.id in self._there and stage.id not in self._unusable

    def _pass(self) -> None:
        self._passed += 1
        self._has_compared = True

    # --- what was done --------------------------------------------------------------------------------------

    def restored(self, step: Restore) -> None:
        """Learn that the shadow has begun anew."""
        numbers = [number for number, stage in enumerate(self._branch) if stage.id == step.stage.id]
        if not numbers:
            return
        cuts = {query: step.stage.cut(query) for query in self.queries}
        self.skipped += sum(max(0, cut - self.stood.get(query, cut)) for query, cut in cuts.items())
        self._at, self.stood, self._passed = dict(cuts), cuts, numbers[0]
        self.begin_at, self._has_compared = None, False

    def ran(self, step: RunBatch) -> bool:
        """Learn that a batch has been run. Return whether that counts: the leader may have given it up meanwhile."""
        if not self._counts(step):
            return False
        assert self._at is not None, "it stands before that batch"
        self._at[step.query] = self.stood[step.query] = step.record.batch
        return True

    def failed(self, step: RunBatch) -> bool:
        """Learn that a batch cannot be run: the shadow goes on behind it. Return whether that counts, as above."""
        if not self._counts(step):
            return False
        self._at, self.begin_at = None, step.stage.id
        return True

    def compared(self, step: CompareState) -> bool:
        """Learn that state has been compared. Return whether that counts, as above."""
        following = self._branch[self._passed + 1 : self._passed + 2]
        if self._at is None or [stage.id for stage in following] != [step.stage.id]:
            return False
        self._pass()
        return True

    def interrupted(self) -> None:
        """Learn that the shadow stands nowhere any more, for a reason that may pass."""
        if self._at is not None:
            self._at, self.begin_at = None, self._branch[self._passed].id

    def _counts(self, step: RunBatch) -> bool:
        if self._at is None:
            return False
        if _same(self._record(step.query, step.record.batch), step.record):
            return True
        # The leader has given it up since, and the shadow stands behind it.
        self.interrupted()
        return False


def _same(known: BatchRecord | None, record: BatchRecord | None) -> bool:
    """Whether two records are of the same batch: an entry has the time when it was planned."""
    return known is not None and record is not None and known.offsets == record.offsets


def stood_at(stood: Mapping[str, int], queries: Collection[str]) -> dict[str, BatchId]:
    """Return where a shadow stood in its life before, of the queries that it still has."""
    return {query: BatchId(batch) for query, batch in stood.items() if query in queries}
