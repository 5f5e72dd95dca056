"""Which sink a writer has, and which sinks are refused when a query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import WriterError
from ..spark import plan
from ..spark.local_path import local_path
from .at_least_once import AtLeastOnceSink
from .file_sink import FileSink

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from ..spark.writer_facts import WriterFacts
    from .sink import Sink


def sink_of(writer: DataStreamWriter, facts: WriterFacts) -> Sink:
    """Return a writer's sink.

    Args:
        writer: not started yet.
        facts: what it would start.

    Raises:
        WriterError: Spark does not restart a query with this sink, or a file sink's output directory is not on this
            machine's file system.
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
    return FileSink(local_path(path, role="output of Spark's file sink"), sink.format)
