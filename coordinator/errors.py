"""The errors of the coordinator; the base of all errors is handed on from here.

Most are a family: the place that raises one says what was expected, what was found and what to do. A class of its
own is for an error that somebody catches or whose facts somebody reads.
"""

from __future__ import annotations

import attrs

from ..state.errors import PeerLostError
from ..state.errors import StateSchemaError as StateSchemaError
from ..storage.errors import ChandyError, FailureCode, RefusedError
from .protocol.reasons import Reason

__all__ = [
    "ArgumentError",
    "ChandyError",
    "CheckpointError",
    "CheckpointStateError",
    "ConfigError",
    "CoordinatorStoppedError",
    "IncompleteDirectoryError",
    "PipelineFailedError",
    "PipelineNameError",
    "PipelineStateLostError",
    "ProcessorFailedError",
    "QueryFailedError",
    "QueryNotRunningError",
    "RestoreError",
    "SetupError",
    "StaleQueryError",
    "StateLostError",
    "StateUnreachableError",
    "WriterError",
]


# --- what a user asks for and cannot have -------------------------------------------------------------------


class ConfigError(RefusedError):
    """A setting or a duration has a value that cannot be used."""


class SetupError(RefusedError):
    """Java, PySpark, the session or the cluster is not one that Chandy can run on."""


class WriterError(RefusedError):
    """A ``DataStreamWriter`` asks for something that cannot be checkpointed and restored."""


class PipelineNameError(RefusedError):
    """A query, an operator or a state has a name that is taken, or one that the pipeline does not have."""


class ArgumentError(RefusedError):
    """An argument of one of the coordinator's methods cannot be used."""


class RestoreError(RefusedError):
    """The checkpoint to restore is not there, or does not fit the pipeline."""


# --- checkpoints --------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class CheckpointError(ChandyError):
    """A checkpoint that was asked for will not be: what its future raises."""

    id: int | None
    """Id of the checkpoint; None if the request never came to have one."""
    reason: Reason
    detail: str = ""
    """What the reason alone does not say, e.g. who declined and with what error."""

    def __str__(self) -> str:
        subject = "the request for a checkpoint" if self.id is None else f"checkpoint {self.id}"
        detail = f": {self.detail}" if self.detail else ""
        return (
            f"expected {subject} to complete, but it ended with {self.reason}: {self.reason.meaning}{detail}"
        )


@attrs.define(eq=False)
class CheckpointStateError(ChandyError):
    """A pending checkpoint was told to go where it cannot."""

    id: int
    phase: str
    to: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        still = f"; still missing: {', '.join(self.missing)}" if self.missing else ""
        return (
            f"expected checkpoint {self.id} to be able to go from {self.phase} to {self.to}, it is not{still}"
        )


@attrs.define(eq=False)
class StateLostError(ChandyError):
    """The state of a shard since the latest checkpoint is gone; only a restore brings it back."""

    code = FailureCode.HOST_LOST

    uid: str
    shard: int
    why: str

    def __str__(self) -> str:
        return (
            f"expected the state of shard {self.shard} of operator {self.uid!r} to be with its state host, "
            f"but {self.why}; the pipeline goes back to its latest checkpoint"
        )


@attrs.define(eq=False)
class StaleQueryError(ChandyError):
    """A task belongs to a run of its query that is over."""

    query_id: str
    batch: int | None

    def __str__(self) -> str:
        batch = "" if self.batch is None else f" for batch {self.batch}"
        return (
            f"expected a task of a query that is running, found one{batch} of Spark query id {self.query_id}, "
            "which has stopped or gone back to a checkpoint; nothing that this task does counts"
        )


# --- Spark's files ------------------------------------------------------------------------------------------


class IncompleteDirectoryError(RefusedError):
    """Spark's own files do not hold everything that restores a batch, or hold it no longer."""


def incomplete(directory: str, batch: int, missing: str) -> IncompleteDirectoryError:
    """Return the error for a file of ``directory`` that restores ``batch`` and is not there."""
    return IncompleteDirectoryError(
        f"batch {batch} cannot be restored from {directory}",
        "all of Spark's files for it",
        f"no {missing}",
        "Spark keeps only the newest batches: raise spark.sql.streaming.minBatchesToRetain (100 by default), or "
        "make checkpoints complete sooner",
    )


# --- pipelines, queries and hosts that have ended -----------------------------------------------------------

# On a line of its own: what is logged of a failure that leads to a restart is the first line.
_START_AGAIN = "Remove the cause and start the pipeline again: it goes on from its latest checkpoint."


@attrs.define(eq=False)
class CoordinatorStoppedError(ChandyError):
    """A coordinator was used after it had stopped."""

    pipeline: str

    def __str__(self) -> str:
        return (
            f"the coordinator of pipeline {self.pipeline!r} has stopped: make a new CheckpointCoordinator; it "
            "restores the latest checkpoint"
        )


@attrs.define(eq=False)
class QueryFailedError(ChandyError):
    """A query failed: why it is restarted, or, once the restart strategy gives up, why it has ended."""

    query: str
    message: str
    """What Spark says."""

    def __str__(self) -> str:
        return f"query {self.query!r} failed: {self.message}\n{_START_AGAIN}"


@attrs.define(eq=False)
class ProcessorFailedError(ChandyError):
    """A query failed because its processor raised."""

    query: str
    uid: str
    batch: int
    key: str
    traceback: str
    """Of the processor's own code."""

    def __str__(self) -> str:
        return (
            f"the processor of operator {self.uid!r} in query {self.query!r} raised for key {self.key} in batch "
            f"{self.batch}:\n{self.traceback}\n{_START_AGAIN}"
        )


@attrs.define(eq=False)
class PipelineStateLostError(ChandyError):
    """State that is newer than the latest checkpoint is lost."""

    why: str

    def __str__(self) -> str:
        return f"the pipeline's state hosts no longer have its state: {self.why}"


@attrs.define(eq=False)
class PipelineFailedError(ChandyError):
    """The pipeline cannot go on."""

    why: str

    def __str__(self) -> str:
        return f"the pipeline cannot go on: {self.why}\n{_START_AGAIN}"


@attrs.define(eq=False)
class QueryNotRunningError(ChandyError):
    """The state of an operator was asked for while its query was not running."""

    uid: str
    query: str
    """Name of the operator's query; empty if it has not been started."""

    def __str__(self) -> str:
        query = (
            f"expected query {self.query!r} to run, found it stopped or going back to a checkpoint"
            if self.query
            else "expected its query to run, found none started"
        )
        return (
            f"operator {self.uid!r} cannot be asked: {query}; start the query, or read a checkpoint with "
            "chandy.state.read_state"
        )


@attrs.define(eq=False)
class StateUnreachableError(PeerLostError):
    """A state host did not answer when it was asked for state."""

    def __str__(self) -> str:
        return (
            f"the state host at {self.address} does not answer ({self.detail}); if it has ended, the pipeline "
            "restores its state by itself: ask again in a moment"
        )
