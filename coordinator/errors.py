"""The errors of the coordinator, and the base of every error for those who import it from here."""

from __future__ import annotations

import attrs

from ..state.errors import PeerLostError
from ..state.errors import StateSchemaError as StateSchemaError
from ..storage.errors import ChandyError
from .protocol.errors import CheckpointError as CheckpointError
from .protocol.errors import CheckpointStateError as CheckpointStateError
from .protocol.errors import StaleQueryError as StaleQueryError
from .protocol.errors import StateLostError as StateLostError

__all__ = [
    "ChandyError",
    "CheckpointError",
    "CheckpointStateError",
    "ConfigError",
    "DurationError",
    "StaleQueryError",
    "StateLostError",
]


@attrs.define(eq=False)
class DurationError(ChandyError):
    """A text is no duration that can be used."""

    found: str
    """What was given, as Python writes it."""

    def __str__(self) -> str:
        return (
            'expected a duration of 0 or more, at most 100 years, as Spark writes it ("10 s", "5 minutes", '
            f'"1 hour 30 minutes", "250 ms"; weeks to microseconds) or a timedelta, found {self.found}'
        )


@attrs.define(eq=False)
class ConfigError(ChandyError):
    """A value in a configuration is not one that can be used."""

    field: str
    """Name of the configuration class and its field, e.g. ``CheckpointConfig.interval``."""
    found: str
    """What was given, as Python writes it."""
    expected: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected}, found {self.found}"


@attrs.define(eq=False)
class MissingJavaError(ChandyError):
    """No Java that Spark can run on was found."""

    looked_at: str
    """The program that was tried: under JAVA_HOME if that is set, else ``java`` from PATH."""
    found: str
    """What came of it: its first line, or why it did not start."""

    def __str__(self) -> str:
        return (
            f"expected Java 17 or later, found {self.found} ({self.looked_at}); install a JDK of version 17 "
            "or 21, for instance openjdk-17-jre-headless, and set JAVA_HOME to it or put its java on PATH"
        )


@attrs.define(eq=False)
class UnsupportedSparkError(ChandyError):
    """The PySpark that is installed is not one that Chandy knows the checkpoint directory of."""

    found: str
    """Its version, or that there is none."""

    def __str__(self) -> str:
        return f'expected PySpark 4.3, found {self.found}; install it with: pip install "pyspark>=4.3,<4.4"'


@attrs.define(eq=False)
class SparkConnectError(ChandyError):
    """The session is a Spark Connect client, which has no plan and no JVM at hand."""

    found: str
    """The session's type."""

    def __str__(self) -> str:
        return (
            f"expected a SparkSession whose driver is this process, found a Spark Connect session "
            f"({self.found}); run the pipeline in the driver, with SparkSession.builder.master(...) in place "
            "of .remote(...)"
        )


class WriterError(ChandyError):
    """A DataStreamWriter asks for something that cannot be checkpointed and restored."""


@attrs.define(eq=False)
class CheckpointLocationError(WriterError):
    """A writer sets its own checkpoint location."""

    location: str

    def __str__(self) -> str:
        return (
            f"expected a writer without checkpointLocation, found {self.location!r}; leave the option out: "
            "the coordinator gives the query a new working directory each time it goes back to a checkpoint"
        )


@attrs.define(eq=False)
class UnsupportedTriggerError(WriterError):
    """A writer's trigger does not run micro-batches, so there is no place for a barrier."""

    trigger: str
    """The argument of ``trigger(...)`` that sets it."""

    def __str__(self) -> str:
        return (
            f"expected a trigger that runs micro-batches, found trigger({self.trigger}=...); use "
            "processingTime, availableNow or once: barriers stand between micro-batches"
        )


@attrs.define(eq=False)
class AsyncProgressError(WriterError):
    """A writer has Spark write the logs of its batches later than they run."""

    def __str__(self) -> str:
        return (
            "expected a query that logs each batch before it runs, found asyncProgressTrackingEnabled; leave "
            "the option out: a barrier stands behind the newest batch, which only the log can tell"
        )


@attrs.define(eq=False)
class CleanSourceError(WriterError):
    """A file source deletes or archives what it has read, so no checkpoint could read it again."""

    source: str
    clean_source: str
    """The value of the option."""

    def __str__(self) -> str:
        return (
            f"expected the option cleanSource of {self.source} to be off, found {self.clean_source!r}; "
            "remove it: a restore reads again what came after the checkpoint. Clean up files older than the "
            "oldest checkpoint by other means"
        )


@attrs.define(eq=False)
class MergedOperatorError(WriterError):
    """An operator's output goes into a union or a coalesce within the operator's own stage."""

    uid: str

    def __str__(self) -> str:
        return (
            f"expected the output of operator {self.uid!r} to be shuffled before a union or a coalesce, which "
            "number the operator's partitions anew, found it directly below one; say .repartition(n) on the "
            "operator's output first"
        )


@attrs.define(eq=False)
class UnreplayableSourceError(WriterError):
    """A source cannot give the same records twice."""

    source: str

    def __str__(self) -> str:
        return (
            f"expected sources that can be read again from an offset, found {self.source!r}; put what it "
            "sends into files or Kafka first, and read those"
        )


@attrs.define(eq=False)
class UnrestartableSinkError(WriterError):
    """Spark refuses to start a query with this sink on a checkpoint directory that has been used."""

    sink: str
    output_mode: str

    def __str__(self) -> str:
        return (
            f"expected a sink that a query can be restarted with, found {self.sink!r} in output mode "
            f"{self.output_mode!r}; use foreachBatch, a file format, or outputMode('complete')"
        )


@attrs.define(eq=False)
class RemotePathError(ChandyError):
    """A directory that must be on this machine's file system is elsewhere."""

    path: str
    role: str
    """What the directory is for."""

    def __str__(self) -> str:
        return (
            f"expected the {self.role} to be on the local file system (a path or file://...), found "
            f"{self.path!r}; use a local path, or one on a file system that is mounted here"
        )


@attrs.define(eq=False)
class IncompleteDirectoryError(ChandyError):
    """Spark's own files do not, or no longer, hold what restores a batch."""

    directory: str
    batch: int
    missing: str
    """What is not there."""

    def __str__(self) -> str:
        return (
            f"expected in {self.directory} all that restores batch {self.batch}, found no {self.missing}; "
            "Spark keeps only the last batches (spark.sql.streaming.minBatchesToRetain, 100 unless set): "
            "raise it, or make checkpoints complete sooner"
        )


@attrs.define(eq=False)
class FilesVanishedError(ChandyError):
    """Files that were listed were deleted before they could be linked, each time anew."""

    path: str
    """One of them."""
    attempts: int

    def __str__(self) -> str:
        return (
            f"expected files to stay for as long as it takes to link them, found {self.path} gone after listing "
            f"it, {self.attempts} times in a row; make Spark keep more batches "
            "(spark.sql.streaming.minBatchesToRetain)"
        )


@attrs.define(eq=False)
class TargetNotEmptyError(ChandyError):
    """A directory that is to be filled anew holds something already."""

    directory: str

    def __str__(self) -> str:
        return f"expected {self.directory} not to exist or to be empty, found files; name another directory"


@attrs.define(eq=False)
class ShardCountError(ChandyError):
    """An operator's shard count differs from the one that its state was written with."""

    uid: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"expected operator {self.uid!r} to have {self.expected} shards as in the checkpoint, found "
            f"{self.found}; the shard count is fixed for an operator's life: say shards={self.expected}, and "
            "change the parallelism instead"
        )


@attrs.define(eq=False)
class KeySchemaError(ChandyError):
    """An operator's key columns differ from those that its state was written with."""

    uid: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"expected the key of operator {self.uid!r} to be {self.expected} as in the checkpoint, found "
            f"{self.found}; give an operator with another key another uid"
        )


@attrs.define(eq=False)
class NonRestoredError(ChandyError):
    """A restore would leave state behind."""

    checkpoint: int
    query: str
    left: tuple[str, ...]
    """Uids of the operators that the query no longer has."""

    def __str__(self) -> str:
        return (
            f"expected query {self.query!r} to have all its operators of checkpoint {self.checkpoint}, but "
            f"{', '.join(map(repr, self.left))} is missing; keep its uid, or drop its state by "
            "CheckpointConfig(allow_non_restored=True)"
        )


@attrs.define(eq=False)
class OperatorMovedError(ChandyError):
    """An operator is restored into another query than it was part of."""

    uid: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"expected operator {self.uid!r} in query {self.expected!r} as in the checkpoint, found it in "
            f"{self.found!r}, whose batches are others; keep the query's name"
        )


@attrs.define(eq=False)
class DuplicateNameError(ChandyError):
    """Two things of a pipeline have one name."""

    what: str
    name: str

    def __str__(self) -> str:
        return (
            f"expected each {self.what} of a pipeline once, found {self.name!r} a second time; it is what state "
            "and progress are found by after a restart, so give this one another"
        )


@attrs.define(eq=False)
class UnknownOperatorError(ChandyError):
    """A query holds an operator that this coordinator did not make."""

    uid: str
    query: str

    def __str__(self) -> str:
        return (
            f"expected the operators of query {self.query!r} to be made by this coordinator's "
            f"transform_with_state, found {self.uid!r} of another one; build the DataFrame anew with this one"
        )


@attrs.define(eq=False)
class SavepointTargetError(ChandyError):
    """A savepoint was asked for without a place, or for a place that is taken."""

    found: str

    def __str__(self) -> str:
        return (
            f"expected a place for the savepoint, found {self.found}; say savepoint('NAME') or savepoint('URI'), "
            "or set CheckpointConfig(savepoints=URI)"
        )


@attrs.define(eq=False)
class CoordinatorStoppedError(ChandyError):
    """A coordinator that has stopped was asked for something."""

    pipeline: str

    def __str__(self) -> str:
        return (
            f"expected a running coordinator, but that of pipeline {self.pipeline!r} has stopped; "
            "make a new CheckpointCoordinator"
        )


@attrs.define(eq=False)
class QueryFailedError(ChandyError):
    """A query has failed, and its restart strategy has given up."""

    query: str
    message: str
    """What Spark says."""

    def __str__(self) -> str:
        return f"expected query {self.query!r} to run on, but it has failed: {self.message}"


@attrs.define(eq=False)
class ProcessorFailedError(ChandyError):
    """A query has failed because its processor raised, and its restart strategy has given up."""

    query: str
    uid: str
    batch: int
    key: str
    traceback: str
    """Of the processor's own code."""

    def __str__(self) -> str:
        return (
            f"expected the processor of operator {self.uid!r} in query {self.query!r} not to raise, but it did for "
            f"key {self.key} in batch {self.batch}:\n{self.traceback}"
        )


@attrs.define(eq=False)
class PipelineStateLostError(ChandyError):
    """The state since the latest checkpoint is lost."""

    why: str

    def __str__(self) -> str:
        return f"expected the pipeline's state to be with its state hosts, but {self.why}"


@attrs.define(eq=False)
class PipelineFailedError(ChandyError):
    """The pipeline cannot go on."""

    why: str

    def __str__(self) -> str:
        return f"expected the pipeline to run on, but {self.why}"


@attrs.define(eq=False)
class SinkNotEmptyError(ChandyError):
    """A query that begins anew would write into an output that has a log of batches already."""

    query: str
    output: str
    newest: int
    """The newest batch in the log."""

    def __str__(self) -> str:
        return (
            f"expected the output {self.output} of query {self.query!r}, which begins anew, to have no log of "
            f"batches, found one up to batch {self.newest}: Spark would skip as many batches silently; choose "
            "another path, delete that one, or restore the checkpoint that belongs to it"
        )


@attrs.define(eq=False)
class SharedDirectoryError(ChandyError):
    """Spark's own state needs a working directory that all executors reach."""

    query: str
    master: str

    def __str__(self) -> str:
        return (
            f"expected a working directory that all executors of {self.master} reach, because query "
            f"{self.query!r} keeps state of Spark's own, found the driver's local one; set "
            "CheckpointConfig(work_dir=...) to a directory that is mounted everywhere"
        )


@attrs.define(eq=False)
class DriverAddressError(ChandyError):
    """The driver cannot listen at the address at which executors are to reach it."""

    host: str
    detail: str
    """What the server says."""

    def __str__(self) -> str:
        return (
            f"expected to listen on a free port of {self.host!r} for the state hosts, found that this cannot be "
            f"({self.detail}); set spark.driver.host to a name or an address of this machine, one that the "
            "executors reach"
        )


@attrs.define(eq=False)
class NoSuchOperatorError(ChandyError):
    """State was asked for of an operator that the pipeline does not have."""

    uid: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        return f"expected the uid of an operator ({', '.join(self.known) or 'there is none yet'}), found {self.uid!r}"


@attrs.define(eq=False)
class UnknownStateError(ChandyError):
    """A state variable was asked for that an operator does not have, or none was named where there are several."""

    uid: str
    state: str | None
    known: tuple[str, ...]

    def __str__(self) -> str:
        found = "no name" if self.state is None else repr(self.state)
        return (
            f"operator {self.uid!r}: expected the name of one of its states "
            f"({', '.join(self.known) or 'it has none'}), found {found}; say get(..., state=NAME)"
        )


@attrs.define(eq=False)
class KeyShapeError(ChandyError):
    """A key was asked for that has other columns than the operator's keys."""

    uid: str
    columns: tuple[str, ...]
    found: str

    def __str__(self) -> str:
        return (
            f"operator {self.uid!r}: expected a key of the columns {', '.join(self.columns)} as a tuple in this "
            f"order, a dict by column, or the value itself if it is one column; found {self.found}"
        )


@attrs.define(eq=False)
class QueryNotRunningError(ChandyError):
    """State was asked for of a query that does not run."""

    uid: str
    query: str
    """Name of the operator's query; empty if it has not been started."""

    def __str__(self) -> str:
        query = (
            f"query {self.query!r}, found it stopped or going back"
            if self.query
            else "a query, found none started"
        )
        return (
            f"operator {self.uid!r}: expected it to run in {query}; start the query, or read a checkpoint's state "
            "with chandy.state.read_state"
        )


@attrs.define(eq=False)
class StateUnreachableError(PeerLostError):
    """A state host did not answer when the value of a key was asked for."""

    def __str__(self) -> str:
        return (
            f"expected the state host at {self.address} to answer, it does not ({self.detail}); when it is gone, the "
            "pipeline goes back to its latest checkpoint by itself: ask again then"
        )
