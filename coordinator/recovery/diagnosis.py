"""Why a run or the pipeline has ended: by a successor, or by what an error says, tasks report or damaged files show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...state.failure_marks import codes_in
from ...state.rpc.messages import TaskFailure
from ...state.user_code import raised_in
from ...storage import runtime
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import (
    ChandyError,
    DamagedCheckpointError,
    FailureCode,
    FencedError,
    OperationInterruptedError,
    StorageError,
    StoreFailedError,
)
from ...storage.logs import carried, logger
from ..errors import PipelineFailedError, ProcessorFailedError, QueryFailedError, WorkingDirectoryLostError
from ..protocol import decisions
from ..protocol.repetition import FailurePoint
from ..sources.errors import SourceLostError
from ..spark import progress
from .failure_point import failure_point, says_output_is_shared
from .runs import Run

log = logger(__name__)

_FENCE_SECONDS: Final = 5.0
"""How long the end of a pipeline waits at most to learn whether there is a successor."""


@attrs.define
class Diagnosis:
    """Finds the reasons of failures."""

    token: str
    """The secret that the pipeline's processes share, by which the marks in their errors are known."""
    find_damage: Callable[[str], DamagedCheckpointError | None]
    """Looks for damage in what the state comes from; it is told what could not be read."""
    _reported: dict[str, TaskFailure] = attrs.field(factory=dict, init=False)
    """The last failure of a user's processor by Spark's id of its query."""

    def processor_failed(self, failure: TaskFailure) -> None:
        """Take in that a user's processor raised; the query's failure will follow."""
        self._reported[failure.query_id] = failure

    def of(self, run: Run, error: Exception) -> decisions.Failure:
        """Return what made a run fail. It may read a whole checkpoint to find damage."""
        # Once: PySpark asks the JVM for it each time.
        text = str(error)
        codes = codes_in(text, self.token)
        explained = self._explained(run, text)
        damage = self.find_damage(str(explained)) if FailureCode.UNREADABLE in codes else None
        point = None if codes else _point(run, explained, text)
        return decisions.Failure(explained, codes, damage, point, says_output_is_shared(text))

    def _explained(self, run: Run, text: str) -> ChandyError:
        """Return the error of a failed query: a processor's with its traceback, else Spark's."""
        name = run.definition.name
        failure = self._reported.pop(run.query_id, None)
        # A failure in a batch that has committed belongs to an attempt whose retry succeeded, so it is not this one.
        if failure is not None and failure.batch > progress.newest_committed(run.logs_as_known()):
            return ProcessorFailedError(
                name, failure.uid, failure.batch, failure.key, failure.summary, failure.traceback
            )
        return QueryFailedError(name, text, raised_in(text))


def _point(run: Run, error: ChandyError, text: str) -> FailurePoint | None:
    traceback = error.traceback if isinstance(error, ProcessorFailedError) else None
    return failure_point(progress.newest_planned(run.logs_as_known()), text, traceback)


def cause_of_end(noticed: Exception, proof: FenceProof, seconds: float = _FENCE_SECONDS) -> Exception:
    """Return why a pipeline ends, given what was noticed of it first.

    A successor is the cause of all else: it ends this driver's JVM and deletes what its checkpoints have dropped, and
    what asks for these may be faster than what asks for a successor. So that is asked for in any case.

    Args:
        noticed: what the pipeline cannot go on with.
        proof: of this driver's generation.
        seconds: how long to wait for a store that does not answer.
    """
    if isinstance(noticed, FencedError):
        return noticed
    fences: list[FencedError] = []

    def ask() -> None:
        try:
            proof.check_now()
        except FencedError as error:
            fences.append(error)
        except (OSError, ChandyError) as error:
            log.warning("cannot tell whether another driver has taken the pipeline over", error=str(error))

    asking = runtime.thread(target=carried(ask), name="chandy-end")
    try:
        asking.start()
        asking.join(seconds)
    except RuntimeError as error:
        log.warning("cannot look for another driver, because no thread can be started", error=str(error))
    return fences[0] if fences else noticed


def restart_failed(error: Exception) -> decisions.RestartFailed:
    """Return what it means that an attempt to restart has failed."""
    match error:
        case OperationInterruptedError():
            return decisions.RestartFailed(error, final=False)
        case StorageError():
            # The stored bytes are wrong, unless the store failed for a moment.
            passing = isinstance(error, StoreFailedError) and error.transient
            return decisions.RestartFailed(error, final=not passing)
        case WorkingDirectoryLostError():
            return decisions.RestartFailed(error, final=False, directory_is_lost=True)
        case SourceLostError():
            # It does not come back by itself.
            return decisions.RestartFailed(error, final=True)
    return decisions.RestartFailed(
        PipelineFailedError(f"it could not be started again: {error}"), final=False
    )
