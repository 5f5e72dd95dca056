"""Follows a leader: runs its batches, one after the other, and compares. All that it decides is in ``following``.

It reads the leader's storage, and asks the leader nothing. What goes wrong here stays here: a storage that is away is
waited for, a batch that fails is a finding, and a program that cannot go on ends with its verdict written.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from ...state.reader.differences import compare
from ...storage import runtime
from ...storage.checkpoints.batch_record import BatchRecord
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.restore import read_file
from ...storage.errors import ChandyError, DamagedError, ObjectMissingError, StorageError
from ...storage.ids import FIRST_CHECKPOINT, CheckpointId
from ...storage.logs import carried, logger
from ..errors import (
    CheckpointError,
    GivenBatchInterruptedError,
    PipelineFailedError,
    SessionEndedError,
    ShadowReplacedError,
)
from ..sources.errors import SourceLostError
from ..verdict import Finding, Kind, Phase, ShadowVerdict
from ..verdicts import ShadowStore
from .following import CAUGHT_UP, CompareState, Following, Restore, RunBatch, Stage, Wait, stood_at
from .ignoring import Ignored
from .kept import Kept, differing_states, kept_rows, kept_state, says_of
from .leader import FollowedPipeline, staged_files
from .outputs import LEADER_AND_SHADOW, differing_outputs
from .own_pins import OwnPins
from .shadow import Shadow

if TYPE_CHECKING:
    import pyarrow as pa

    from .rerun import BatchOutcome

log = logger(__name__)

_LOOK_SECONDS: Final = 1.0
"""How often the leader's storage is asked for new checkpoints."""
_REST_SECONDS: Final = 0.2
_HURRY_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 5.0
"""How long to wait for a storage that is away."""
_TELL_SECONDS: Final = 1.0
"""The verdict is written no more often than that, unless something differs or the phase changes."""
_STILL_SECONDS: Final = 15.0
"""How often it is written while nothing changes."""
_NO_FINDING: Final = (
    SourceLostError,
    GivenBatchInterruptedError,
    PipelineFailedError,
    SessionEndedError,
    StorageError,
)
"""Why a batch cannot be run that says nothing about the program."""


class Engine(Protocol):
    """Runs given batches: a ``Rerun``, whose docstrings say it all."""

    start: Located

    def await_queries(self, names: Sequence[str]) -> None:
        """Wait until the program has started these queries."""
        ...

    def restore(self, located: Located) -> None:
        """Have all queries go on behind another checkpoint."""
        ...

    def run(self, query: str, record: BatchRecord) -> BatchOutcome:
        """Run a batch, the next one of a query."""
        ...

    def checkpoint(self) -> Located:
        """Take a checkpoint behind the batches that have run."""
        ...

    def rest(self, seconds: float) -> bool:
        """Wait, and return whether the program stops its coordinator."""
        ...


@attrs.frozen
class Passed:
    """A shadow at the cut of one of its leader's checkpoints."""

    checkpoint: CheckpointId
    """The leader's."""
    own: Located
    """Its own checkpoint at the same cut."""
    verdict: ShadowVerdict


@attrs.define(eq=False)
class Follower:
    """One life of a shadow. ``conduct`` is what its thread does."""

    shadow: Shadow
    leader: FollowedPipeline
    keeps: ShadowStore
    rows: Callable[[str], Iterator[pa.Table]]
    """Returns the rows in a file that the engine has kept, by its key, and drops them."""
    verdict: ShadowVerdict
    on_difference: Callable[[Finding], object] = lambda _: None
    """Called with what differs first in each comparison."""
    on_passed: Callable[[Passed], bool] = lambda _: False
    """Called at the cut of each checkpoint at which it has taken one of its own, and with the newest of them again and
    again while there is nothing to do; whether that is the end of following."""
    is_hurried: Callable[[], bool] = lambda: False
    """Whether the leader is about to wait: then state is not compared where the output of all batches was."""
    _lock: runtime.Lock = attrs.field(factory=runtime.lock, init=False)
    """Guards what is known of the leader: it is looked at while a batch runs, or its records would be gone."""
    _telling: runtime.Lock = attrs.field(factory=runtime.lock, init=False)
    """Guards the verdict, and orders what is written of it: it is told while a batch runs, too."""
    _over: runtime.Flag = attrs.field(factory=runtime.flag, init=False)
    _running: tuple[RunBatch, float] | None = attrs.field(default=None, init=False)
    """The batch that runs, and when it began."""
    _following: Following = attrs.field(init=False)
    _stands_at: CheckpointId | None = attrs.field(default=None, init=False)
    """The leader's checkpoint whose state the engine has as it was restored; None: batches have run since."""
    _restored: CheckpointId = attrs.field(default=FIRST_CHECKPOINT, init=False)
    """The leader's checkpoint that the engine was restored from."""
    _unread: set[str] = attrs.field(factory=set, init=False)
    """The queries that have run nothing since: hosts may read it yet."""
    _held: CheckpointId | None = attrs.field(default=None, init=False)
    _compared_at: float = attrs.field(default=float("-inf"), init=False)
    _has_outputs: bool = attrs.field(default=False, init=False)
    """Whether the output was compared of each batch since state was."""
    _newest: Passed | None = attrs.field(default=None, init=False)
    """Where it has taken its last checkpoint; None: the engine has gone elsewhere since."""
    _told: ShadowVerdict | None = attrs.field(default=None, init=False)
    """What was written last, without times."""
    _told_at: float = attrs.field(default=float("-inf"), init=False)
    _passes_over: str = attrs.field(default="", init=False)
    """Why batches are about to be passed over."""
    _trouble: str = attrs.field(default="", init=False)
    """Why the leader's storage could not be read; empty if it could."""

    @classmethod
    def of(
        cls,
        shadow: Shadow,
        pipeline: str,
        leader: FollowedPipeline,
        rows: Callable[[str], Iterator[pa.Table]],
        life: str,
        *,
        is_new: bool = False,
    ) -> Follower:
        """Return a shadow that goes on with what it has found in its lives before.

        Args:
            shadow, leader, rows: as the fields say.
            pipeline: the leader's.
            life: the folder of this life.
            is_new: whether it has found nothing yet: another leader is compared, or from elsewhere on.
        """
        store = leader.catalog.store
        nothing = ShadowVerdict(shadow=shadow.name, pipeline=pipeline)
        known = ShadowStore(store, shadow.name).read() or nothing
        keeps = ShadowStore(store, shadow.name, life, known.lives)
        verdict = attrs.evolve(
            nothing if is_new else known,
            phase=Phase.STARTS,
            because="",
            ignored=shadow.ignore,
            lives=(*known.lives, life),
        )
        return cls(shadow, leader, keeps, rows, verdict)

    @property
    def pins(self) -> OwnPins:
        """The leader's checkpoints that it keeps."""
        return OwnPins(self.leader.catalog.store, self.shadow.reader)

    def forget(self, lives: Sequence[str]) -> None:
        """Take in that the folders of lives are somebody else's, or gone."""
        with self._telling:
            left = tuple(life for life in self.verdict.lives if life not in lives)
            self.verdict = attrs.evolve(self.verdict, lives=left)
            self.keeps.write(self.verdict)

    def conduct(self, engine: Engine) -> None:
        """Follow until the program ends, or it can not go on."""
        queries = tuple(sorted(query.name for query in engine.start.manifest.queries))
        # Where the engine stands already: it need not go there again.
        begin_at = engine.start.manifest.id
        self._following = Following(
            queries,
            self.shadow.most_behind,
            begin_at,
            self.verdict.skipped,
            stood_at(self.verdict.stood, queries),
        )
        self._stands_at = self._restored = engine.start.manifest.id
        self._unread = set(queries)
        looking = runtime.thread(target=carried(self._look_on), name="chandy-shadow-looks")
        try:
            self._tell(Phase.STARTS)
            engine.await_queries(queries)
            self.look()
            looking.start()
            self._follow(engine)
            self._tell(Phase.ENDED)
        except ShadowReplacedError:
            # What is told from now on is told by the other one.
            raise
        except BaseException as error:
            if engine.rest(0):
                # Whatever ran was cut off.
                self._tell(Phase.ENDED)
                return
            self._tell(Phase.FAILED, f"{type(error).__name__}: {error}")
            raise
        finally:
            self._over.set()

    # --- the leader -----------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self.look()
            try:
                self._tell_meanwhile()
            except ShadowReplacedError:
                # What is told next by the thread that follows ends this shadow.
                return

    def look(self) -> None:
        """Look for what the leader has completed."""
        try:
            stages = self.leader.stages()
        except (StorageError, OSError) as error:
            self._trouble = str(error)
            return
        self._trouble = ""
        with self._lock:
            self._following.see(stages)

    # --- step by step ---------------------------------------------------------------------------------------

    def _follow(self, engine: Engine) -> None:
        while not engine.rest(0):
            with self._lock:
                step = self._following.next()
            if isinstance(step, Wait):
                is_told = not step.why and not self._trouble
                self._tell(Phase.FOLLOWS if is_told else Phase.WAITS, step.why or self._trouble or CAUGHT_UP)
                if self._newest is not None and self.on_passed(self._newest):
                    return
                if engine.rest(_HURRY_SECONDS if self.is_hurried() else _REST_SECONDS):
                    return
                continue
            try:
                if self._do(step, engine):
                    return
            except (StorageError, OSError, CheckpointError, GivenBatchInterruptedError) as error:
                # What the shadow runs on is away, and may come back. What ran since the last checkpoint runs again.
                with self._lock:
                    self._following.interrupted()
                self._stands_at = None
                self._tell(Phase.WAITS, str(error).splitlines()[0])
                if engine.rest(_AGAIN_SECONDS):
                    return

    def _do(self, step: Restore | RunBatch | CompareState, engine: Engine) -> bool:
        """Carry a step out. Return whether that was the last one."""
        if isinstance(step, Restore):
            self._restore(step, engine)
        elif isinstance(step, RunBatch):
            self._run(step, engine)
        else:
            return self._compare(step, engine)
        return False

    def _restore(self, step: Restore, engine: Engine) -> None:
        if not self._hold(step.stage):
            return
        if self._stands_at != step.stage.id:
            self._stands_at = self._newest = None
            self._has_outputs = False
            try:
                engine.restore(self.leader.located(step.stage.id))
            except (ObjectMissingError, DamagedError) as error:
                self._lost(step.stage, error)
                return
            self._stands_at = self._restored = step.stage.id
            self._unread = set(self._following.queries)
        because = self._passes_over or "; ".join(filter(None, (step.why, self.verdict.pace)))

        def learn() -> bool:
            before = self._following.skipped
            self._following.restored(step)
            return self._following.skipped > before

        self._learn(learn, lambda verdict: attrs.evolve(verdict, skipped_because=because))
        self._passes_over = ""
        self.pins.release_before(step.stage.id)
        self._tell(Phase.FOLLOWS)

    def _run(self, step: RunBatch, engine: Engine) -> None:
        self._hold_ahead()
        began = runtime.monotonic()
        self._stands_at = self._newest = None
        self._running = step, began
        try:
            outcome = self._outcome(step, engine)
        except _NO_FINDING:
            raise
        except ChandyError as error:
            if engine.rest(0):
                # The program stops, and has cut it off.
                return
            self._passes_over = f"batch {step.record.batch} of query {step.query!r} failed"
            finding = self._finding(Kind.FAILURE, step, "the batch", f"it fails in the shadow: {error}")
            if self._learn(lambda: self._following.failed(step), lambda verdict: verdict.failed(finding)):
                self._took([finding])
            return
        finally:
            self._running = None
        self._unread.discard(step.query)
        found = self._differences(step, outcome)
        took, recorded = runtime.monotonic() - began, bool(step.record.outputs)
        if self._learn(
            lambda: self._following.ran(step), lambda verdict: verdict.ran(found, took, recorded=recorded)
        ):
            self._has_outputs &= recorded
            self._took(found)

    @staticmethod
    def _outcome(step: RunBatch, engine: Engine) -> BatchOutcome:
        """Run a batch. What fails once may have other reasons than the program."""
        try:
            return engine.run(step.query, step.record)
        except _NO_FINDING:
            raise
        except ChandyError as error:
            if engine.rest(0):
                raise
            log.warning(
                "a batch has failed and runs again",
                query=step.query,
                batch=step.record.batch,
                error=str(error),
            )
            return engine.run(step.query, step.record)

    def _compare(self, step: CompareState, engine: Engine) -> bool:
        if not self._hold(step.stage):
            return False
        is_hurried = self.is_hurried()
        is_due = runtime.monotonic() - self._compared_at >= self.shadow.compare_state_seconds
        is_due = not self._has_outputs if is_hurried else is_due
        own = engine.checkpoint() if is_due or is_hurried else None
        try:
            found = list(self._differing_state(step.stage, own)) if own and is_due else []
        except (ObjectMissingError, DamagedError) as error:
            self._lost(step.stage, error)
            return False
        has_compared = bool(own and is_due and own.manifest.operators)
        if not self._learn(
            lambda: self._following.compared(step),
            lambda verdict: verdict.compared(found) if has_compared else verdict,
        ):
            return False
        self.pins.release_before(step.stage.id, but=self._restored if self._unread else None)
        if own is None:
            return False
        if is_due:
            self._compared_at, self._has_outputs = runtime.monotonic(), True
        if has_compared:
            self._took(found)
        self._newest = Passed(step.stage.id, own, self.verdict)
        return self.on_passed(self._newest)

    def _hold_ahead(self) -> None:
        """Keep the next checkpoint at which state can be compared. Those before it may be gone when it comes there."""
        with self._lock:
            ahead = self._following.ahead
        if all(stage.id != self._held for stage in ahead):
            any(map(self._hold, ahead))

    def _hold(self, stage: Stage) -> bool:
        """Keep a checkpoint of the leader. Return whether it is still there."""
        if self._held == stage.id:
            return True
        try:
            self.pins.hold(stage.id)
        except (ObjectMissingError, DamagedError) as error:
            self._lost(stage, error)
            return False
        self._held = stage.id
        return True

    def _lost(self, stage: Stage, error: ChandyError) -> None:
        log.warning("a checkpoint of the leader cannot be used", checkpoint=stage.id, error=str(error))
        with self._lock:
            self._following.lost(stage)

    # --- comparing ------------------------------------------------------------------------------------------

    def _differences(self, step: RunBatch, outcome: BatchOutcome) -> list[Finding]:
        """Return how the output of a batch differs, and keep rows of it."""
        found = list(self._differing_watermark(step, outcome))
        if not step.record.outputs:
            self._drop(outcome)
            return found
        ignored = self.shadow.ignored
        differing = differing_outputs(step.record.outputs, outcome.outputs, ignored)
        kept = self._kept_rows(step, outcome, differing, ignored)
        found += [
            self._finding(
                Kind.OUTPUT,
                step,
                f"sink {uid!r}",
                "; ".join(filter(None, (says, kept[uid].says))),
                kept[uid],
            )
            for uid, says in differing.items()
        ]
        return found

    def _differing_watermark(self, step: RunBatch, outcome: BatchOutcome) -> Iterator[Finding]:
        """Yield that other rows are late: a batch runs with the leader's watermark, so its output does not tell."""
        if outcome.watermarks is not None and (says := outcome.watermarks.differing(LEADER_AND_SHADOW)):
            yield self._finding(Kind.OUTPUT, step, "the watermark", says)

    def _kept_rows(
        self, step: RunBatch, outcome: BatchOutcome, differing: dict[str, str], ignored: Ignored
    ) -> dict[str, Kept]:
        if not differing:
            self._drop(outcome)
            return {}
        # All sinks of a query get the same rows.
        ours = [table for key in outcome.rows for table in self.rows(key)]
        keep = self.shadow.keep
        return {
            uid: kept_rows(self._leaders_rows(step, uid), ours, ignored.columns(uid), keep)
            for uid in differing
        }

    def _leaders_rows(self, step: RunBatch, sink: str) -> list[pa.Table] | None:
        """Return the leader's rows of a batch, from the checkpoint that has them; None: they cannot be read."""
        import pyarrow.parquet as pq

        try:
            located = self.leader.located(step.stage.id)
            files = staged_files(located.manifest, step.query, sink, step.record.batch)
            found = [pq.read_table(io.BytesIO(read_file(located.store, file))) for file in files]
        except ObjectMissingError:
            return None
        return found or None

    def _differing_state(self, stage: Stage, own: Located) -> Iterator[Finding]:
        """Yield how the state of each operator differs at the cut of a checkpoint, and keep some of it."""
        ignored = self.shadow.ignored.fields
        theirs = self.leader.located(stage.id)
        for operator in compare(theirs, own, limit=self.shadow.keep, ignored=ignored):
            if not (states := differing_states(operator)):
                continue
            kept = kept_state(operator.uid, states)
            key = self.keeps.keep(f"checkpoint-{stage.id}-{operator.uid}", kept.parquet)
            for state in states:
                yield Finding(
                    kind=Kind.STATE,
                    query=operator.query,
                    batch=stage.cut(operator.query),
                    checkpoint=stage.id,
                    what=f"state {state.name!r} of operator {operator.uid!r}",
                    says=says_of(state),
                    example=kept_state(operator.uid, [state]).example,
                    kept=key,
                )

    def _finding(self, kind: Kind, step: RunBatch, what: str, says: str, kept: Kept | None = None) -> Finding:
        key = ""
        if kept is not None:
            key = self.keeps.keep(
                f"{step.query}-{step.record.batch}-{what.split()[-1].strip(chr(39))}", kept.parquet
            )
        return Finding(
            kind=kind,
            query=step.query,
            batch=step.record.batch,
            checkpoint=step.stage.id,
            what=what,
            says=says,
            example=kept.example if kept else "",
            kept=key,
        )

    def _drop(self, outcome: BatchOutcome) -> None:
        for key in outcome.rows:
            for _ in self.rows(key):
                pass

    # --- telling --------------------------------------------------------------------------------------------

    def _learn(self, learn: Callable[[], bool], change: Callable[[ShadowVerdict], ShadowVerdict]) -> bool:
        """Take in how far the shadow has come, and, if that counts, what it has found there. Return whether it counts.

        Both are told together: a reader who sees that a batch was run also sees what differs in it.
        """
        with self._telling:
            with self._lock:
                counts = learn()
            if counts:
                self.verdict = change(self.verdict)
        return counts

    def _took(self, found: Sequence[Finding]) -> None:
        """Tell of what has been taken in."""
        for finding in found[:1]:
            log.warning(
                "the shadow differs",
                query=finding.query,
                batch=finding.batch,
                what=finding.what,
                how=finding.says,
                example=finding.example,
            )
            self.on_difference(finding)
        self._tell(Phase.FOLLOWS, force=bool(found))

    def _tell(self, phase: Phase, because: str = "", *, force: bool = False) -> None:
        with self._telling:
            self._write(phase, because, force=force)

    def _tell_meanwhile(self) -> None:
        """Tell what is true while a step takes its time."""
        with self._telling:
            because = self.verdict.because
            if (running := self._running) is not None:
                step, began = running
                is_long = runtime.monotonic() - began >= _STILL_SECONDS
                because = (
                    f"batch {step.record.batch} of query {step.query!r} takes long" if is_long else because
                )
            self._write(self.verdict.phase, because)

    def _write(self, phase: Phase, because: str, *, force: bool = False) -> None:
        with self._lock:
            following = self._following
            verdict = attrs.evolve(
                self.verdict,
                phase=phase,
                because=because,
                behind=following.behind,
                skipped=following.skipped,
                stood=dict(following.stood),
                passed=following.passed or self.verdict.passed,
                leader_seconds_per_batch=self.leader.seconds_per_batch(),
                updated_at=runtime.time(),
            )
        is_new = (verdict.phase, verdict.because) != (self.verdict.phase, self.verdict.because)
        self.verdict = verdict
        now = runtime.monotonic()
        is_same = attrs.evolve(verdict, updated_at=0.0, leader_seconds_per_batch=None) == self._told
        if force or is_new or now - self._told_at >= (_STILL_SECONDS if is_same else _TELL_SECONDS):
            self._told_at = now
            try:
                self.keeps.write(verdict)
                self._told = attrs.evolve(verdict, updated_at=0.0, leader_seconds_per_batch=None)
            except (StorageError, OSError) as error:
                log.warning("cannot write what the shadow has found; it tries again", error=str(error))
