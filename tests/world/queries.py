"""Queries as Spark runs them: planned, run by tasks that are tried again, sunk, committed; and their progress on disk.

Batches of a query come one after the other. A batch that was planned is run again with the same offsets after a restart
in place. A task that fails runs again up to three times, and then its query fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from chandy.coordinator.errors import StaleQueryError
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.state.errors import HostDismissedError, HostLostError, ShardMovingError
from chandy.state.host.cache import Value
from chandy.state.rpc.messages import BatchTimes, BeginTask
from chandy.storage import runtime
from chandy.storage.checkpoints.manifest import ChannelRecord, Manifest, OutputRecord
from chandy.storage.errors import ChandyError
from chandy.storage.ids import BatchId, CheckpointId

from .promises import Promises
from .records import READS, SHARDS, added_to, uid_of
from .scheduler import Scheduler
from .state_hosts import WorldHost
from .tasks import run_task, task_client

if TYPE_CHECKING:
    from .supervising import WorldDefinition

ATTEMPTS: Final = 4
"""How often Spark tries a task."""
UNHEARD, SPECULATIVE, KILLED, WIDE = 0.05, 0.05, 0.02, 0.3
"""How often Spark does not hear of a task's success, begins a second attempt beside the first, has an attempt killed in
its midst, and has one task for all shards."""
SLOW_SECONDS: Final = 3.0
"""How long a second attempt stands still at most, before it reads and before it has anything staged."""
PATIENCE: Final = 15.0
"""Seconds that a task waits for another owner of its shards, as with standbys."""


class TaskKilledError(ChandyError):
    """An attempt at a task has been killed."""


@attrs.define(eq=False)
class Run:
    """One life of a query under Spark, with its working directory and its sink."""

    query: str
    query_id: str
    number: int
    ends: dict[int, int]
    """By batch the offset at which it ends: the offset log."""
    committed: int
    sunk: int
    """The newest batch whose output can be read; it is readable before the batch has committed."""
    definition: WorldDefinition
    is_started: bool = False
    is_stopped: bool = False
    """Whether nothing of it goes on."""
    has_ended: bool = False
    ended: bool = False
    """Whether the driver has ended it."""
    resumed: None = None

    @property
    def planned(self) -> int:
        return max(self.ends)

    def logs_as_known(self) -> Path:
        """Return a directory without logs."""
        return Path("nowhere")

    planned_logs = logs_as_known


def _killed(shard: int, key: bytes, value: Value) -> bytes:
    raise TaskKilledError


@attrs.define(eq=False)
class Queries:
    """The queries of one driver, as ``Progress`` asks for them.

    Args:
        scheduler: of the threads.
        folder: on the driver's disk.
        hosts: the state hosts that tasks find on their executors.
        ended: is told when a run has ended by an error.
    """

    scheduler: Scheduler
    folder: Path
    hosts: Callable[[], list[WorldHost]]
    ended: Callable[[Run, Exception], object]
    promises: Promises
    runs: dict[str, Run] = attrs.field(factory=dict)
    closed: set[tuple[str, int]] = attrs.field(factory=set)
    """The epochs that are closed, by query and checkpoint."""
    sinks: dict[str, TransactionalSink] = attrs.field(factory=dict)
    """By query whose rows are published."""
    _newest: dict[str, Run] = attrs.field(factory=dict, init=False)
    """By query the run that was started last."""
    pause: float = 1.0
    """Seconds between two batches at most."""

    # --- running --------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Run batch after batch, on a thread of its own."""
        before = self._newest.get(run.query)
        self.promises.check(before is None or before.has_ended, f"two runs of {run.query} go on at once")
        self._newest[run.query] = run
        run.is_started = True
        runtime.thread(lambda: self._run(run), f"stream {run.query}").start()

    def stop(self, run: Run) -> None:
        """Stop a run; when this returns, nothing of it goes on in the driver."""
        run.is_stopped = True
        if run.query in self.sinks:
            self.sinks[run.query].interrupt()
        while run.is_started and not run.has_ended:
            runtime.sleep(0.1)

    def _run(self, run: Run) -> None:
        random = self.scheduler.choices.stream("queries")
        error: Exception | None = None
        try:
            while not run.is_stopped:
                runtime.sleep(self.pause * random.random())
                if run.planned == run.committed:
                    if run.is_stopped or not self._plan(run, random.randrange(1, 5)):
                        continue
                    runtime.sleep(0.01)
                if not self._batch(run):
                    break
        except Exception as raised:  # noqa: BLE001 (the driver hears of it)
            error = raised
        run.has_ended = True
        if error is not None and not run.is_stopped:
            self.ended(run, error)

    def _plan(self, run: Run, size: int) -> bool:
        start = run.ends[run.planned]
        limit = [self.runs[producer].ends[self.runs[producer].sunk] for producer in READS[run.query]]
        end = max(start, min([start + size, *limit]))
        if end == start and READS[run.query]:
            return False
        run.ends[run.planned + 1] = end
        return True

    def _batch(self, run: Run) -> bool:
        """Run the planned batch; return whether it has committed."""
        batch, left = run.planned, [(shard,) for shard in range(SHARDS[run.query])]
        if self.scheduler.choices.stream("tasks").random() < WIDE:
            left = [tuple(range(SHARDS[run.query]))]
        waiting: list[BaseException | None] = []
        done = runtime.condition()

        def work(shards: tuple[int, ...]) -> None:
            error: BaseException | None = None
            try:
                self._task(run, batch, shards)
            except ChandyError as raised:
                error = raised
            with done:
                waiting.append(error)
                done.notify_all()

        for shards in left:
            runtime.thread(work, f"task {run.query} {batch} {shards}", (shards,)).start()
        with done:
            done.wait_for(lambda: len(waiting) == len(left))
        if run.is_stopped:
            return False
        for error in waiting:
            if error is not None:
                raise error
        if run.query in self.sinks:
            rows: Any = list(range(run.ends[batch - 1], run.ends[batch]))
            self.sinks[run.query].take(rows, BatchId(batch))
        # What is sunk can be read before the batch has committed.
        run.sunk = batch
        runtime.sleep(0.01)
        if run.is_stopped:
            return False
        run.committed = batch
        return True

    def _task(self, run: Run, batch: int, shards: tuple[int, ...]) -> None:
        random = self.scheduler.choices.stream("tasks")
        task = BeginTask(run.query_id, batch, uid_of(run.query), shards)
        start, end = run.ends[batch - 1], run.ends[batch]
        for attempt in range(ATTEMPTS):
            if random.random() < SPECULATIVE:
                # It may go on when the batch has long committed.
                name = f"speculative {run.query} {batch} {shards}"
                runtime.thread(lambda: self._speculate(run, task, start, end), name).start()
            try:
                self._run_task(run, task, start, end)
                if random.random() < UNHEARD:
                    # Spark has not heard of its success.
                    continue
                return
            except ChandyError:
                if attempt == ATTEMPTS - 1 or run.is_stopped:
                    raise
                runtime.sleep(0.1)

    def _speculate(self, run: Run, task: BeginTask, start: int, end: int) -> None:
        with suppress(ChandyError):
            self._run_task(run, task, start, end, SLOW_SECONDS)

    def _run_task(self, run: Run, task: BeginTask, start: int, end: int, longest: float = 0.0) -> None:
        random = self.scheduler.choices.stream("tasks")
        deadline = runtime.monotonic() + PATIENCE
        while True:
            hosts = self.hosts()
            try:
                if not hosts:
                    raise HostLostError("nowhere", "no host has started")
                keys, update = added_to(run.query, task.shards, start, end)
                if random.random() < KILLED:
                    update = _killed
                found = run_task(
                    task_client(hosts[random.randrange(len(hosts))]), task, keys, update, longest
                )
                self.promises.staged(run.query, start, found)
                return
            except (HostLostError, HostDismissedError, ShardMovingError):
                if runtime.monotonic() >= deadline or run.is_stopped:
                    raise
            runtime.sleep(0.5)

    # --- Progress -------------------------------------------------------------------------------------------

    def _disk(self) -> None:
        """The driver's disk takes its time, now and then much."""
        random = self.scheduler.choices.stream("disk")
        self.scheduler.sleep(4.0 * random.random() ** 6, "the driver's disk")

    def begun(self, query: str) -> int:
        self._disk()
        return self.runs[query].planned

    def current_batch(self, query: str) -> int | None:
        self._disk()
        run = self.runs[query]
        return run.committed if run.has_ended else None

    def is_committed(self, query: str, batch: int) -> bool:
        return self.runs[query].committed >= batch

    def times(self, query_id: str, batch: int) -> BatchTimes:
        if not any(run.query_id == query_id for run in self.runs.values()):
            raise StaleQueryError(query_id, batch)
        return BatchTimes(0, 0, 0)

    @contextmanager
    def hold(self, query: str, batch: int) -> Iterator[Mapping[str, Path]]:
        self._disk()
        run = self.runs[query]
        if run.committed < batch:
            # The query has gone back meanwhile, and with it its directory.
            raise OSError("not in the directory")
        path = self.folder / f"{run.query_id}-{batch}"
        path.write_text(json.dumps(run.ends[batch]))
        yield {"offsets": path}

    def close_epoch(self, query: str, checkpoint: int, cut: int) -> None:
        self._disk()
        self.closed.add((query, checkpoint))
        if query in self.sinks:
            self.promises.epoch_ends[checkpoint] = self.runs[query].ends[cut]
            self.sinks[query].close_epoch(CheckpointId(checkpoint), BatchId(cut))

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        self.scheduler.point()
        self.promises.check((query, checkpoint) in self.closed, "a sink is asked for an epoch that is open")
        return self.sinks[query].pre_commit(CheckpointId(checkpoint)) if query in self.sinks else ()

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        return ()

    def commit(self, query: str, checkpoint: int) -> None:
        if query in self.sinks:
            self.sinks[query].commit(CheckpointId(checkpoint))
