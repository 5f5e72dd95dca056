"""The product's jobs, dispatcher and gate of the hosts without threads: a test says what takes its next step."""

from __future__ import annotations

import queue
from collections.abc import Mapping, MutableSequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import attrs
from typing_extensions import override

from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.execution.checkpoint_jobs import CheckpointJobs
from chandy.coordinator.execution.connected_hosts import ConnectedHosts
from chandy.coordinator.execution.dispatch import Dispatcher, Job, JobLane
from chandy.coordinator.execution.job_steps import JobSteps
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.progress import Progress
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol.requests import Request
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.state.rpc.messages import BatchTimes
from chandy.state.rpc.orders import Order
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import ChannelRecord, Manifest, OutputRecord
from chandy.storage.errors import ChandyError, FencedError
from chandy.storage.store import Store

from .life_events import RUNS, going_back
from .stand_ins import RecordedReports
from .strict_machine import StrictStateMachine


class UnreadableError(Exception):
    """The one error that a test puts into a job without the job expecting it."""


@attrs.frozen(eq=False)
class Work:
    """A job, as far as it has come."""

    lane: JobLane
    root: str
    job: Job
    steps: JobSteps


class StrictDispatcher(Dispatcher):
    """Lets through what a test does not expect."""

    @override
    def _failed(self, job: Job, error: Exception) -> None:
        if not isinstance(error, UnreadableError):
            raise error
        super()._failed(job, error)


class SteppedExecutor:
    """One life of a coordinator, as far as checkpoints go. A subclass has the queries, the stores and the clock.

    It is what ``CheckpointExecutor`` is, with lists in place of threads. Without a ``Progress`` it is that, too.
    """

    def __init__(
        self, machine: StrictStateMachine, catalog: Catalog, progress: Progress | None = None
    ) -> None:
        progress = progress or self
        self.machine = machine
        self.catalog = catalog
        self.root = machine.root
        self.is_over = False
        self.works: MutableSequence[Work] = []
        """All jobs but the next ones."""
        self.manifests: MutableSequence[Work] = []
        """What writes manifests of the pipeline's own."""
        self.at_work: Work | None = None
        self.outcomes: dict[Request, Manifest | CheckpointError] = {}
        self.protocol = LockedProtocol(machine, self.tick)
        # Every look is made: what a look counts for afterwards, others wait for, and here nobody waits.
        self.watch = SuccessorWatch(
            catalog,
            machine.generation,
            trusts_look=0.0,
            hold_lease=lambda: 0.0,
            within=None,
            clock=self.tick,
        )
        self.watch.listen(self.fenced)
        reports: Any = RecordedReports()
        reports.state_lost, reports.must_fail = self.state_lost, self.must_fail
        reports.shards_not_opened = self.shards_not_opened
        self.jobs = CheckpointJobs(
            self.protocol,
            self.watch,
            catalog=catalog,
            store=catalog.store,
            open_store=self.open,
            progress=progress,
            clock=self.tick,
            is_closed=lambda: False,
            reports=reports,
        )
        self.connected = ConnectedHosts(
            self.protocol,
            self.watch.proof,
            times=progress.times,
            clock=self.tick,
            timeout=1e9,
            reports=reports,
        )
        self.dispatcher = StrictDispatcher(self.protocol, self.jobs, progress, reports, self)
        self._handing_on: JobSteps | None = None

    # --- what a subclass knows ------------------------------------------------------------------------------

    def tick(self) -> float:
        """Return the time, which goes on."""
        raise NotImplementedError

    def open(self, uri: str) -> Store:
        """Open a store."""
        raise NotImplementedError

    def begun(self, query: str) -> int:
        """As ``Progress``, and so are the next ones."""
        raise NotImplementedError

    def is_committed(self, query: str, batch: int) -> bool:
        raise NotImplementedError

    def hold(self, query: str, batch: int) -> AbstractContextManager[Mapping[str, Path]]:
        raise NotImplementedError

    def current_batch(self, query: str) -> int | None:
        return None

    def times(self, query_id: str, batch: int) -> BatchTimes:
        return BatchTimes(0, 0, 0)

    def close_epoch(self, query: str, checkpoint: int, cut: int) -> None:
        """There are no sinks."""

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        return ()

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        return ()

    def commit(self, query: str, checkpoint: int) -> None:
        """There are no sinks."""

    def send(self, host: str, order: Order) -> None:
        """There are no hosts."""

    def fenced(self, error: FencedError) -> None:
        """There is a successor."""
        self.is_over = True

    def state_lost(self, why: str) -> None:
        raise AssertionError(f"state is lost: {why}")

    def must_fail(self, error: ChandyError) -> None:
        raise AssertionError(f"the pipeline has failed: {error}")

    def shards_not_opened(self, query_id: str, why: str, code: object = None) -> None:
        raise AssertionError(f"what was restored is damaged: {why}")

    def hangs(self, work: Work) -> bool:
        """Return whether the store of a job does not answer."""
        return False

    # --- what the dispatcher hands on -----------------------------------------------------------------------

    def submit(self, lane: JobLane, root: str, job: Job) -> None:
        work = Work(lane, root, job, self.dispatcher.steps_of(job))
        if lane is JobLane.ANSWERS:
            for _ in work.steps:
                pass
        else:
            is_own = lane is JobLane.MANIFESTS and root == self.root
            (self.manifests if is_own else self.works).append(work)

    def resolve(self, order: do.Resolve) -> None:
        assert order.request not in self.outcomes
        self.outcomes[order.request] = order.manifest

    def reject(self, order: do.Reject) -> None:
        assert order.request not in self.outcomes
        self.outcomes[order.request] = order.error

    # --- steps ----------------------------------------------------------------------------------------------

    def handle(self, event: on.Event[on.Answer]) -> on.Answer:
        """Let the machine handle an event; its instructions wait."""
        return self.protocol.handle(event)

    @property
    def instructions(self) -> int:
        """How many instructions are not handed on yet."""
        return self.protocol.instructions.qsize() + (self._handing_on is not None)

    def dispatch(self) -> None:
        """Let the dispatcher take its next step."""
        if self._handing_on is None:
            try:
                given: Any = self.protocol.instructions.get_nowait()
            except queue.Empty:
                return
            self._handing_on = self.dispatcher.hand_on(given.instruction)
        if next(self._handing_on, self) is self:
            self._handing_on = None

    def ready(self, works: MutableSequence[Work]) -> list[Work]:
        """Return those that can take a step: they have a place in their lane, and their store answers."""
        found, taken = [], dict[tuple[JobLane, str], int]()
        for work in works:
            place = taken[work.lane, work.root] = taken.get((work.lane, work.root), 0) + 1
            if place <= work.lane.limit and not self.hangs(work):
                found.append(work)
        return found

    def work(self, works: MutableSequence[Work], number: int) -> None:
        """Let one of the jobs that can take a step take it; nothing if there is none."""
        if ready := self.ready(works):
            self.at_work = ready[number % len(ready)]
            if next(self.at_work.steps, self) is self:
                works.remove(self.at_work)
            self.at_work = None

    def notice_commits(self) -> None:
        """Look for commits of cuts, as the product does on a thread of its own."""
        for _ in self.jobs.notice_commits():
            pass


class SteppedRollback:
    """The steps back of one life, as ``PipelineRollback`` takes them, where there are neither processes nor records."""

    life: SteppedExecutor

    def check_not_fenced(self) -> None:
        """Raise if there is a successor."""
        self.life.watch.check_now()

    def stop_runs(self) -> None:
        """Nothing runs by itself."""

    def suspend_checkpoints(self) -> None:
        """Abort the checkpoints in progress."""
        self.life.handle(going_back("state lost"))

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, Any]:
        """Return no run: all go back."""
        return {}

    def forget_resumable(self) -> None:
        """There are no records."""

    def release_runs(self) -> None:
        """No state host has the runs that are over."""

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        """Let checkpoints begin again."""
        self.life.handle(RUNS)
        self.life.handle(on.PipelineRestored(point.manifest.id if point else None))

    def start_runs(self) -> None:
        """Nothing runs by itself."""

    def clean_up(self) -> None:
        """Nothing is left."""
