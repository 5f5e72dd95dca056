"""Queries as Spark runs them: planned, run by tasks that are tried again, sunk, committed, with logs on the disk.

Batches of a query come one after the other. A batch that was planned is run again with the same offsets after a restart
in place. A task that fails runs again up to three times, and then its query fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.recovery import runs
from chandy.coordinator.restore import local_recovery, restore_point
from chandy.coordinator.sinks.guarantee import Guarantee, Level
from chandy.coordinator.sinks.sink import Sink, StartPoint
from chandy.coordinator.spark import batch_function, starting
from chandy.coordinator.spark.listing import numbers_in
from chandy.coordinator.spark.progress import newest_committed
from chandy.state.errors import HostDismissedError, HostLostError, ShardMovingError
from chandy.state.failure_marks import mark
from chandy.state.host.cache import Value
from chandy.state.rpc.messages import BeginTask
from chandy.storage import runtime
from chandy.storage.errors import ChandyError
from chandy.storage.ids import BatchId

from .promises import Promises
from .records import READS, SHARDS, added_to, end_of, uid_of
from .scheduler import Scheduler
from .state_hosts import WorldHost
from .tasks import run_task, task_client

TOKEN: Final = "token"
"""What the processes of a pipeline share."""
ATTEMPTS: Final = 4
"""How often Spark tries a task."""
UNHEARD, SPECULATIVE, KILLED, WIDE = 0.05, 0.05, 0.02, 0.3
"""How often Spark does not hear of a task's success, begins a second attempt beside the first, has an attempt killed in
its midst, and has one task for all shards."""
REFUSED: Final = 0.05
"""How often a query cannot be started again."""
SLOW_SECONDS: Final = 3.0
"""How long a second attempt stands still at most, before it reads and before it has anything staged."""
PATIENCE: Final = 15.0
"""Seconds that a task waits for another owner of its shards, as with standbys."""
KEPT: Final = 30
"""Batches whose entries Spark keeps in its logs."""


class SparkError(Exception):
    """What Spark says of a query that has failed: a text, with the marks of what a task has raised."""

    @classmethod
    def of(cls, error: Exception) -> SparkError:
        """Return what Spark says of an error of a task."""
        mark(error, TOKEN)
        return cls("\n".join([str(error), *getattr(error, "__notes__", ())]))


class TaskKilledError(ChandyError):
    """An attempt at a task has been killed."""


def end_at(directory: Path, batch: int) -> int:
    """Return the end of the records of a batch, whose query has this working directory."""
    return 0 if batch < 0 else end_of((directory / "offsets" / str(batch)).read_text())


@attrs.define(eq=False)
class ReadableSink(Sink):
    """An output that other queries read before its batch has committed. It goes back with its query."""

    end: int = 0
    """The records before it can be read."""

    @property
    @override
    def guarantee(self) -> Guarantee:
        return Guarantee(Level.EXACTLY_ONCE, "a world says so")

    @override
    def begin(self, query: str, beginning: StartPoint) -> None:
        self.end = end_at(beginning.directory, beginning.batch)

    @override
    def resume(self, query: str, beginning: StartPoint, last: BatchId) -> None:
        self.end = end_at(beginning.directory, last)

    def take(self, rows: range, batch: BatchId) -> None:
        """Write a batch."""
        self.end = rows.stop


def _killed(shard: int, key: bytes, value: Value) -> bytes:
    raise TaskKilledError


@attrs.define(eq=False)
class Session:
    """The ``SparkSession`` of a driver.

    Args:
        scheduler: of the threads.
        hosts: the state hosts that tasks find on their executors.
        promises: what must hold.
    """

    scheduler: Scheduler
    hosts: Callable[[], list[WorldHost]]
    promises: Promises
    sinks: dict[str, Any] = attrs.field(factory=dict)
    """By query what takes its batches."""
    started: list[SparkQuery] = attrs.field(factory=list, init=False)
    writers: list[Writer] = attrs.field(factory=list, init=False)
    """Those that were started."""
    is_steady: bool = False
    """Whether all queries have been started once. From then on a start fails now and then."""
    pause: float = 1.0
    """Seconds between two batches at most."""
    _settings: dict[str, str] = attrs.field(factory=dict, init=False)

    @property
    def conf(self) -> Any:
        """Its settings."""
        own = self._settings
        return SimpleNamespace(
            get=lambda name, default: own.get(name, default), set=own.__setitem__, unset=own.pop
        )

    @property
    def streams(self) -> Any:
        """Its queries that run."""
        return SimpleNamespace(active=[query for query in self.started if query.isActive])

    def begin(self, query: SparkQuery) -> None:
        """Run batch after batch of a query, on a thread of its own."""
        refuses = self.is_steady and self.promises.world.refuses_starts
        refused = refuses and self.scheduler.choices.stream("starts").random() < REFUSED
        runtime.sleep(0.1 * self.scheduler.choices.stream("starts").random())
        if refused:
            raise SparkError("the query cannot be started now")
        same = [one for one in self.started if one.name == query.name and one.isActive]
        self.promises.check(not same, f"two runs of {query.name} go on at once")
        self.started = [one for one in self.started if one.isActive] + [query]
        self.writers.append(query.writer)
        runtime.thread(query.run, f"stream {query.name}").start()


@attrs.define(eq=False)
class Writer:
    """The ``DataStreamWriter`` of a query."""

    session: Session
    query: str
    """Its name in the pipeline."""
    tasks: int | None = None
    """How many tasks run its operator; None: as it happens."""
    _jwrite: Any = attrs.field(
        factory=lambda: SimpleNamespace(extraOptions={}, trigger=None, foreachBatchWriter=None), init=False
    )

    @property
    def _spark(self) -> Session:
        return self.session

    def option(self, name: str, value: str) -> None:
        """See ``DataStreamWriter``."""
        self._jwrite.extraOptions = {**self._jwrite.extraOptions, name: value}

    def queryName(self, name: str) -> None:  # noqa: N802 (as in PySpark)
        """See ``DataStreamWriter``."""
        self.option("queryName", name)

    def start(self) -> SparkQuery:
        """See ``DataStreamWriter``."""
        options = self._jwrite.extraOptions
        directory = Path(options["checkpointLocation"].removeprefix("file://"))
        query = SparkQuery(self, options["queryName"], directory)
        self.session.begin(query)
        return query


class SparkQuery:
    """One life of a query under Spark: a ``StreamingQuery``.

    Args:
        writer: that it was started with.
        name: of the query.
        directory: its working directory.
    """

    def __init__(self, writer: Writer, name: str, directory: Path) -> None:
        self.writer, self.name, self.directory = writer, name, directory
        self.session = writer.session
        self.id = str(json.loads((directory / "metadata").read_text())["id"])
        self.runId = runtime.token()
        self.status = {"message": "Initializing sources"}
        self.error: Exception | None = None
        self.is_stopped = False
        """Whether nothing of it goes on."""
        self._ended = runtime.flag()
        (directory / "offsets").mkdir(exist_ok=True)
        (directory / "commits").mkdir(exist_ok=True)
        self.committed: int = newest_committed(directory)
        planned = numbers_in(directory / "offsets")
        self.ends = {-1: 0} | {batch: end_at(directory, batch) for batch in planned}
        """By batch the offset at which it ends."""

    @property
    def planned(self) -> int:
        """The newest batch that was planned."""
        return max(self.ends)

    # --- StreamingQuery -------------------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:  # noqa: N802
        """See ``StreamingQuery``."""
        return not self._ended.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """See ``StreamingQuery``."""
        has_ended = self._ended.wait(timeout)
        if has_ended and self.error is not None:
            raise self.error
        return has_ended

    def stop(self) -> None:
        """Stop it; when this returns, nothing of it goes on in the driver."""
        self.is_stopped = True
        self._ended.wait()

    # --- running --------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run batch after batch."""
        random = self.session.scheduler.choices.stream("queries")
        try:
            runtime.sleep(0.02 * random.random())
            while not self.is_stopped:
                runtime.sleep(self.session.pause * random.random())
                if self.planned == self.committed:
                    if self.is_stopped or not self._plan(random.randrange(1, 5)):
                        self.status = {"message": "Waiting for data to arrive"}
                        continue
                    runtime.sleep(0.01)
                self.status = {"message": "Processing new data"}
                if not self._batch():
                    break
        except Exception as raised:  # noqa: BLE001 (the driver hears of it)
            if not self.is_stopped:
                self.error = SparkError.of(raised)
        self._ended.set()

    def _plan(self, size: int) -> bool:
        start, sinks = self.ends[self.planned], self.session.sinks
        end = max(start, min([start + size, *(sinks[producer].end for producer in READS[self.name])]))
        if end == start and READS[self.name]:
            return False
        batch = self.planned + 1
        times = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        (self.directory / "offsets" / str(batch)).write_text(f"v1\n{times}\n{end}")
        self.ends[batch] = end
        return True

    def _batch(self) -> bool:
        """Run the planned batch; return whether it has committed."""
        batch, shards = self.planned, SHARDS[self.name]
        tasks = 1 if self.session.scheduler.choices.stream("tasks").random() < WIDE else shards
        tasks = self.writer.tasks or tasks
        left = [tuple(range(shards))[number::tasks] for number in range(tasks)]
        waiting: list[BaseException | None] = []
        done = runtime.condition()

        def work(shards: tuple[int, ...]) -> None:
            error: BaseException | None = None
            try:
                self._task(batch, shards)
            except ChandyError as raised:
                error = raised
            with done:
                waiting.append(error)
                done.notify_all()

        for some in left:
            runtime.thread(work, f"task {self.name} {batch} {some}", (some,)).start()
        with done:
            done.wait_for(lambda: len(waiting) == len(left))
        if self.is_stopped:
            return False
        for error in waiting:
            if error is not None:
                raise error
        # What it takes can be read before the batch has committed.
        self.session.sinks[self.name].take(range(self.ends[batch - 1], self.ends[batch]), BatchId(batch))
        runtime.sleep(0.01)
        if self.is_stopped:  # by another thread
            return False  # type: ignore[unreachable]
        (self.directory / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        self.committed = batch
        for log in ("offsets", "commits"):
            (self.directory / log / str(batch - KEPT)).unlink(missing_ok=True)
        return True

    def _task(self, batch: int, shards: tuple[int, ...]) -> None:
        random = self.session.scheduler.choices.stream("tasks")
        task = BeginTask(self.id, BatchId(batch), uid_of(self.name), shards)
        start, end = self.ends[batch - 1], self.ends[batch]
        for attempt in range(ATTEMPTS):
            if random.random() < SPECULATIVE:
                # It may go on when the batch has long committed.
                name = f"speculative {self.name} {batch} {shards}"
                runtime.thread(lambda: self._speculate(task, start, end), name).start()
            try:
                self._run_task(task, start, end)
                if random.random() < UNHEARD:
                    # Spark has not heard of its success.
                    continue
                return
            except ChandyError:
                if attempt == ATTEMPTS - 1 or self.is_stopped:
                    raise
                runtime.sleep(0.1)

    def _speculate(self, task: BeginTask, start: int, end: int) -> None:
        with suppress(ChandyError):
            self._run_task(task, start, end, SLOW_SECONDS)

    def _run_task(self, task: BeginTask, start: int, end: int, longest: float = 0.0) -> None:
        random = self.session.scheduler.choices.stream("tasks")
        deadline = runtime.monotonic() + PATIENCE
        while True:
            hosts = self.session.hosts()
            try:
                if not hosts:
                    raise HostLostError("nowhere", "no host has started")
                keys, update = added_to(self.name, task.shards, start, end)
                if random.random() < KILLED:
                    update = _killed
                found = run_task(
                    task_client(hosts[random.randrange(len(hosts))]), task, keys, update, longest
                )
                self.session.promises.staged(self.name, start, found)
                return
            except (HostLostError, HostDismissedError, ShardMovingError):
                if runtime.monotonic() >= deadline or self.is_stopped:
                    raise
            runtime.sleep(0.5)


@contextmanager
def simulated(open_store: Callable[[str], Any], boot_id: Callable[[], str]) -> Iterator[None]:
    """Have the product start queries of a world and restore from its stores and disks inside of the ``with``."""

    def set_field(java: object, name: str, value: object) -> None:
        setattr(java, name, value)

    with pytest.MonkeyPatch.context() as patch:
        for module in (starting, batch_function):
            patch.setattr(module, "field", getattr)
            patch.setattr(module, "set_field", set_field)
        # Tasks end with their batch.
        patch.setattr(runs, "has_tasks", lambda query: False)
        patch.setattr(restore_point, "open_store", open_store)
        patch.setattr(local_recovery, "boot_id", boot_id)
        yield
