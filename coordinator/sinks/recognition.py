"""Which sink a writer has, and which sinks are refused when a query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import WriterError
from ..spark import plan
from ..spark.local_path import has_scheme, is_local, local_path
from .at_least_once import AtLeastOnceSink
from .file_sink import FileSink

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ..spark.writer_facts import SinkFacts, WriterFacts
    from .sink import Sink


def sink_of(writer: DataStreamWriter, facts: WriterFacts) -> Sink:
    """Return a writer's sink.

    Args:
        writer: not started yet.
        facts: what it would start.

    Raises:
        WriterError: Spark does not restart a query with this sink, or a file sink's output directory is not on this
            machine's file system, or it has the files of a table that the catalog does not know.
    """
    sink = facts.sink
    if sink.format.lower() == "memory" and facts.output_mode != "complete":
        raise WriterError(
            "the query cannot be checkpointed",
            "a sink with which Spark restarts a query",
            f"{sink.format!r} in output mode {facts.output_mode!r}",
            "use foreachBatch, a file format, or outputMode('complete')",
        )
    path = plan.output_path(writer, sink)
    if path is None:
        return AtLeastOnceSink(sink.format)
    if not is_local(path):
        raise _elsewhere(path, sink)
    directory = local_path(path, role="output of Spark's file sink")
    if plan.creates_managed_table(writer, sink) and directory.is_dir() and any(directory.iterdir()):
        raise WriterError(
            f"the query cannot be started on the table {sink.table!r}",
            "a table that the catalog knows, or no files where it is to be",
            f"no such table in the catalog, and files in {str(directory)!r}",
            "if it is the table of an earlier driver, whose catalog ended with it, set the writer's option path to "
            "this directory: the table is then declared over its files at each start; or use a catalog that outlives "
            "the driver (enableHiveSupport). Do not delete the directory: the output is there",
        )
    return FileSink(directory, sink.format, facts.sink_compact_interval)


def _elsewhere(path: str, sink: SinkFacts) -> WriterError:
    """Return the error for a file sink on a store."""
    given, by_default = path, ""
    if sink.table is None and sink.path is not None and not has_scheme(sink.path):
        given = f"{sink.path!r}, which is {path} for Spark by fs.defaultFS"
        by_default = (
            f"; or write file://{sink.path if sink.path.startswith('/') else '/...'} if that is meant"
        )
    return WriterError(
        "the output of Spark's file sink cannot go back to a checkpoint",
        "a directory on a local or mounted file system",
        given,
        f"write exactly once to {path} by Chandy's own sink: coordinator.start(df.writeStream, name=..., "
        f"sink=FilesSink({path!r}, uid=...)){by_default}",
    )
