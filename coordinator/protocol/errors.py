"""The errors of the checkpoint protocol; ``coordinator.errors`` offers them to users."""

from __future__ import annotations

import attrs

from ...state.shards import Term
from ...storage.errors import ChandyError, FailureCode, RefusedError
from .reasons import Reason


@attrs.define(eq=False)
class CheckpointError(ChandyError):
    """A checkpoint did not complete. Its future raises this."""

    id: int | None
    """Id of the checkpoint; None if the request failed before it got one."""
    reason: Reason
    detail: str = ""
    """What the reason alone does not say, e.g. who declined and with what error."""

    def __str__(self) -> str:
        subject = "the request for a checkpoint failed" if self.id is None else f"checkpoint {self.id} failed"
        detail = f": {self.detail}" if self.detail else ""
        return f"{subject} with {self.reason}: {self.reason.meaning}{detail}"


@attrs.define(eq=False)
class PhaseError(ChandyError):
    """A checkpoint, a copy, a request or a life cannot go to the phase that it was told to go to."""

    what: str
    phase: str
    to: str
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        missing = f"; still missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.what} cannot go from '{self.phase}' to '{self.to}'{missing}"


class NotCarriedOutError(RefusedError):
    """What a user has asked of a pipeline is refused, or something has ended the request."""


@attrs.define(eq=False)
class StateLostError(ChandyError):
    """The state of a shard since the latest checkpoint is lost. Only a restore brings it back."""

    code = FailureCode.HOST_LOST

    uid: str
    shard: int
    why: str

    def __str__(self) -> str:
        return (
            f"the state of shard {self.shard} of operator {self.uid!r} is lost: {self.why}; the pipeline goes back "
            "to its latest checkpoint by itself"
        )


@attrs.define(eq=False)
class NotTheOwnerError(ChandyError):
    """A state host speaks for a shard that it does not have any more."""

    host: str
    uid: str
    shard: int
    term: Term

    def __str__(self) -> str:
        return (
            f"state host {self.host} does not own shard {self.shard} of operator {self.uid!r} in term {self.term} any "
            "more; nothing that it does with it counts"
        )


@attrs.define(eq=False)
class DrainError(RefusedError):
    """A machine cannot be drained, was not drained in time, or the pipeline has ended before it was."""


@attrs.define(eq=False)
class StaleQueryError(ChandyError):
    """A task belongs to a run of its query that is over, or to none that the coordinator has started."""

    query_id: str
    batch: int | None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" for batch {self.batch}"
        return (
            f"a task{batch} came from Spark query id {self.query_id}, whose query has stopped, has gone back to a "
            "checkpoint, or was started by something else than coordinator.start(writer, name=...); nothing that the "
            "task does counts"
        )


@attrs.define(eq=False)
class InvariantBrokenError(ChandyError):
    """An invariant of the checkpoint protocol does not hold; see ``invariants``."""

    event: str
    """The event after which it did not hold."""
    broken: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"after {self.event}, the checkpoint protocol is not as it must be: {'; '.join(self.broken)}; this is a "
            "bug of Chandy: please report it with the driver's log"
        )


@attrs.define(eq=False)
class PipelineStateLostError(ChandyError):
    """State that is newer than the latest checkpoint is lost."""

    why: str

    def __str__(self) -> str:
        return f"the pipeline's state hosts no longer have its state: {self.why}"


@attrs.define(eq=False)
class RescaledError(ChandyError):
    """Why a query has restarted: another number of tasks runs one of its operators. No failure, and never raised."""

    query: str
    uid: str
    tasks: int

    def __str__(self) -> str:
        return f"operator {self.uid!r} of query {self.query!r} was rescaled to {self.tasks} tasks"


class NotRescaledError(RefusedError):
    """Another number of tasks was to run an operator, and something came between."""
