"""Starts a DataStreamWriter on a working directory, as often as needed, and leaves the writer as it was."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .local_path import is_local, local_path
from .plan import field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting for how a query writes its logs and state."""
LOCAL_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The one that does not fork a process for each file on a local file system."""

ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
"""Spark's setting for whether a query in which it sees no state is planned anew while each batch runs."""

_BEFORE_SOURCES = ("Initializing StreamExecution", "Initializing sources")
_SOURCES_DEADLINE = 5.0
"""Seconds."""
_POLL_SECONDS = 0.01

# A session's settings and a writer's options are shared by the threads that start queries.
_lock = threading.Lock()


def start(
    writer: DataStreamWriter,
    *,
    location: str,
    table: str | None = None,
    query_name: str | None = None,
    output: str | None = None,
    stateful: bool = False,
) -> StreamingQuery:
    """Start the writer's query with ``location`` as its checkpoint directory.

    One writer can be started many times, on one location after another or on several at once; its
    ``foreachBatch`` or ``foreach`` function stays with it. Its options are afterwards what they were.

    Args:
        writer: what to start.
        location: a path or URI. On the local file system the query's logs are written without forking
            processes, unless the user has chosen a file manager.
        table: start by ``toTable`` with this name.
        query_name: Spark's name for the query; None: the writer's own.
        output: where a file sink writes (``output_path``); its log uses the same file manager, so one that is
            not local keeps Spark's own choice.
        stateful: whether the query has operators whose state Spark does not see. Like a query with state of Spark's
            own it is then not planned adaptively, unless the user has set that: the partitions of such an operator
            are as many as it has tasks, and planning each batch's stages anew takes a tenth of a small batch.
    """
    spark = writer._spark
    if is_local(location):
        location = f"file://{local_path(location, role='working directory')}"
    wanted = {ADAPTIVE: "false"} if stateful else {}
    if is_local(location) and (output is None or is_local(output)):
        wanted[FILE_MANAGER] = LOCAL_FILE_MANAGER
    with _lock, _options_restored(writer), _unless_set(spark, wanted):
        writer.option("checkpointLocation", location)
        if query_name is not None:
            writer.queryName(query_name)
        query = writer.start() if table is None else writer.toTable(table)
        _await_sources(query)
        return query


def _await_sources(query: StreamingQuery) -> None:
    # A query copies its session as it starts, but makes its sources a little later and with the session
    # itself, and their logs have a file manager too. One that takes longer gets slower logs, no more.
    deadline = time.monotonic() + _SOURCES_DEADLINE
    while query.isActive and query.status["message"] in _BEFORE_SOURCES and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


@contextmanager
def _options_restored(writer: DataStreamWriter) -> Iterator[None]:
    # Options cannot be taken back by Spark's interface. The map that holds them is immutable.
    java = writer._jwrite
    options = field(java, "extraOptions")
    try:
        yield
    finally:
        holder = java.getClass().getDeclaredField("extraOptions")
        holder.setAccessible(True)
        holder.set(java, options)


@contextmanager
def _unless_set(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set, inside of the ``with``, those settings of a session that the user has not."""
    own = {name: value for name, value in wanted.items() if spark.conf.get(name, None) is None}
    try:
        for name, value in own.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in own:
            spark.conf.unset(name)
