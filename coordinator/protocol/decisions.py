"""What can happen to a pipeline's queries, and what can be decided about it; ``Recovery`` decides."""

from __future__ import annotations

import attrs

from ...state.shards import NotResumable
from ...storage.errors import ChandyError, DamagedCheckpointError, FailureCode
from ...storage.ids import NO_BATCH, BatchId
from .errors import RescaledError
from .events import Event
from .repetition import FailurePoint
from .user_requests import UserRequest

# --- events -------------------------------------------------------------------------------------------------


@attrs.frozen
class Failure:
    """Why a run has ended."""

    error: ChandyError
    codes: frozenset[FailureCode] = frozenset()
    """What it means for the pipeline, as reported by the tasks of the run."""
    damage: DamagedCheckpointError | None = None
    """Damage of the checkpoint that its state was restored from; None if none is known."""
    point: FailurePoint | None = None
    """Where and how; None: it may pass by itself, so that it is not compared with others."""
    output_is_shared: bool = False
    """Whether another program has written the same batch into the output. In place, Spark would take that for done."""

    @property
    def is_nothing_but_an_end(self) -> bool:
        """Whether a run that was told to stop may have failed for that alone. If not, its batch meets it again."""
        return self.damage is None and not self.output_is_shared and not self.codes


class RecoveryEvent(Event["Decision"]):
    """Something that may decide what becomes of the queries. Its sender is told the decision."""

    __slots__ = ()


@attrs.frozen
class RunStarted(RecoveryEvent):
    """A run of a query has begun, and replaces the query's earlier one."""

    query: str
    run: int
    query_id: str = ""
    """Spark's id of the query."""
    needs_changelogs: bool = False
    """Whether it resumes from changelogs, with state that is newer than the checkpoint."""


@attrs.frozen
class RunStopped(RecoveryEvent):
    """A run was stopped on purpose, so its end is no failure."""

    query: str
    run: int


@attrs.frozen
class RunEnded(RecoveryEvent):
    """A run has ended by itself."""

    query: str
    run: int
    failure: Failure | None
    """None: its work is done."""
    noticed_at: float
    """Seconds since 1970; as in the other events."""


@attrs.frozen
class RunBegun(RecoveryEvent):
    """A run has begun under Spark."""

    query: str
    run: int


@attrs.frozen
class RescaleRequested(RecoveryEvent):
    """A user wants a query to go on with another plan, in which another number of tasks runs an operator."""

    query: str
    cause: RescaledError
    request: UserRequest


@attrs.frozen
class BatchOver(RecoveryEvent):
    """The running batch of a query that is to go on with another plan has committed, or its time is up."""

    query: str
    request: UserRequest
    """The request that has waited for it."""


@attrs.frozen
class NotStopped(RecoveryEvent):
    """A run that was to be stopped for another plan had ended by itself before."""

    query: str
    run: int


@attrs.frozen
class QueryOver(RecoveryEvent):
    """A query is over: its work is done, it was stopped, or it has failed for good."""

    query: str
    error: Exception | None = None


@attrs.frozen
class HostLost(RecoveryEvent):
    """A state host is gone, and state with it."""

    why: str


@attrs.frozen
class ShardsNotOpened(RecoveryEvent):
    """Shards of a query could not be opened, or are damaged, although no task has needed them yet."""

    query_id: str
    why: str
    noticed_at: float
    damage: DamagedCheckpointError | None = None
    """Damage of the checkpoint that they are restored from; None if none is known."""
    code: FailureCode | None = None
    """What it means for the pipeline; None: nothing that is known."""


@attrs.frozen
class CheckpointsFailed(RecoveryEvent):
    """More checkpoints in a row have failed than are tolerable, or an invariant does not hold."""

    error: ChandyError = attrs.field(eq=str)


@attrs.frozen
class FatalError(RecoveryEvent):
    """Something happened that no restart can mend: for example, another coordinator has taken the pipeline over."""

    error: Exception


@attrs.frozen
class EndExplained(RecoveryEvent):
    """It is known why the pipeline has ended, which what was noticed first does not always say."""

    error: Exception


@attrs.frozen
class DelayOver(RecoveryEvent):
    """The time to restart has come."""


@attrs.frozen
class GoingBack(RecoveryEvent):
    """An attempt to go back begins, also if nothing has failed that was known before."""

    cause: str
    noticed_at: float


@attrs.frozen
class StateGivenUp(RecoveryEvent):
    """The pipeline is going back, so losses that were noticed before do not count any more."""


@attrs.frozen
class RestartedInPlace(RecoveryEvent):
    """A query has restarted in place."""

    query: str


@attrs.frozen
class WentBack(RecoveryEvent):
    """The whole pipeline has gone back, and its queries have started."""


@attrs.frozen
class RestartFailed(RecoveryEvent):
    """A restart, in place or from a checkpoint, has failed."""

    error: Exception
    final: bool
    """Whether further attempts would fail, too."""
    directory_is_lost: bool = False
    """Whether a query has lost its working directory. In place, Spark would begin from the start in what is left."""


@attrs.frozen
class FirstCommit(RecoveryEvent):
    """A run has committed its first batch, so its query has recovered."""

    query: str
    run: int
    batch: BatchId = NO_BATCH


@attrs.frozen
class NothingToDo(RecoveryEvent):
    """A run has found no data, so it runs well although it has no batch to commit."""

    query: str
    run: int


@attrs.frozen
class StopRequested(RecoveryEvent):
    """The pipeline is about to stop, so nothing restarts any more."""


@attrs.frozen
class StopWithdrawn(RecoveryEvent):
    """The stop failed, and the pipeline goes on."""


@attrs.frozen
class RunsLeft(RecoveryEvent):
    """The stop leaves what this machine has of the runs to the next driver: no checkpoint has all of it."""


@attrs.frozen
class Stopped(RecoveryEvent):
    """All queries and all else have been stopped."""


# --- decisions ----------------------------------------------------------------------------------------------


@attrs.frozen
class DoNothing:
    """Nothing is to be done."""


@attrs.frozen
class EndQuery:
    """End a query whose run is done, unless another run has replaced it meanwhile."""

    query: str
    run: int


@attrs.frozen
class WaitToRestart:
    """Report ``DelayOver`` at a time, unless a later decision names another time."""

    until: float
    cause: ChandyError = attrs.field(eq=str)


@attrs.frozen
class StopForPlan:
    """Have Spark end a run, whose query goes on with another plan; its end is reported as that of any run."""

    query: str
    run: int


@attrs.frozen
class RestartInPlace:
    """Restart queries with the state that they have."""

    queries: tuple[str, ...]
    cause: ChandyError = attrs.field(eq=str)
    noticed_at: float


@attrs.frozen
class RollBack:
    """Take the whole pipeline back to the checkpoint that its state grew from."""

    cause: ChandyError = attrs.field(eq=str)
    noticed_at: float
    refusal: NotResumable | None
    """Why it may not resume at its newest committed batches; None: it may, as far as all changelogs reach them."""

    @property
    def resume(self) -> bool:
        """Whether it may resume."""
        return self.refusal is None


@attrs.frozen
class FailForGood:
    """End every query with the error, and take no more checkpoints."""

    error: Exception = attrs.field(eq=str)
    because: str = ""
    """Why no restart is tried, if the error does not say it."""


Decision = DoNothing | EndQuery | WaitToRestart | StopForPlan | RestartInPlace | RollBack | FailForGood
