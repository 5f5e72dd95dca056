"""The errors of the coordinator; the base of all errors is handed on from here.

Most are a family: the place that raises one says what was expected, what was found and what to do. A class of its
own is for an error that somebody catches or whose facts somebody reads.
"""

from __future__ import annotations

import attrs

from ..state.errors import PeerLostError
from ..state.errors import StateSchemaError as StateSchemaError
from ..storage.errors import ChandyError as ChandyError
from ..storage.errors import RefusedError
from .protocol.errors import CheckpointError as CheckpointError
from .protocol.errors import DrainError as DrainError
from .protocol.errors import NotCarriedOutError as NotCarriedOutError
from .protocol.errors import NotRescaledError as NotRescaledError
from .protocol.errors import PhaseError as PhaseError
from .protocol.errors import PipelineStateLostError as PipelineStateLostError
from .protocol.errors import RescaledError as RescaledError
from .protocol.errors import StaleQueryError as StaleQueryError
from .protocol.errors import StateLostError as StateLostError

# --- what a user asks for and cannot have -------------------------------------------------------------------


class NotSwitchedError(RefusedError):
    """A shadow was to take the pipeline over, and something came between."""


class ConfigError(RefusedError):
    """A setting or a duration has a value that cannot be used."""


class SetupError(RefusedError):
    """Java, PySpark, the session or the cluster is not one that Chandy can run on."""


class WorkingDirectoryError(RefusedError):
    """The store with the working directories of queries cannot be read or written."""


class WorkingDirectoryLostError(WorkingDirectoryError):
    """Another program has deleted a running query's working directory, or part of it."""


class WriterError(RefusedError):
    """A ``DataStreamWriter`` asks for something that cannot be checkpointed and restored."""


class PipelineNameError(RefusedError):
    """A query, an operator or a state has a name that is taken, or one that the pipeline does not have."""


class ReplicaError(RefusedError):
    """A replica cannot be made, has failed, or has not come as far as it should."""


class ArgumentError(RefusedError):
    """An argument of one of the coordinator's methods cannot be used."""


class GivenBatchError(RefusedError):
    """A query cannot take a batch as another pipeline's query has taken it."""


class ShadowReplacedError(RefusedError):
    """Another shadow with the name of this one was started, and goes on with what both have found."""


class RestoreError(RefusedError):
    """The checkpoint to restore is not there, or does not fit the pipeline."""


class AdoptionError(RestoreError):
    """A checkpoint of plain Spark cannot be adopted, or does not fit the query that is to go on from it."""


class PredecessorRunsError(RefusedError):
    """The driver that ran the pipeline before does not end its queries, so its sinks are not free."""


class SinkTakenError(RestoreError):
    """A query's output directory has what another query, or another program, wrote."""


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
    summary: str = ""
    """The exception of a Python function of the query and where it was raised, in one line; empty if it was none."""

    def __str__(self) -> str:
        summary = f"{self.summary}\n" if self.summary else ""
        return f"{summary}query {self.query!r} failed: {self.message}\n{_START_AGAIN}"


@attrs.define(eq=False)
class GivenBatchInterruptedError(ChandyError):
    """A batch that was given to run was interrupted, because a store or a state host has failed."""

    query: str
    batch: int
    because: str

    def __str__(self) -> str:
        return (
            f"batch {self.batch} of query {self.query!r} was interrupted, for a reason that says nothing about the "
            f"program: {self.because}"
        )


@attrs.define(eq=False)
class BatchSkippedError(ChandyError):
    """A function of ``foreachBatch`` has returned without having taken the rows of its batch."""

    query: str
    batch: int
    operators: tuple[str, ...]
    """Those whose state would lack the batch."""

    def __str__(self) -> str:
        operators = ", ".join(map(repr, self.operators))
        return (
            f"batch {self.batch} of query {self.query!r} cannot commit: expected its foreachBatch function to take all "
            f"rows, because the state of {operators} changes meanwhile, found that it returned without; call "
            "rows.persist() and rows.count() before you decide what to write, and raise what goes wrong, so that the "
            "batch runs again"
        )


@attrs.define(eq=False)
class ProcessorFailedError(ChandyError):
    """A query failed because its processor raised."""

    query: str
    uid: str
    batch: int
    key: str
    """The key as text, or the method that was called; empty if neither is known."""
    summary: str
    """The exception and where it was raised, in one line."""
    traceback: str
    """Of the processor's own code. The log has it, and the text has not: what ends a program ends with it."""

    def __str__(self) -> str:
        key = f"{self.key}, " if self.key else ""
        where = f"{key}batch {self.batch}, operator {self.uid!r}, query {self.query!r}"
        return f"{self.summary}\n{where}. {_START_AGAIN}"


@attrs.define(eq=False)
class PipelineFailedError(ChandyError):
    """The pipeline cannot go on."""

    why: str

    def __str__(self) -> str:
        return f"the pipeline cannot go on: {self.why}\n{_START_AGAIN}"


class SessionEndedError(ChandyError):
    """Base of the errors about a Spark session that has ended beneath a pipeline: nothing can be started any more."""


@attrs.define(eq=False)
class SessionStoppedError(SessionEndedError):
    """The Spark session was stopped before the coordinator."""

    def __str__(self) -> str:
        return (
            "the Spark session was stopped, and all queries with it. Stop the coordinator first, so that running "
            f"batches commit and a last checkpoint has them.\n{_START_AGAIN}"
        )


@attrs.define(eq=False)
class JavaEndedError(SessionEndedError):
    """The driver's Java virtual machine has ended, and its Python lives on: nothing can be started any more."""

    pid: int
    silent: float | None = None
    """The seconds for which it had not answered when it was ended because of that; None if it ended by itself."""

    def __str__(self) -> str:
        why = (
            "has ended, and all queries with it. The system may have killed it to get memory back."
            if self.silent is None
            else f"did not answer for {self.silent:.0f} s and was ended, and all queries with it. It was frozen, or "
            "collected garbage all the time: give it more memory by spark.driver.memory, or more time by "
            "java_timeout of CheckpointConfig."
        )
        return f"the JVM of the Spark session, process {self.pid}, {why}\n{_START_AGAIN}"


@attrs.define(eq=False)
class QueryNotRunningError(ChandyError):
    """The state of an operator was asked for while its query was not running."""

    uid: str
    query: str
    """Name of the operator's query; empty if it has not been started."""

    def __str__(self) -> str:
        why = (
            f"query {self.query!r} has stopped or is going back to a checkpoint"
            if self.query
            else "its query has not been started"
        )
        return (
            f"cannot read the state of operator {self.uid!r}: {why}; start the query, or read a checkpoint with "
            "chandy.read_state"
        )


@attrs.define(eq=False)
class StateUnreachableError(PeerLostError):
    """A state host did not answer when it was asked for state."""

    def __str__(self) -> str:
        return (
            f"the state host at {self.address} does not answer ({self.detail}); if it has ended, the pipeline "
            "restores its state by itself: ask again in a moment"
        )
