"""The runs of the queries under Spark, and the files in their working directories."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ...state.operators.batch_log import batch_times
from ...state.rpc.messages import BatchTimes
from ...storage import runtime
from ...storage.checkpoints.batch_record import RECORDS_FILE, BatchRecords, encode
from ...storage.checkpoints.manifest import ChannelRecord, CheckpointKind, Manifest, OutputRecord
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from ...storage.logs import logger
from ..channels.contract import Channels
from ..errors import SinkTakenError, StaleQueryError, WorkingDirectoryError, WorkingDirectoryLostError
from ..execution.recording import Recording
from ..query import Definition
from ..restore.restore_point import SINK, WORKING
from ..restore.resume import ResumableRun
from ..spark import progress
from ..spark.logs.offset_log import read_between
from ..spark.mirror import Mirror
from ..spark.query_tasks import has_tasks
from .recorded_batches import read_records

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logger(__name__)

_POLL_SECONDS: Final = 0.02


@attrs.define
class Run:
    """One life of a query under Spark."""

    number: int
    """Counts the runs of all queries."""
    definition: Definition
    directory: Path
    """The working checkpoint directory, or what mirrors it on this machine."""
    query_id: str
    resumed: ResumableRun | None = None
    """The run that this one resumes; None if it comes from a checkpoint or begins empty."""
    spark: StreamingQuery | None = None
    ended: bool = False
    is_stopping: bool = False
    """Whether it is being stopped, and may still have to commit a batch that its sink has."""
    follower: runtime.Thread | None = None
    """Ends when Spark's query has ended."""
    mirror: Mirror | None = None
    """The working directory, if it is on a store; None if it is ``directory`` itself."""
    planned: BatchId = NO_BATCH
    """The newest batch that was seen to be planned; -1 if none was."""
    recorded: BatchId = NO_BATCH
    """The last batch of a completed checkpoint, behind which the records of the next one begin: that of the one that
    the run comes from, or of a later one of this run."""
    cuts: set[BatchId] = attrs.field(factory=set)
    """Cuts of this run at which checkpoints were taken. A checkpoint of another run may have completed late."""

    @property
    def location(self) -> str:
        """The working directory as Spark is told it: a path or URI."""
        return str(self.directory) if self.mirror is None else self.mirror.location

    def logs(self) -> Path:
        """Return a directory with the offset log and the commit log as they are now.

        Raises:
            WorkingDirectoryError: the store cannot be read.
        """
        return self.directory if self.mirror is None else self.mirror.logs()

    def logs_as_known(self) -> Path:
        """Return the same as ``logs``; as they were when they could last be read, if they cannot be read now."""
        try:
            return self.logs()
        except (OSError, WorkingDirectoryError) as error:
            log.warning("cannot read the logs of a query", query=self.definition.name, error=str(error))
            return self.directory

    def planned_logs(self) -> Path:
        """Return a directory with the logs of the query and those that Spark keeps of its sources, as they are now.

        Raises:
            WorkingDirectoryError: the store cannot be read.
        """
        if self.mirror is None or not self.definition.sources.sources:
            return self.logs()
        return self.mirror.planned_logs()

    def newest_planned(self) -> BatchId:
        """Return the newest batch that Spark has planned; -1 if none.

        Raises:
            WorkingDirectoryError: the store cannot be read.
        """
        newest = progress.newest_planned(self.logs())
        self.planned = max(self.planned, newest)
        return newest

    def newest_begun(self) -> BatchId:
        """Return the newest batch that Spark has begun; -1 if none.

        Spark plans a batch before it runs it, but for those of a real-time query: these are logged when they end, each
        begins when the one before has committed, and they need no data.

        Raises:
            WorkingDirectoryError: the store cannot be read.
        """
        # What mirrors the working directory is up to date afterwards.
        return self._begun(self.newest_planned(), self.directory)

    def _begun(self, planned: BatchId, logs: Path) -> BatchId:
        if self.definition.facts.real_time_seconds is None or self.ended:
            return planned
        return max(planned, BatchId(progress.newest_committed(logs) + 1))

    def check_directory(self) -> BatchId:
        """Return the newest planned batch, once the working directory is known to have the query and its batches still.

        Spark takes up whatever is there: without its id and its logs, a query begins from the start, and its sink takes
        its batches for written.

        Raises:
            WorkingDirectoryLostError: it has not.
            WorkingDirectoryError: the store cannot be read.
        """
        seen, newest = self.planned, self.newest_planned()
        is_there = progress.query_id(self.directory) == self.query_id and (
            self.mirror is None or self.mirror.has_metadata()
        )
        if not is_there or newest < seen:
            raise WorkingDirectoryLostError(
                f"query {self.definition.name!r} cannot restart in place",
                f"its working directory {self.location} with batch {seen}",
                f"batch {newest} as the newest one" if is_there else "no query in it any more",
                "keep programs from deleting old files there, as cleaners of /tmp do, or choose another place by "
                "CHANDY_RUNTIME_DIR or CheckpointConfig.work_dir; the pipeline goes back to its latest checkpoint",
            )
        return newest

    def is_committed(self, batch: BatchId) -> bool:
        """Return whether a batch has committed; False, too, once Spark has deleted its record.

        Raises:
            WorkingDirectoryError: the store cannot be read.
        """
        if self.mirror is not None:
            return self.mirror.is_committed(batch)
        return progress.is_committed(self.directory, batch)

    def is_known_committed(self, batch: BatchId) -> bool:
        """Return the same as ``is_committed``; False if nobody can tell now."""
        try:
            return self.is_committed(batch)
        except WorkingDirectoryError:
            return False

    def await_running_batch(self, deadline: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until the newest batch that has begun has committed, the run has ended, or the time has come.

        Args:
            deadline, gives_up: as for ``await_commit``.
        """
        logs = self.logs_as_known()
        self.await_commit(self._begun(progress.newest_planned(logs), logs), deadline, gives_up)

    def await_commit(
        self, batch: BatchId, deadline: float, gives_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until a batch has committed, the run has ended, or the time has come.

        Args:
            batch: the batch; -1: none, so there is nothing to wait for.
            deadline: in monotonic seconds.
            gives_up: whether not to wait any more.
        """
        while (
            batch >= 0
            and not self.is_known_committed(batch)
            and self.spark is not None
            and self.spark.isActive
            and runtime.monotonic() < deadline
            and not gives_up()
        ):
            runtime.sleep(_POLL_SECONDS)

    def log_of(self, batch: BatchId) -> Path:
        """Return a directory whose offset log has a planned batch."""
        return self.directory if self.mirror is None else self.mirror.log_of(batch)

    def files_at(self, batch: BatchId) -> progress.Files:
        """Return the files that the query needs to go on with batch ``batch`` + 1, as ``progress.files_at``."""
        if self.mirror is not None and batch >= 0:
            return progress.files_at(self.mirror.files_at(batch), batch)
        return progress.files_at(self.directory, batch)


class Runs:
    """The current run of each query. Answers about files come from the disk, as the executor's ``Progress``."""

    def __init__(self, channels: Channels, recording: Recording) -> None:
        """Make it without runs.

        Args:
            channels: what is between the queries.
            recording: whether checkpoints get records of batches.
        """
        self._recording = recording
        self._channels = channels
        self._lock = runtime.lock()
        self._current: dict[str, Run] = {}

    def put(self, run: Run) -> None:
        """Make a run its query's current one."""
        with self._lock:
            self._current[run.definition.name] = run

    def drop(self, query: str) -> None:
        """Forget a query."""
        with self._lock:
            self._current.pop(query, None)

    def get(self, query: str) -> Run | None:
        """Return the current run of a query; None if it has never run."""
        with self._lock:
            return self._current.get(query)

    def all(self) -> list[Run]:
        """Return the current runs, in the order in which the queries were first started."""
        with self._lock:
            return list(self._current.values())

    def await_ends(self, timeout: float | None) -> bool:
        """Wait until Spark has ended all runs, which were stopped; return whether it has.

        Args:
            timeout: seconds to wait at most; None: no limit.
        """
        deadline = None if timeout is None else runtime.monotonic() + timeout
        followers = [run.follower for run in self.all() if run.follower is not None]
        for follower in followers:
            follower.join(None if deadline is None else max(0.0, deadline - runtime.monotonic()))
        return not any(follower.is_alive() for follower in followers)

    def await_tasks(self, timeout: float) -> bool:
        """Wait until no task of a run is left, all of which were stopped; return whether none is.

        Args:
            timeout: seconds to wait at most.
        """
        deadline = runtime.monotonic() + timeout
        queries = [run.spark for run in self.all() if run.spark is not None]
        while (are_left := any(map(has_tasks, queries))) and runtime.monotonic() < deadline:
            runtime.sleep(_POLL_SECONDS)
        return not are_left

    # --- what the executor asks -----------------------------------------------------------------------------

    def begun(self, query: str) -> BatchId:
        """Return the newest batch that Spark has begun; -1 if none."""
        return self._current[query].newest_begun()

    def current_batch(self, query: str) -> BatchId | None:
        """Return the newest committed batch of a query that has ended; None while it runs."""
        run = self._current[query]
        return progress.newest_committed(run.logs()) if run.ended and not run.is_stopping else None

    def is_committed(self, query: str, batch: BatchId) -> bool:
        """Return whether a batch has committed."""
        return self._current[query].is_committed(batch)

    def times(self, query_id: str, batch: BatchId) -> BatchTimes:
        """Return the timestamp, the watermarks and the offsets of a planned batch of the query with this Spark id.

        Raises:
            StaleQueryError: the query has gone back to a checkpoint since.
            UnreadableFileError: Spark's log does not tell.
        """
        run = next((run for run in self.all() if run.query_id == query_id), None)
        if run is None:
            raise StaleQueryError(query_id, batch)
        directory, definition = run.log_of(batch), run.definition
        times = batch_times(directory, batch, single_watermark=definition.facts.single_watermark)
        if not definition.keeps_letters:
            # All tasks would be sent what none of them needs.
            return times
        return attrs.evolve(times, offsets=read_between(directory, batch))

    @contextmanager
    def hold(self, query: str, batch: BatchId) -> Iterator[Mapping[str, Path]]:
        """Keep, for the length of the ``with``, the files that restore a query's progress right after a batch.

        They are those of its working directory and those that its sink wants kept.

        Raises:
            WorkingDirectoryLostError: the working directory is not what it was.
            SinkTakenError: the sink has a batch that the query has not planned.
        """
        run = self._current[query]
        sink = run.definition.sink
        _check_sole_writer(run, run.check_directory())
        with tempfile.TemporaryDirectory(prefix="hold-", dir=run.directory.parent) as folder:
            held = Path(folder)
            working = progress.hold(lambda: run.files_at(batch), held / WORKING)
            kept = progress.hold(lambda: sink.files_at(batch), held / SINK)
            self._channels.look(run.definition, batch, working, kept)
            records = {}
            run.cuts.add(batch)
            if self._recording.is_on:
                # The last batch of the checkpoint before tells which one that was: its number may have come twice.
                after = BatchId(max(run.recorded - 1, NO_BATCH))
                records = {RECORDS_FILE: _written(held, read_records(run.directory, sink, after, batch))}
            yield {
                **{f"{WORKING}/{name}": path for name, path in working.items()},
                **{f"{SINK}/{name}": path for name, path in kept.items()},
                **records,
            }

    def close_epoch(self, query: str, checkpoint: CheckpointId, cut: BatchId) -> None:
        """Close off a query's output up to a cut."""
        self._current[query].definition.sink.close_epoch(checkpoint, cut)

    def pre_commit(self, query: str, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        """Return what a checkpoint's manifest says of a query's transactional sinks."""
        return self._current[query].definition.sink.pre_commit(checkpoint)

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        """Return what was between the queries at a checkpoint that is about to complete."""
        return self._channels.at(manifest)

    def commit(self, query: str, checkpoint: CheckpointId) -> None:
        """Begin to publish what a completed checkpoint has of a query's output."""
        self._current[query].definition.sink.commit(checkpoint)

    def completed(self, manifest: Manifest) -> None:
        """Tell the sources of queries how far a completed checkpoint has come. It waits for nothing but the disk."""
        for record in manifest.queries:
            if (run := self.get(record.name)) is not None:
                run.definition.sources.completed(run.directory, record.batch)
                # A later checkpoint does not rely on a savepoint, which may be gone.
                if manifest.kind is not CheckpointKind.SAVEPOINT and record.batch in run.cuts:
                    run.recorded = max(run.recorded, record.batch)
                    run.cuts.discard(record.batch)


def _written(folder: Path, records: BatchRecords) -> Path:
    path = folder / RECORDS_FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(records))
    return path


def _check_sole_writer(run: Run, planned: BatchId) -> None:
    """Check that a sink has no batch that its query has not planned: another program would have written it.

    Args:
        run: the query's run.
        planned: the newest batch that was planned a moment ago.

    Raises:
        SinkTakenError: it has one.
    """
    sink = run.definition.sink
    if sink.location is None:
        return
    while sink.is_ahead_of(planned):
        # Spark plans a batch before its sink has it: what the sink has now is planned by now.
        before, planned = planned, run.newest_planned()
        if planned == before:
            raise SinkTakenError(
                f"no checkpoint of query {run.definition.name!r} can be taken",
                f"no batch after {planned} in its output {sink.location}, because it has planned none",
                "one that another program has written",
                "stop that program, most likely an earlier driver's JVM; the pipeline goes back to its latest "
                "checkpoint, and sets aside what came after it",
            )
