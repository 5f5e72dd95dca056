"""Which checkpoints are asked for, by users and by the schedule, which of them may begin, and why the others fail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from ...storage.checkpoints.manifest import CheckpointKind
from ...storage.ids import CheckpointId
from . import requests
from .decisions import CheckpointsFailed
from .errors import CheckpointError
from .failover import Failover
from .failures import FailureCounter
from .instructions import Instruction, Reject
from .life import Life
from .limits import ProtocolLimits
from .pending import CheckpointPhase, PendingCheckpoint
from .reasons import Reason
from .requests import Request, RequestQueue
from .schedule import Schedule


@attrs.frozen
class Load:
    """What is under way when a request is looked at."""

    pending: Sequence[PendingCheckpoint]
    deletions: int
    """How many dropped checkpoints are not deleted yet."""
    unpublished: int
    """How many completed checkpoints have output that its targets have not taken yet."""
    is_output_full: bool
    """Whether no more of them may wait."""
    state_is_known: bool
    """Whether hosts have claimed all shards that have changelogs."""

    @property
    def savepoints(self) -> int:
        """How many savepoints are pending."""
        return sum(one.is_savepoint for one in self.pending)

    @property
    def checkpoints(self) -> int:
        """How many pending checkpoints take a place: all but the savepoints."""
        return len(self.pending) - self.savepoints

    @property
    def is_planning(self) -> bool:
        """Whether the cut of a checkpoint is being chosen."""
        return any(one.phase is CheckpointPhase.PLANNING for one in self.pending)


@attrs.define
class Admission:
    """The requests of a pipeline, until each has begun or failed."""

    _failover: Failover
    limits: ProtocolLimits
    _out: list[Instruction]
    queue: RequestQueue
    schedule: Schedule
    failures: FailureCounter
    _number: int = attrs.field(default=0, init=False)
    """How many requests there have been."""
    last_completed_at: float | None = attrs.field(default=None, init=False)
    _moved_at: float = attrs.field(default=-math.inf, init=False)
    """When a checkpoint last began or ended, or the pipeline was restored: requests that wait have come closer."""

    @classmethod
    def of(cls, failover: Failover, limits: ProtocolLimits, out: list[Instruction]) -> Admission:
        """Make it without requests; the schedule has not started."""
        return cls(
            failover,
            limits,
            out,
            RequestQueue(limits.max_queued),
            Schedule(
                limits.interval,
                limits.initial_delay,
                interval_during_backlog=limits.interval_during_backlog,
            ),
            FailureCounter(limits.tolerable_failures),
        )

    @property
    def life(self) -> Life:
        """The pipeline's life."""
        return self._failover.life

    # --- requests -------------------------------------------------------------------------------------------

    def request(self, new: Request, load: Load) -> None:
        """Let a user's request wait, or reject one: this, or one that is less urgent."""
        savepoints = load.savepoints + self.queue.count(CheckpointKind.SAVEPOINT)
        if (over := self.life.why_over) is not None:
            because = self.life.because
            self.reject(new, over, f"it has ended{because and ': '}{because}")
        elif new.is_final and not self.life.takes_checkpoints:
            self.reject(new, Reason.JOB_FAILOVER, "it is going back to a checkpoint")
        elif new.is_savepoint and savepoints >= self.limits.max_queued:
            # They take no places, so nothing else bounds them.
            detail = f"{savepoints} savepoints are waiting or being written already"
            self.reject(new, Reason.TOO_MANY_REQUESTS, detail)
        elif (refused := self.queue.admit(new)) is not None:
            self.reject(refused, Reason.TOO_MANY_REQUESTS, f"{len(self.queue)} requests are waiting already")

    def new_request(
        self,
        kind: CheckpointKind,
        now: float,
        target: str | None = None,
        *,
        is_final: bool = False,
        for_moves: bool = False,
    ) -> Request:
        """Return a request with a number of its own."""
        self._number += 1
        return Request(self._number, kind, now, target, is_final, for_moves)

    def start_schedule(self, chance: float, now: float) -> None:
        """Let periodic checkpoints begin, unless they have."""
        if not self.life.is_over and self.schedule.next_at is None:
            self.schedule.start(now, chance)

    def request_what_is_due(self, now: float) -> None:
        """Request a periodic checkpoint if it is time for one, and none waits."""
        if self.life.is_over or not self.schedule.due(now):
            return
        self.schedule.ticked(now)
        if self.queue.holds(CheckpointKind.PERIODIC):
            return
        if (refused := self.queue.admit(self.new_request(CheckpointKind.PERIODIC, now))) is not None:
            self.reject(refused, Reason.TOO_MANY_REQUESTS, "the queue is full")

    def next(self, load: Load) -> Request | None:
        """Take the request out of the queue whose checkpoint is to begin now; None if none is."""
        if not self.life.takes_checkpoints or not load.state_is_known:
            return None
        request = requests.startable(
            self.queue,
            pending=load.checkpoints,
            max_concurrent=self.limits.max_concurrent,
            triggering=load.is_planning,
            deletions_waiting=load.deletions,
            is_output_full=load.is_output_full,
        )
        if request is not None:
            self.queue.remove(request)
        return request

    def reject(
        self, request: Request, reason: Reason, detail: str, checkpoint: CheckpointId | None = None
    ) -> None:
        """Answer a request with an error, and fail the pipeline if that is one failure too many."""
        error = CheckpointError(checkpoint, reason, detail)
        self._out.append(Reject(request, error))
        # As in Flink: a savepoint to a bad place is its user's problem, not the pipeline's. A drain asks more often
        # than the schedule would, and must not use up what the pipeline tolerates.
        if not request.is_savepoint and not request.for_moves and self.failures.failed(checkpoint, reason):
            self._failover.noticed.append(CheckpointsFailed(error))

    # --- time -----------------------------------------------------------------------------------------------

    def timeout(self, request: Request) -> float:
        """Return how many seconds the checkpoint of a request may take."""
        return self.limits.savepoint_timeout if request.is_savepoint else self.limits.timeout

    def moved(self, now: float) -> None:
        """Record that requests which wait have come closer to their turn."""
        self._moved_at = now

    def completed(self, checkpoint: CheckpointId, now: float) -> None:
        """Record that a checkpoint has completed, which was no savepoint."""
        self.failures.completed(checkpoint)
        self.last_completed_at = now

    def deadlines(self, is_output_full: bool) -> list[float]:
        """Return when requests fail, and when the next periodic one is made."""
        times = [
            self._waits_until(one) for one in self.queue if not self._waits_for_output(one, is_output_full)
        ]
        if not self.life.is_over and self.schedule.next_at is not None:
            times.append(self.schedule.next_at)
        return times

    def expire(self, now: float, load: Load) -> None:
        """Reject the requests that have waited too long."""
        for request in self.queue:
            if now >= self._waits_until(request) and not self._waits_for_output(request, load.is_output_full):
                self.queue.remove(request)
                self.reject(request, self._why_expired(load), self._why_requests_wait(load))

    def _waits_until(self, request: Request) -> float:
        """Return when a request that waits fails, unless a checkpoint begins or ends before."""
        return max(request.created_at, self._moved_at) + self.timeout(request)

    @staticmethod
    def _waits_for_output(request: Request, is_output_full: bool) -> bool:
        """Whether a request waits, for as long as it takes, until the queries go on: nobody asked for it."""
        return request.is_periodic and is_output_full

    def _why_expired(self, load: Load) -> Reason:
        if not self.life.takes_checkpoints:
            return Reason.JOB_FAILOVER
        # No participant has failed while a target is away.
        return Reason.TOO_MANY_REQUESTS if load.is_output_full else Reason.EXPIRED

    def _why_requests_wait(self, load: Load) -> str:
        if not self.life.takes_checkpoints:
            return "the pipeline has been going back to a checkpoint for longer than the request may wait"
        if not load.state_is_known:
            return "no state host has opened the shards that have changelogs"
        if load.is_output_full:
            return f"{load.unpublished} checkpoints have output that its targets have not taken yet"
        if load.deletions > self.limits.max_concurrent:
            return (
                f"{load.deletions} dropped checkpoints are still to be deleted, which the store does not do"
            )
        pending = ", ".join(f"{one.id} ({one.phase})" for one in load.pending)
        return f"no checkpoint could begin before these have ended: {pending}"

    # --- life cycle -----------------------------------------------------------------------------------------

    def suspend(self, cause: str) -> None:
        """Have requests of a stop fail, because the pipeline goes back; all others wait until it has."""
        for request in self.queue:
            if request.is_final:
                self.queue.remove(request)
                self.reject(request, Reason.JOB_FAILOVER, cause)

    def close(self, reason: Reason) -> None:
        """Accept no more requests, and reject those that wait."""
        self.schedule.stop()
        for request in self.queue.clear():
            self.reject(request, reason, "the coordinator is stopping")
