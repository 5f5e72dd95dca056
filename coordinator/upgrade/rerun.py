"""A coordinator that runs batches of another pipeline, apart from it: each as it was, on the state of a checkpoint.

It is a ``CheckpointCoordinator`` with a storage of its own. Of the other pipeline's storage it reads a checkpoint or a
savepoint, and pins it as any reader does. Its sinks write nowhere, nothing that is told to others leaves it, and its
queries run the batches alone that ``conduct`` gives them, on a thread beside the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from typing_extensions import override

from ...state.reader.names import FORMAT as CHANGES
from ...storage import runtime
from ...storage.checkpoints.batch_record import BatchRecord, Digest
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import CheckpointKind, Manifest, OperatorRecord
from ...storage.errors import StoreFailedError
from ...storage.ids import BatchId, CheckpointId
from ...storage.logs import carried, logger
from ...storage.long_waits import told_if_slow
from ..batch_rows import BatchRowsWriter
from ..config import CheckpointConfig
from ..errors import GivenBatchError, WriterError
from ..execution.executor import CheckpointExecutor
from ..leadership.heir import Inheritance
from ..operators import Operators, as_made
from ..permit import Permit
from ..query_starter import QueryRequest
from ..recovery.given_batches import BatchSupervisor
from ..recovery.restart import NoRestart
from ..recovery.supervisor import Supervisor
from ..restore.restore_point import RestorePoint
from ..savepoints import Savepoints
from ..sinks.two_phase import staging
from ..sinks.two_phase.sink_set import sinks_of
from ..sources.query_sources import QuerySources
from ..sources.reader import SourceReader
from ..spark import plan
from ..spark.batch_entries import watermark_after, watermark_of
from ..spark.local_path import is_local
from ..spark.writer_facts import WriterFacts
from ..supervised_run import Exit
from ..verdict import ShadowVerdict
from ..wiring.taken_pipeline import TakenPipeline
from .nowhere import Nowhere, taken
from .outputs import Watermarks
from .own_pins import OwnPins

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ...state.operators.engine import OperatorSpec
    from ..replication.formats import Format
    from ..replication.replica import Replica

log = logger(__name__)

_SINK: Final = "sink"
"""The uid of what takes the rows of a query that writes by a sink of Spark's."""
_BATCH_SECONDS: Final = 3600.0
_CHECKPOINT_SECONDS: Final = 600.0
_END_SECONDS: Final = 60.0


@attrs.frozen
class BatchOutcome:
    """What a batch has given."""

    outputs: Mapping[str, Digest]
    """What went out, by the uid of the sink; empty if the query writes by itself."""
    rows: tuple[str, ...] = ()
    """Keys of the Parquet files with the rows, in the store that keeps them."""
    watermarks: Watermarks | None = None
    """That of the batch as it was planned, and as this version would have planned it; None: the plan has none."""


class ReadSources(QuerySources):
    """Sources that are read for others: nobody is told how far."""

    @override
    def completed(self, directory: Path, batch: BatchId) -> None:
        return


Conduct = Callable[["Rerun"], None]


class Rerun:
    """What a coordinator is told to do instead of leading its pipeline, and the handle of whoever gives it batches."""

    def __init__(
        self,
        start: Located,
        storage: str,
        conduct: Conduct,
        *,
        pipeline: str | None = None,
        rows: str | None = None,
        needed: Sequence[Located] = (),
        watched: Callable[[OperatorRecord, OperatorSpec], OperatorSpec] = as_made,
        may_write: bool = False,
        tells: bool = False,
        is_awaited: bool = True,
    ) -> None:
        """Say what to do. Nothing is read or written before a coordinator takes it.

        Args:
            start: the checkpoint or savepoint behind which the batches begin.
            storage: URI of the storage for checkpoints of its own.
            conduct: gives the batches, on a thread of its own that begins with the coordinator. When it returns or
                fails, the queries end.
            pipeline: name of the coordinator's own pipeline in ``storage``; None: that of the checkpoint.
            rows: URI of a store for the rows of batches, as Parquet; None: rows are not kept.
            needed: other checkpoints that whoever gives batches reads until the end.
            watched: returns what the tasks of an operator run.
            may_write: whether functions of ``foreachBatch`` and ``foreach`` are called, which write by themselves.
            tells: whether the page, the events and the traces of the program's configuration are its own.
            is_awaited: whether a program that stops its coordinator waits until all batches have been given.
        """
        self.start = start
        self.storage = storage
        self.pipeline = pipeline or start.manifest.pipeline
        self.error: Exception | None = None
        """By which ``conduct`` has ended."""
        self.inherited: Inheritance | None = None
        """Set by ``conduct`` if the coordinator is to lead the pipeline once it returns: the claim has been made."""
        self._conduct = conduct
        self._rows = rows
        self._needed = needed
        self._watched = watched
        self._may_write = may_write
        self._tells = tells
        self._is_awaited = is_awaited
        own = next((one for one in (start, *needed) if not _is_savepoint(one)), start)
        self._pins = OwnPins(own.store, f"rerun-{runtime.token()[:12]}")
        self._changed = runtime.condition()
        self._names: set[str] = set()
        self._is_complete = False
        """Whether the program starts no more queries."""
        self._is_over = runtime.flag()
        self._is_released = self._has_begun = False
        self._thread = runtime.thread(target=carried(self._run), name="chandy-rerun")

    # --- called by the coordinator --------------------------------------------------------------------------

    def config(self, given: CheckpointConfig) -> CheckpointConfig:
        """Return how the coordinator checkpoints: when it is told to, on this machine, and for nobody else."""
        silent: dict[str, Any] = {"page": None, "on_event": None, "traces": False, "changelog": False}
        has_local = given.work_dir is not None and is_local(given.work_dir)
        return attrs.evolve(
            given,
            interval=None,
            interval_during_backlog=None,
            restart=NoRestart(),
            # Whoever has asked for a checkpoint decides what comes of its failure.
            tolerable_failures=sys.maxsize,
            savepoints=Savepoints(),
            standbys=0,
            work_dir=given.work_dir if has_local else None,
            record_batches=False,
            **({} if self._tells else silent),
        )

    @staticmethod
    def permit(given: Permit | None) -> Permit:
        """Return what the start may give up: as the program says, but that savepoints stay whose they are."""
        return attrs.evolve(given or Permit(), claim=None)

    def point(self) -> RestorePoint:
        """Pin the checkpoint, and all else that is needed, and return it as the coordinator restores it."""
        for located in self._needed:
            self._pinned(located)
        return self._point(self.start)

    def prepared(self, request: QueryRequest) -> QueryRequest:
        """Return what is started of a query: the same, with sinks that write nowhere.

        Raises:
            WriterError: it writes by itself.
        """
        if request.sink is not None:
            return attrs.evolve(
                request, sink=[Nowhere(sink.uid, self._rows) for sink in sinks_of(request.sink)]
            )
        made = request.writer if request.build is None else request.build()
        assert made is not None, "there is a writer or a function that returns one"
        if isinstance(made, BatchRowsWriter) or _writes_by_itself(made):
            if not self._may_write:
                raise _writes(request.name)
            return attrs.evolve(request, adopt=None, writer=made, build=None)
        return attrs.evolve(
            request,
            writer=plan.without_sink(made),
            build=None,
            sink=Nowhere(_SINK, self._rows),
            table=None,
            adopt=None,
        )

    @staticmethod
    def sources(
        known: Callable[[WriterFacts, SourceReader], QuerySources], facts: WriterFacts, reader: SourceReader
    ) -> QuerySources:
        """Return what is known of the sources of a query. They are told nothing.

        Raises:
            WriterError: one cannot be read a second time.
        """
        if any(source.name == CHANGES for source in facts.sources):
            raise WriterError(
                f"query {reader.query!r} cannot run batches again",
                "sources that keep what they had",
                f"{CHANGES!r}, whose pipeline keeps checkpoints for its one reader",
                "run the batches of the other queries, in a program without this one",
            )
        return ReadSources(known(facts, reader).sources)

    def replica(self, name: str, operator: str, state: str | None, format: Format | None) -> Replica:
        """Return what a program gets that keeps a copy of a state: nothing is written.

        Raises:
            ReplicaError: it must be written one day.
        """
        # Only a driver that replicates loads it.
        from .unreplicated import Unreplicated

        return Unreplicated(name, operator, state, format)

    def begin(
        self,
        supervisor: Supervisor,
        executor: CheckpointExecutor,
        own: TakenPipeline,
        operators: Operators,
        lead: Callable[[Inheritance], None],
    ) -> None:
        """Begin to give batches, with what runs them.

        Args:
            supervisor, executor, own: they run them.
            operators: those of the program, before it makes any.
            lead: has the coordinator lead the pipeline, once no batch is given any more.
        """
        assert isinstance(supervisor, BatchSupervisor), "the coordinator was assembled for given batches"
        self._supervisor = supervisor
        self._executor = executor
        self._catalog = own.catalog
        self._lead = lead
        operators.watched = self._watched
        self._has_begun = True
        self._thread.start()

    def started(self, query: str) -> None:
        """Take in that the program has started a query."""
        with self._changed:
            self._names.add(query)
            self._changed.notify_all()

    def await_end(self) -> None:
        """Wait until all batches have been given, because the program is about to stop its coordinator."""
        with self._changed:
            self._is_complete = True
            self._changed.notify_all()
        if self._is_awaited:
            self._is_over.wait()

    def cancel(self) -> None:
        """Wait for nothing: the program has failed."""
        self._is_awaited = False

    def close(self) -> None:
        """End, now that no query runs any more."""
        self._is_awaited = False
        self.await_end()
        # A coordinator that could not be made has not begun.
        if self._has_begun and runtime.current_thread() is not self._thread:
            # Not until the thread ends: one that is to lead waits for the end of the stop.
            self._is_over.wait(_END_SECONDS)

    def exit(self, ended: Exit) -> Exit:
        """Return how a run has ended, given what became of its own pipeline."""
        return ended if self.error is None else Exit.FAILED

    def release(self) -> None:
        """Have the other pipeline keep nothing any more for this one; calls after the first do nothing."""
        is_new, self._is_released = not self._is_released, True
        if is_new:
            self._release()

    def _release(self) -> None:
        self._pins.release()

    # --- called by whoever gives batches --------------------------------------------------------------------

    @property
    def verdict(self) -> ShadowVerdict | None:
        """What was found as the shadow of a pipeline; None if this is none."""
        return None

    @property
    def queries(self) -> frozenset[str]:
        """The queries that the program has started."""
        with self._changed:
            return frozenset(self._names)

    def operators(self, query: str) -> tuple[str, ...]:
        """Return the uids of the operators of a query that the program has started."""
        found = next(one for one in self._supervisor.queries if one.name == query)
        return tuple(operator.uid for operator in found.operators)

    def await_queries(self, names: Sequence[str]) -> None:
        """Wait until the program has started certain queries.

        Raises:
            GivenBatchError: it stops without them.
        """
        with told_if_slow(log, "the program to start its queries", queries=", ".join(names)), self._changed:
            self._changed.wait_for(lambda: not self._missing(names) or self._is_complete)
            if left := self._missing(names):
                raise GivenBatchError(
                    "batches cannot be run",
                    f"a program that starts query {left[0]!r}",
                    f"one that has started {', '.join(map(repr, sorted(self._names))) or 'none'}",
                    "keep the names of queries; what a version drops on purpose has no batches to compare",
                )

    def restore(self, located: Located) -> None:
        """Have all queries go on behind another checkpoint or savepoint, in place of what they stand behind.

        Raises:
            ChandyError: it cannot be restored; a subclass says why.
        """
        before = self.start
        point = self._point(located)
        self._supervisor.go_to(point)
        self.start = located
        if before.store.uri == located.store.uri and not self._needed:
            self._pins.release_before(located.manifest.id)

    def run(self, query: str, record: BatchRecord, timeout: float = _BATCH_SECONDS) -> BatchOutcome:
        """Run a batch, the next one of a query, and return what it has given.

        Args:
            query: its name; its program must start it, which is waited for.
            record: the batch.
            timeout: seconds to wait for its commit.

        Raises:
            GivenBatchError, SourceLostError, ChandyError: as ``BatchSupervisor.run_batch``.
        """
        self.await_queries([query])
        directory = self._supervisor.run_batch(query, record, timeout)
        uids = self._supervisor.sinks(query)
        staged = staging.read_records(directory, BatchId(record.batch - 1), record.batch) if uids else None
        watermarks = self._watermarks(query, directory, record)
        if staged is None:
            return BatchOutcome({}, watermarks=watermarks)
        digest, rows = taken(staged[record.batch])
        return BatchOutcome(dict.fromkeys(uids, digest), rows, watermarks)

    def checkpoint(self, timeout: float = _CHECKPOINT_SECONDS) -> Located:
        """Take a checkpoint behind the batches that have run, in the storage of its own.

        Raises:
            CheckpointError: it has failed.
            TimeoutError: it takes too long.
        """
        taken = self._executor.request(CheckpointKind.MANUAL).result(timeout)
        return Located(self._catalog.read(CheckpointId(taken.id)), self._catalog.store)

    # --- inside ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._conduct(self)
        except Exception as error:  # noqa: BLE001 (whoever has asked for it looks at it)
            self.error = error
            log.warning("no more batches are run", error=str(error))
        if self.inherited is not None:
            self._is_over.set()
            self._lead_on(self.inherited)
            return
        self._end_queries()
        self._is_over.set()

    def _end_queries(self) -> None:
        for query in self._supervisor.queries:
            try:
                # What the program waits for has come to its end.
                self._supervisor.stop_query(query.name)
            except Exception as error:  # noqa: BLE001 (the program is to end all the same)
                log.warning("cannot end a query", query=query.name, error=str(error))

    def _lead_on(self, inherited: Inheritance) -> None:
        try:
            self._lead(inherited)
            self.release()
        except Exception as error:
            self.error = error
            log.exception("the shadow has claimed the pipeline, and cannot lead it; start the program again")

    def _watermarks(self, query: str, directory: Path, record: BatchRecord) -> Watermarks | None:
        number = self._supervisor.watermarks(query)
        own = watermark_after(directory, BatchId(record.batch - 1))
        return Watermarks(watermark_of(record), own, number == 1) if number else None

    def _missing(self, names: Sequence[str]) -> list[str]:
        return sorted(set(names) - self._names)

    def _point(self, located: Located) -> RestorePoint:
        """Pin a checkpoint, and return it as one of another storage: none of its output is published."""
        manifest = self._pinned(located)
        queries = tuple(attrs.evolve(query, outputs=()) for query in manifest.queries)
        # It stands apart from the chain of checkpoints of its own, as savepoints do.
        apart = attrs.evolve(manifest, kind=CheckpointKind.SAVEPOINT, queries=queries)
        return RestorePoint(apart, located.store.uri)

    def _pinned(self, located: Located) -> Manifest:
        """Pin a checkpoint, and return its manifest; nobody deletes savepoints, or what cannot be written to."""
        if not _is_savepoint(located):
            try:
                return self._pins.hold(located.manifest.id)
            except (StoreFailedError, PermissionError) as error:
                log.info(
                    "a checkpoint is not pinned, because nothing can be written beside it", error=str(error)
                )
        return located.manifest


def _is_savepoint(located: Located) -> bool:
    return located.manifest.kind is CheckpointKind.SAVEPOINT


def _writes_by_itself(writer: DataStreamWriter) -> bool:
    plan.check_writer(writer)
    return plan.chosen_sink(writer).partition(" ")[0].lower() in ("foreachbatch", "foreach")


def _writes(query: str) -> WriterError:
    return WriterError(
        f"query {query!r} cannot run batches again",
        "a query that writes by a sink, which can be left out",
        "a function of foreachBatch or foreach, which writes by itself",
        "say that it may (may_write, or --may-write on the command line) if it writes nothing that others read, or "
        "leave the query out",
    )
