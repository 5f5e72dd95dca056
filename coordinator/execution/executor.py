"""Takes requests for checkpoints, and carries out what the protocol instructs, by threads.

One thread hands the instructions on in their order, so that a state host never gets an abort before the order that it
aborts. Each store has threads of its own for all reading and writing: one that does not answer holds up nothing that
goes to another. Of these, one thread writes the manifests, one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from operator import methodcaller

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.manifest import CheckpointKind
from ...storage.logs import carried, caused_by, logger
from ...storage.long_waits import told_if_slow
from ...storage.store import Store
from ..checkpoint import Checkpoint
from ..protocol import events, host_watch, instructions
from ..protocol.decisions import Stopped
from ..protocol.errors import CheckpointError
from ..protocol.reasons import Reason
from ..protocol.requests import Request
from ..protocol.statistics import Statistics
from .checkpoint_jobs import CheckpointJobs
from .connected_hosts import ConnectedHosts
from .dispatch import Dispatcher, Job, JobLane
from .job_steps import take_all
from .locked_protocol import CausedInstruction, LockedProtocol
from .progress import Progress
from .recording import Recording
from .reports import Reports
from .successor_watch import SuccessorWatch
from .workers import StoreWorkers, lane_workers

log = logger(__name__)

_COMMIT_POLL_SECONDS = 0.02
"""How soon the commit of a cut is noticed in an idle query; polled only while a checkpoint waits for one."""
_STOP_SECONDS = 30.0
"""How long closing waits for a manifest that is being written, and then for all else that is being done."""


class CheckpointExecutor:
    """Runs the checkpoints of one pipeline."""

    def __init__(
        self,
        protocol: LockedProtocol,
        *,
        catalog: Catalog,
        store: Store,
        open_store: Callable[[str], Store],
        watch: SuccessorWatch,
        progress: Progress,
        clock: Callable[[], float],
        host_timeout: float,
        reports: Reports,
        recording: Recording,
    ) -> None:
        """Start the threads.

        Args:
            protocol: the protocol of the pipeline.
            catalog: where manifests are committed.
            store: the pipeline's own store.
            open_store: opens other stores, by their URIs.
            watch: is told of a successor, and proves that there is no successor.
            progress: the queries on the driver's disk.
            clock: seconds since 1970, never going back.
            host_timeout: seconds of silence after which a state host is taken for lost.
            reports: is told of what happens.
            recording: looks for shadows when a checkpoint begins.
        """
        self.protocol = protocol
        self.watch = watch
        self.hosts = ConnectedHosts(
            self.protocol,
            watch.proof,
            times=progress.times,
            clock=clock,
            timeout=host_timeout,
            reports=reports,
        )
        self._threads_end = runtime.flag()
        """Set once the threads are to end, and what they wait for."""
        self.jobs = CheckpointJobs(
            self.protocol,
            watch,
            catalog=catalog,
            store=store,
            open_store=open_store,
            progress=progress,
            clock=clock,
            is_closed=self._threads_end.is_set,
            reports=reports,
            recording=recording,
        )
        self.send = self.hosts.send
        self.dispatcher = Dispatcher(self.protocol, self.jobs, progress, reports, self)
        self._root = store.uri
        self._clock = clock
        self._reports = reports
        self._futures: dict[Request, Future[Checkpoint]] = {}
        self._own = StoreWorkers(self._carry_out)
        self._elsewhere: dict[str, StoreWorkers] = {}
        """By URI, for savepoints; changed by the dispatching thread alone."""
        self._others = {lane: lane_workers(lane, self._carry_out) for lane in JobLane if not lane.is_of_store}
        self._dispatching = runtime.thread(target=carried(self._dispatch), name="chandy-dispatch")
        self._threads = [
            self._dispatching,
            self._watcher("chandy-watch", self._look_at_the_time),
            self._watcher("chandy-commits", self._look_for_commits),
        ]
        for thread in self._threads:
            thread.start()

    def request(
        self, kind: CheckpointKind, *, target: str | None = None, is_final: bool = False
    ) -> Future[Checkpoint]:
        """Request a checkpoint; the future has it, or the ``CheckpointError`` that ended it.

        Args:
            kind: which kind.
            target: URI to write it to; None: the pipeline's own store.
            is_final: whether a stop waits for it.
        """
        future: Future[Checkpoint] = runtime.future()
        # The caller cannot cancel it: others may wait for the checkpoint, too.
        future.set_running_or_notify_cancel()

        def expect(request: Request) -> None:
            self._futures[request] = future

        # Before the instructions: one of them may end the request at once.
        self.protocol.handle(events.CheckpointRequested(kind, target, is_final), before=expect)
        if not self._dispatching.is_alive():
            self._answer_the_rest()
        return future

    def statistics(self) -> Statistics:
        """Counts, records and summaries of the checkpoints so far."""
        # Summaries of thousands of checkpoints are made beside the lock, for which batches wait.
        return self.protocol.history().snapshot()

    # --- threads --------------------------------------------------------------------------------------------

    def _watcher(self, name: str, look: Callable[[], float | None]) -> runtime.Thread:
        args = (look, self.protocol.watcher())
        return runtime.thread(target=carried(self._watch), args=args, name=name)

    def _watch(self, look: Callable[[], float | None], wake: runtime.Flag) -> None:
        """Look again and again, after the seconds that a look returns or when something has happened."""
        while not self._threads_end.is_set():
            try:
                pause = look()
            except Exception:
                # Nothing would ever expire if the thread ended.
                log.exception("watching failed")
                pause = host_watch.LOOK_SECONDS
            wake.wait(pause)
            wake.clear()

    def _look_at_the_time(self) -> float:
        """Look for deadlines and for silent hosts."""
        self.hosts.look()
        for store in self._all_workers():
            store.staff()
        for workers in self._others.values():
            workers.staff()
        deadline = self.protocol.next_deadline()
        if deadline is not None and self._clock() >= deadline:
            self.protocol.handle(events.Tick())
        pause = host_watch.LOOK_SECONDS
        return max(0.0, pause if deadline is None else min(pause, deadline - self._clock()))

    def _look_for_commits(self) -> float | None:
        """Look for commits of cuts, on the driver's disk, which may not answer."""
        take_all(self.jobs.notice_commits(), self._threads_end)
        return _COMMIT_POLL_SECONDS if self.protocol.waiting_for_commits() else None

    def _dispatch(self) -> None:
        """Hand instructions on, in their order."""
        while (given := self.protocol.instructions.get()) is not None:
            if isinstance(given, runtime.Flag):
                self.submit(JobLane.MANIFESTS, self._root, Job(methodcaller("set"), given))
                continue
            with caused_by(given.cause):
                try:
                    take_all(self.dispatcher.hand_on(given.instruction), self._threads_end)
                except Exception:
                    log.exception("an instruction failed", instruction=type(given.instruction).__name__)

    def _carry_out(self, job: Job) -> None:
        with caused_by(job.cause):
            take_all(self.dispatcher.steps_of(job), self._threads_end)

    # --- what the dispatcher hands on -----------------------------------------------------------------------

    def submit(self, lane: JobLane, root: str, job: Job) -> None:
        """Have a job carried out by the threads of its lane."""
        workers = self._workers(root).lanes if lane.is_of_store else self._others
        workers[lane].submit(job)

    def _workers(self, root: str) -> StoreWorkers:
        """The threads for a store."""
        if root == self._root:
            return self._own
        found = self._elsewhere.get(root)
        if found is None:
            self._elsewhere = {uri: one for uri, one in self._elsewhere.items() if not one.is_idle}
            found = self._elsewhere[root] = StoreWorkers(self._carry_out)
        return found

    def resolve(self, order: instructions.Resolve) -> None:
        """Give a request its checkpoint."""
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_result(Checkpoint.of(order.manifest, order.root))

    def reject(self, order: instructions.Reject) -> None:
        """Fail a request."""
        reason = order.error.reason
        # What somebody must know: not that a policy refused a request, or that a newer checkpoint came first.
        is_news = reason.counted or reason in (Reason.FENCED, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING)
        write = log.warning if is_news else log.info
        write("no checkpoint", id=order.error.id, reason=reason.value, detail=order.error.detail)
        self._reports.news.failed(order.error)
        if (future := self._futures.pop(order.request, None)) is not None:
            future.set_exception(order.error)

    # --- end ------------------------------------------------------------------------------------------------

    def await_manifests(self) -> bool:
        """Wait until every manifest that is being written is written or has failed; return whether that is so.

        While the store does not answer, it is not known which checkpoint is the latest.
        """
        reached = runtime.flag()
        self.protocol.instructions.put(reached)
        return reached.wait(_STOP_SECONDS)

    @property
    def is_closed(self) -> bool:
        """Whether it carries nothing out any more."""
        return self._threads_end.is_set()

    def abandon(self) -> None:
        """Tell the hosts to stop and leave all else as it is, because the interpreter is about to end."""
        self._threads_end.set()
        self.hosts.stop()

    def close(self) -> None:
        """Abort pending checkpoints, tell the hosts to stop, and end the threads.

        It waits for what is being written and deleted, but not for ever: what hangs is named in the log and left
        behind. Every future has an outcome when this returns.
        """
        if self._threads_end.is_set():
            return
        asked = list(self._futures.values())
        self.protocol.handle(Stopped())
        self._await_all_manifests()
        self._threads_end.set()
        self.protocol.wake_watchers()
        self.hosts.stop()
        self.protocol.instructions.put(None)
        deadline = runtime.monotonic() + _STOP_SECONDS
        with told_if_slow(
            log, "what is being written and deleted", jobs=self._unfinished(runtime.monotonic())
        ):
            for thread in self._threads:
                thread.join(max(0.0, deadline - runtime.monotonic()))
            left = self._unfinished(deadline)
        if left:
            log.error("closed although something hangs; it is left behind", seconds=_STOP_SECONDS, what=left)
        self._answer_the_rest()
        runtime.wait(asked, _STOP_SECONDS)
        over = self.protocol.life().why_over
        assert over is not None
        self._refuse_the_rest(over)

    def _await_all_manifests(self) -> None:
        """Wait for the manifests of savepoints, too."""
        deadline = runtime.monotonic() + _STOP_SECONDS
        self.await_manifests()
        for workers in self._all_workers():
            workers.lanes[JobLane.MANIFESTS].wait(deadline)

    def _unfinished(self, deadline: float) -> list[str]:
        """Wait for jobs until a time on the monotonic clock, and return the names of those that are left."""
        left = (job for workers in self._all_workers() for job in workers.wait(deadline))
        # The event of ``await_manifests`` is queued behind the manifests, and is no work.
        return sorted({job.name for job in left if not isinstance(job.instruction, runtime.Flag)})

    def _all_workers(self) -> list[StoreWorkers]:
        return [self._own, *self._elsewhere.values()]

    def _answer_the_rest(self) -> None:
        """Give the answers that came after the dispatching thread had ended."""
        with contextlib.suppress(runtime.Empty):
            while True:
                match self.protocol.instructions.get_nowait():
                    case CausedInstruction(instructions.Resolve() as answer):
                        self.resolve(answer)
                    case CausedInstruction(instructions.Reject() as answer):
                        self.reject(answer)

    def _refuse_the_rest(self, reason: Reason) -> None:
        """Fail the requests that have no answer: nobody waits for their manifests any more."""
        detail = "its outcome was not known in time; `chandy list` tells whether it is complete"
        for request in list(self._futures):
            self.reject(instructions.Reject(request, CheckpointError(None, reason, detail)))
