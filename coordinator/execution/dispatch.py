"""Who carries out what the protocol instructs: at once and in the order of the instructions, or a job in a lane."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import attrs

from ...state.rpc.orders import Order
from ...storage.ids import CheckpointId
from ...storage.logs import cause, logger
from ..protocol import instructions
from ..protocol.decisions import CheckpointsFailed, HostLost
from ..protocol.reasons import Reason
from .checkpoint_jobs import CheckpointJobs
from .job_steps import JobSteps
from .locked_protocol import LockedProtocol
from .progress import Progress
from .reports import Reports

log = logger(__name__)


class JobLane(Enum):
    """Has threads of its own, so that what takes long in one holds up nothing in another."""

    IO = "io", 4, True
    """All reading and writing but what the next two do."""
    MANIFESTS = "manifests", 1, True
    """Manifests are written one after the other."""
    CLEANER = "cleaner", 1, True
    """Deleting thousands of objects takes its time, and no checkpoint waits for it."""
    READ_BACK = "read-back", 1, False
    """Reading a checkpoint again may take as long as restoring it."""
    ANSWERS = "answers", 32, False
    """Callbacks of futures. One may take long, or wait for the thread that closes the executor. So nothing waits for
    these, and there are many."""

    def __init__(self, label: str, limit: int, is_of_store: bool) -> None:
        self.label = label
        self.limit = limit
        """How many jobs are carried out at a time. They begin in the order in which they come."""
        self.is_of_store = is_of_store
        """Whether each store has such a lane."""


@attrs.frozen(eq=False)
class Job:
    """What one instruction has somebody do, in a lane."""

    work: Callable[[Any], JobSteps | None]
    """Returns the steps; None: it is done when it returns."""
    instruction: Any
    """What ``work`` is called with."""
    cause: int | None = attrs.field(factory=cause)
    """The id of the event that it follows from."""

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The checkpoint that fails if the work fails; None if none does."""
        checkpoint: CheckpointId | None = getattr(self.instruction, "checkpoint", None)
        return checkpoint

    @property
    def name(self) -> str:
        """What it is, for people."""
        name = type(self.instruction).__name__
        return name if self.checkpoint is None else f"{name} of checkpoint {self.checkpoint}"


class Surroundings(Protocol):
    """What a dispatcher hands instructions on to."""

    def submit(self, lane: JobLane, root: str, job: Job) -> None:
        """Have a job carried out, its steps those of ``Dispatcher.steps_of``.

        Args:
            lane: which lane.
            root: URI of the store whose lane it is, if each store has one.
        """
        ...

    def send(self, host: str, order: Order) -> None:
        """Send an order to a state host. It does not wait."""
        ...

    def resolve(self, order: instructions.Resolve) -> None:
        """Give a request its checkpoint."""
        ...

    def reject(self, order: instructions.Reject) -> None:
        """Fail a request."""
        ...


class Dispatcher:
    """Hands instructions on, one after the other.

    Args:
        protocol: the protocol of the pipeline.
        jobs: what is done in lanes.
        progress: the queries on the driver's disk.
        reports: is told of what happens.
        surroundings: carries out the rest.
    """

    def __init__(
        self,
        protocol: LockedProtocol,
        jobs: CheckpointJobs,
        progress: Progress,
        reports: Reports,
        surroundings: Surroundings,
    ) -> None:
        self._protocol = protocol
        self._root = protocol.root
        self._jobs = jobs
        self._progress = progress
        self._reports = reports
        self._around = surroundings

    def hand_on(self, instruction: instructions.Instruction) -> JobSteps:
        """Hand an instruction on, step by step. The next one is handed on afterwards."""
        jobs, submit = self._jobs, self._around.submit
        match instruction:
            case instructions.Send(host, order):
                self._around.send(host, order)
            case instructions.Finalize():
                submit(JobLane.MANIFESTS, instruction.root, Job(jobs.finalize, instruction))
            case instructions.StoreProgress():
                # Here, because the jobs of two checkpoints may overtake each other.
                self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)
                yield None
                submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))
            case instructions.ChooseCut():
                submit(JobLane.IO, instruction.root, Job(jobs.choose_cut, instruction))
            case instructions.CopyShards():
                submit(JobLane.IO, instruction.root, Job(jobs.copy_shards, instruction))
            case instructions.Publish(checkpoint, queries):
                for query in queries:
                    self._progress.commit(query, checkpoint)
                    yield None
            case instructions.ReadBack():
                submit(JobLane.READ_BACK, self._root, Job(jobs.read_back, instruction))
            case instructions.DiscardAborted():
                submit(JobLane.CLEANER, instruction.root, Job(jobs.discard_aborted, instruction))
            case instructions.Discard():
                submit(JobLane.CLEANER, self._root, Job(jobs.discard, instruction))
            case instructions.Resolve():
                submit(JobLane.ANSWERS, self._root, Job(self._around.resolve, instruction))
            case instructions.Reject():
                submit(JobLane.ANSWERS, self._root, Job(self._around.reject, instruction))
            case _:
                self._tell(instruction)

    def _tell(self, instruction: instructions.Instruction) -> None:
        match instruction:
            case instructions.Decided(noticed, decision):
                match noticed:
                    case HostLost(why):
                        log.warning("state is lost", why=why)
                    case CheckpointsFailed():
                        log.debug("the pipeline fails", events=self._protocol.events)
                self._reports.decided(decision)
            case instructions.ReplaceHost(why, promoted, reopened):
                log.warning(
                    "others take the shards of a lost host over, and no query restarts",
                    why=why,
                    from_standbys=len(promoted),
                    from_changelogs=len(reopened),
                )
                self._reports.news.host_replaced(why, len(promoted), len(reopened))
            case instructions.StandbysInSync(shards):
                log.info("all shards have standbys", shards=shards)
            case instructions.ReportStatistics(statistics):
                self._reports.news.measured(statistics)
            case instructions.ReportStatisticsFailure(bug):
                log.error("a checkpoint could not be counted", error=repr(bug))

    def steps_of(self, job: Job) -> JobSteps:
        """Return the steps of a job. An unexpected error fails its checkpoint."""
        try:
            yield from job.work(job.instruction) or ()
        except Exception as error:
            log.exception("an instruction failed", instruction=job.name)
            self._failed(job, error)

    def _failed(self, job: Job, error: Exception) -> None:
        log.debug("an instruction failed", events=self._protocol.events)
        if job.checkpoint is not None:
            self._jobs.failed(job.checkpoint, Reason.TRIGGER_CHECKPOINT_FAILURE, error)
