"""A query's transactional sinks, as the coordinator sees them: staged by batch, closed by cuts, published in order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import attrs
from typing_extensions import override

from ....state.operators.dataframe import folding, repeated
from ....state.shards import NotResumable
from ....storage import runtime
from ....storage.backends.open import open_store
from ....storage.checkpoints.batch_record import Digest, total
from ....storage.checkpoints.layout import staged_folder
from ....storage.checkpoints.manifest import EpochRecord, FileRef, Handle, OutputRecord
from ....storage.checkpoints.proof import FenceProof
from ....storage.errors import ChandyError, StorageError, UnfitError
from ....storage.ids import BatchId, CheckpointId
from ....storage.logs import logger
from ....storage.long_waits import Reminder
from ....storage.store import Store
from ....storage.verified import verified
from ...errors import WriterError
from ...permit import NOTHING_PERMITTED, Permits
from ...spark.arrow import arrow_schema
from ...spark.plan import chosen_sink
from ..guarantee import Guarantee
from ..place import Output
from ..sink import GivenSink, StartPoint
from . import staging
from .contract import Batch, Epoch, Fence, Staged, TwoPhaseSink
from .epochs import ClosedEpoch, EpochLog
from .errors import BatchInterruptedError
from .limits import Limits
from .publisher import Publisher
from .sink_set import check_together, guarantee
from .takeover import SinkTakeover
from .task_results import TaskResults
from .writing import Writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logger(__name__)

_CLOSE_SECONDS: Final = 30.0
"""How long a stop waits for output to be published."""
_FORGET_SECONDS: Final = 5.0
"""How long a batch that has failed is held up to delete what was staged of it."""


class TransactionalSink(GivenSink):
    """The two-phase sinks of one query. A batch is written once, and each sink publishes it."""

    def __init__(
        self,
        sinks: Sequence[TwoPhaseSink],
        fence: Fence,
        proof: FenceProof,
        *,
        max_unpublished: int,
        permits: Permits = NOTHING_PERMITTED,
        first_epoch: CheckpointId,
        on_published: Callable[[CheckpointId], None],
        on_failure: Callable[[ChandyError], None],
        takes_digests: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make it. Nothing is connected before ``begin`` or ``resume``.

        Args:
            sinks: at least one.
            fence: who publishes; its ``sink`` does not matter.
            proof: is checked before each act on a target, and before anything staged is deleted.
            max_unpublished: how many completed checkpoints may wait for a target before the query pauses.
            permits: what may be given up for a start.
            first_epoch: the least id that this life gives to a checkpoint.
            on_published: called with the id of a checkpoint once all that it has to publish is published.
            on_failure: called when an epoch cannot be published at all.
            takes_digests: whether a batch that begins is to have a digest.

        Raises:
            WriterError: the sinks do not go together.
        """
        check_together(sinks)
        self._sinks = {sink.uid: sink for sink in sinks}
        self._writing = Writing(tuple(sinks))
        self._fence = fence
        self._proof = proof
        self._max_unpublished = max_unpublished
        self._on_published = on_published
        self._takes_digests = takes_digests
        self._publishers = {
            uid: Publisher(sink, attrs.evolve(fence, sink=uid), proof, on_failure=on_failure, permits=permits)
            for uid, sink in self._sinks.items()
        }
        self._take_over = SinkTakeover(self._publishers, fence, permits, first_epoch)
        self._at_once = frozenset(sink.uid for sink in sinks if sink.publish == "batch")
        """The uids of the sinks that publish each batch at once."""
        self._log = EpochLog(tuple(self._sinks))
        self._finished = TaskResults()
        self._next_epoch = first_epoch
        """An id above those of all closed epochs."""
        self._notes: dict[tuple[str, CheckpointId], str] = {}
        """What the pre-commits have returned, by sink and epoch."""
        self._directory: Path | None = None
        """The working directory of the current run."""
        self._run = 0
        self._is_begun = False
        self._cuts: dict[CheckpointId, BatchId] = {}
        """The cuts in the current run of checkpoints that have no outcome yet."""
        self._waiting: dict[CheckpointId, None] = {}
        """Completed checkpoints that are being published."""
        self._changed = runtime.condition()
        # Held while a sink prepares an epoch, which may take long.
        self._preparing = runtime.lock()

    @override
    def take_nothing_back(self) -> None:
        self._take_over = attrs.evolve(self._take_over, may_take_back=False)

    @property
    @override
    def guarantee(self) -> Guarantee:
        return guarantee(tuple(self._sinks.values()))

    @property
    @override
    def uids(self) -> tuple[str, ...]:
        return tuple(self._sinks)

    @property
    @override
    def outputs(self) -> tuple[Output, ...]:
        places = {uid: sink.place for uid, sink in self._sinks.items()}
        return tuple(Output(place, uid) for uid, place in places.items() if place is not None)

    @override
    def writer_of(self, uid: str) -> str:
        return attrs.evolve(self._fence, sink=uid).writer

    @override
    def committed_offsets(self, uid: str, seconds: float) -> Mapping[int, int]:
        return self._sinks[uid].committed_offsets(seconds)

    @override
    def attach(
        self,
        writer: DataStreamWriter,
        table: str | None,
        rows: DataFrame,
        made_of: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        _check_writes_nothing_else(writer, table)
        _check_names(rows)
        schema = arrow_schema(rows)
        limits = {uid: sink.check(schema) or Limits() for uid, sink in self._sinks.items()}
        self._writing = attrs.evolve(self._writing, limits=limits)
        if made_of is None:
            writer.foreachBatch(lambda rows, batch: self.take(rows, BatchId(batch)))
        else:
            writer.foreachBatch(lambda given, batch: self.take(made_of(given), BatchId(batch)))
        _attached.add(writer)

    @override
    def check_mode(self, mode: str) -> None:
        for sink in self._sinks.values():
            if mode not in sink.output_modes:
                raise WriterError(
                    f"sink {sink.uid!r} cannot take what the query gives out",
                    f"output mode {' or '.join(sorted(sink.output_modes))}",
                    mode,
                    "set another outputMode, or use another sink",
                )

    # --- a batch --------------------------------------------------------------------------------------------

    def take(self, rows: DataFrame, batch: BatchId) -> None:
        """Write a batch, as the query's ``foreachBatch`` function."""
        with self._changed:
            run, directory = self._run, self._directory
            assert directory is not None, "a query has begun before it runs"
            self._await_room(run)
        self._check_current(run, batch)
        writing = attrs.evolve(self._writing, takes_digests=self._takes_digests())
        staged = self._written(rows, writing, run, batch)
        try:
            left = self._publish_at_once(run, batch, staged)
            with self._changed:
                # Spark must not commit a batch that nothing is known of.
                self._check_current(run, batch)
                if writing.takes_digests:
                    staging.write_digest(directory, batch, total(one.digest for one in staged))
                staging.write_record(directory, batch, left)
                replaced = self._log.stage(batch, left)
        except ChandyError:
            self._forget(staged)
            raise
        self._forget(replaced)

    @override
    def digests(self, batch: BatchId) -> dict[str, Digest]:
        directory = self._directory
        found = None if directory is None else staging.read_digest(directory, batch)
        return {} if found is None else dict.fromkeys(self._sinks, found)

    def _publish_at_once(self, run: int, batch: BatchId, staged: tuple[Staged, ...]) -> tuple[Staged, ...]:
        """Publish a batch by the sinks that do not wait for checkpoints; return what the others have to publish."""
        if not self._at_once:
            return staged
        files = tuple(file for one in staged for file in one.files)
        one = Batch(batch, sum(one.rows for one in staged), files, self._fence.store)
        for uid in sorted(self._at_once) if one.rows else ():
            if not self._publishers[uid].upsert(one, partial(self._has_ended, run)):
                raise BatchInterruptedError(self._fence.query, batch)
        if len(self._at_once) < len(self._sinks):
            return staged
        self._delete(staged)
        return tuple(Staged(one.rows) for one in staged)

    def _has_ended(self, run: int, seconds: float = 0.0) -> bool:
        """Wait until a run is over, for at most so many seconds; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._run != run, seconds)

    def _written(self, rows: DataFrame, writing: Writing, run: int, batch: BatchId) -> tuple[Staged, ...]:
        """Have the tasks write a batch. If it fails, forget what those have written that have ended well.

        Raises:
            BatchInterruptedError: the run was stopped, which ends its tasks with other errors. Their text is not passed
                on: Spark looks through it by a regular expression for which Java's stack is too small.
        """
        attempt = self._finished.attempt()
        try:
            return staging.write_batch(
                rows, writing, self._fence.store, staged_folder(self._fence.query), batch, attempt
            )
        except BaseException:
            self._forget(attempt.results())
            if self._has_ended(run):
                raise BatchInterruptedError(self._fence.query, batch) from None
            raise

    def _check_current(self, run: int, batch: BatchId) -> None:
        if self._has_ended(run):
            raise BatchInterruptedError(self._fence.query, batch)

    def _await_room(self, run: int) -> None:
        """Wait while too many epochs wait for their target, so that the store does not fill up."""
        began, reminder = runtime.monotonic(), Reminder(0.0)
        while self._run == run and self.is_full:
            if reminder.is_due(waited := runtime.monotonic() - began):
                log.warning(
                    "the query pauses until its output is published",
                    query=self._fence.query,
                    unpublished_checkpoints=len(self._waiting),
                    seconds=round(waited),
                )
            self._changed.wait(0.5)

    @property
    def is_full(self) -> bool:
        """Whether so much waits for its target that the query pauses."""
        return len(self._waiting) >= self._max_unpublished

    # --- a checkpoint ---------------------------------------------------------------------------------------

    @override
    def close_epoch(self, checkpoint: CheckpointId, cut: BatchId) -> None:
        with self._changed:
            self._log.close(checkpoint, cut)
            self._next_epoch = max(self._next_epoch, CheckpointId(checkpoint + 1))
            self._cuts[checkpoint] = cut

    @override
    def pre_commit(self, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        with self._preparing:
            return tuple(self._output(uid, checkpoint) for uid in self._sinks)

    def _output(self, uid: str, checkpoint: CheckpointId) -> OutputRecord:
        with self._changed:
            epochs = self._log.unpublished(uid, checkpoint)
            published = self._log.newest_published(uid)
        return OutputRecord(uid, tuple(self._record(uid, epoch) for epoch in epochs), published)

    def _record(self, uid: str, epoch: ClosedEpoch) -> EpochRecord:
        """Return what the manifest says of an epoch. The sink is asked once."""
        if uid in self._at_once:
            # Its batches are published: what is left is to say so.
            return EpochRecord(epoch.id, rows=0)
        key = (uid, epoch.id)
        # It may be published, and its note forgotten, at any moment.
        note = self._notes.get(key)
        if note is None:
            note = self._notes[key] = self._sinks[uid].pre_commit(epoch.id, epoch.staged)
        files = tuple(file for one in epoch.staged for file in one.files)
        return EpochRecord(epoch.id, epoch.rows, Handle(files), note)

    @override
    def commit(self, checkpoint: CheckpointId) -> None:
        with self._changed:
            self._waiting[checkpoint] = None
            self._drop_records(checkpoint)
            by_sink = {uid: self._log.unpublished(uid, checkpoint) for uid in self._sinks}
        for uid, closed in by_sink.items():
            with self._preparing:
                epochs = [Epoch(self._record(uid, epoch), self._fence.store) for epoch in closed]
            self._publishers[uid].publish(
                epochs, partial(self._published, uid, closed[-1].id if closed else None)
            )

    def _drop_records(self, checkpoint: CheckpointId) -> None:
        """Forget the batches of a completed checkpoint: no run is resumed that has them ahead of it."""
        cut = self._cuts.get(checkpoint)
        self._cuts = {other: batch for other, batch in self._cuts.items() if other > checkpoint}
        if cut is not None and self._directory is not None:
            with contextlib.suppress(OSError):
                staging.drop_records(self._directory, cut)

    def _published(self, uid: str, epoch: CheckpointId | None) -> None:
        """Record that a sink has published everything up to an epoch."""
        with self._changed:
            if epoch is not None:
                self._log.published(uid, epoch)
            done = [checkpoint for checkpoint in self._waiting if self._log.is_published(checkpoint)]
            for checkpoint in done:
                del self._waiting[checkpoint]
            for key in list(self._notes):
                if self._is_over(*key):
                    self._notes.pop(key, None)
            self._changed.notify_all()
        for checkpoint in done:
            self._on_published(checkpoint)

    def _is_over(self, uid: str, epoch: CheckpointId) -> bool:
        published = self._log.newest_published(uid)
        return published is not None and epoch <= published

    # --- where a run begins ---------------------------------------------------------------------------------

    @override
    def begin(self, query: str, beginning: StartPoint) -> None:
        self._begin_once(beginning)
        with self._changed:
            self._next_run(beginning)
            forgotten = self._log.go_back(beginning.checkpoint)
        self._forget(forgotten)

    @override
    def resume(self, query: str, beginning: StartPoint, last: BatchId) -> None:
        self._begin_once(beginning)
        staged = staging.read_records(beginning.directory, beginning.batch, last)
        assert staged is not None, "only a run that has all its records is resumed"
        with self._changed:
            self._next_run(beginning)
            # Those that a cut has closed off are staged again, and nothing of them is in a completed checkpoint.
            self._log.go_back(beginning.checkpoint)
            self._log.resume(staged)

    def _begin_once(self, beginning: StartPoint) -> None:
        if not self._is_begun:
            for uid, epoch in self._take_over.run(beginning).items():
                self._log.published(uid, epoch)
            self._is_begun = True

    def _next_run(self, beginning: StartPoint) -> None:
        self._run += 1
        self._directory = beginning.directory
        self._cuts.clear()
        self._changed.notify_all()

    @override
    def obstacle(self, directory: Path, restored: BatchId, committed: BatchId) -> NotResumable | None:
        staged = staging.read_records(directory, restored, committed)
        if staged is None:
            return NotResumable(f"has no whole record of what it has staged until batch {committed}")
        store = open_store(self._fence.store)
        files = [file for found in staged.values() for one in found for file in one.files]
        try:
            # A garbage collection may have come in between.
            for file in files:
                verified(store, file.key, partial(_check_size, file=file))
        except (OSError, StorageError) as error:
            return NotResumable(f"has staged output that is not there: {error}")
        if self._at_once and files:
            # The sink that publishes batches may have waited for checkpoints when they ran.
            return NotResumable(
                "has staged output of which nobody knows whether it was published by the batch"
            )
        return None

    @override
    def interrupt(self) -> None:
        with self._changed:
            self._run += 1
            self._changed.notify_all()

    # --- the end --------------------------------------------------------------------------------------------

    @override
    def close(self) -> None:
        self.interrupt()
        deadline = runtime.monotonic() + _CLOSE_SECONDS
        for uid, publisher in self._publishers.items():
            if not publisher.close(max(0.0, deadline - runtime.monotonic())):
                log.warning(
                    "closed before all output was published; the next start publishes it",
                    query=self._fence.query,
                    sink=uid,
                )

    def _forget(self, staged: Sequence[Staged]) -> None:
        """Delete what will never be part of a checkpoint."""
        if not staged:
            return
        try:
            # A successor may publish what this life has given up.
            self._proof.check()
        except (ChandyError, OSError) as error:
            log.warning("what is not needed any more is left to `chandy gc`", error=str(error))
            return
        try:
            for sink in self._sinks.values():
                sink.abort(staged, self._next_epoch)
        except Exception as error:  # noqa: BLE001 (a sink may raise anything, and nothing depends on this)
            log.warning("a sink cannot forget what is not needed", error=str(error))
        self._delete(staged)

    def _delete(self, staged: Sequence[Staged]) -> None:
        """Delete staged files. What cannot be deleted now is garbage."""
        keys = [file.key for one in staged for file in one.files]
        try:
            if keys:
                self._proof.check()
                open_store(self._fence.store).within(_FORGET_SECONDS).delete_all(keys)
        except (ChandyError, OSError) as error:
            log.warning("cannot delete what is not needed; `chandy gc` can", error=str(error))


_attached: Final = WeakSet[Any]()
"""Writers that call a sink with each batch. A start that has failed may be repeated with the same one."""


def _check_size(store: Store, file: FileRef) -> None:
    if (size := store.stat(file.key).size) != file.size:
        raise UnfitError(f"{file.size} bytes", f"{size}")


def _check_names(rows: DataFrame) -> None:
    """Refuse columns with names that Spark cannot tell apart, here or when it reads the target."""
    fold = folding(rows)
    if twice := repeated(rows.columns, fold):
        raise WriterError(
            "the query cannot be started",
            "rows whose columns have different names" + ("" if fold is str else ", whatever their case"),
            ", ".join(map(repr, twice)),
            "give each an alias of its own, or leave out what a join has twice",
        )


def _check_writes_nothing_else(writer: DataStreamWriter, table: str | None) -> None:
    chosen = f"table {table}" if table is not None else "" if writer in _attached else chosen_sink(writer)
    if chosen:
        raise WriterError(
            "the query cannot be started",
            "either sink= or what Spark writes to",
            f"sink= and {chosen}",
            "leave out one of them; foreachBatch and a sink are two queries",
        )
