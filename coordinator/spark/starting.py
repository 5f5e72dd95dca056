"""Starts the query of a DataStreamWriter on a working directory, any number of times, without changing the writer."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from ...storage import runtime
from ...storage.checkpoints.proof import FenceProof
from ..errors import WriterError
from .batch_function import AfterBatch, followed
from .local_path import is_local, local_path
from .plan import field, set_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
"""Spark's setting for the class by which a query writes its logs and state."""
LOCAL_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The class that does not start a process for each file on a local file system."""

ADAPTIVE = "spark.sql.adaptive.streaming.stateless.enabled"
"""Spark's setting for whether it plans the batches of a query without state of its own adaptively."""
ANY_ADAPTIVE = "spark.sql.adaptive.enabled"
"""Spark's setting for whether it plans anything adaptively."""

_BEFORE_SOURCES = ("Initializing StreamExecution", "Initializing sources")
_SOURCES_DEADLINE = 5.0
"""Seconds."""
_POLL_SECONDS = 0.01


@attrs.frozen
class _Starts:
    """The threads of a process that start queries: they share a session's settings and a writer's options."""

    one_at_a_time: runtime.Lock = attrs.field(factory=runtime.lock)


def start(
    writer: DataStreamWriter,
    *,
    location: str,
    query_id: str,
    proof: FenceProof,
    table: str | None = None,
    query_name: str | None = None,
    output: str | None = None,
    stateful: bool = False,
    after_batch: AfterBatch | None = None,
    once: bool = False,
) -> StreamingQuery:
    """Start the writer's query with ``location`` as its checkpoint directory.

    A writer can be started many times, on several locations, one after the other or at once. It keeps its
    ``foreachBatch`` or ``foreach`` function, and its options are not changed.

    Args:
        writer: what to start.
        location: a path or URI. On the local file system Spark writes the query's logs without starting processes,
            unless the user has set a file manager.
        query_id: Spark's id of the query, which its checkpoint directory has.
        proof: the query writes as soon as it runs: from its claim on, a successor's does.
        table: the name to start it with by ``toTable``; None: start it by ``start``.
        query_name: Spark's name for the query; None: the writer's own.
        output: the output directory of a file sink (``output_path``). Its log uses the same file manager: if it is
            not local, Spark's default stays.
        stateful: whether the query has operators of Chandy. Like a query with state of Spark's own, it is then not
            planned adaptively, unless the user has set that: an operator has as many partitions as tasks, and
            adaptive planning takes a tenth of the time of a small batch.
        after_batch: called once the writer's ``foreachBatch`` function has taken a batch; see ``followed``.
        once: whether it runs the batch that is planned and has not committed, and no other; its own trigger is for
            other starts.

    Raises:
        FencedError: there is a successor. The query does not run.
        WriterError: a query with this name runs in the session.
        BaseException: whatever Spark raises, or an interruption. The query does not run then.
    """
    spark = writer._spark
    _check_free(spark, query_name)
    if is_local(location):
        location = f"file://{local_path(location, role='working directory')}"
    wanted = {ADAPTIVE: "false"} if stateful else {}
    if is_local(location) and (output is None or is_local(output)):
        wanted[FILE_MANAGER] = LOCAL_FILE_MANAGER
    with (
        runtime.own(_Starts).one_at_a_time,
        _restored(writer, "extraOptions", "trigger"),
        followed(writer, after_batch),
        _unless_set(spark, wanted),
    ):
        writer.option("checkpointLocation", location)
        if query_name is not None:
            writer.queryName(query_name)
        if once:
            writer.trigger(once=True)
        # Preparing it may have taken longer than a successor waits.
        proof.check_now()
        try:
            with _unless_set(spark, _without_warning(spark) if stateful else {}):
                query = writer.start() if table is None else writer.toTable(table)
            _await_sources(query)
            # A fence that came meanwhile has stopped all other queries, and did not know of this one.
            proof.check()
        except BaseException:
            # Spark may have started it before: nobody would know of it, and it would go on writing.
            _stop(spark, query_id)
            raise
        return query


def _without_warning(spark: SparkSession) -> dict[str, str]:
    """Return with what settings Spark does not warn, at a start, that it will not plan the query adaptively."""
    return {ANY_ADAPTIVE: "false"} if spark.conf.get(ADAPTIVE, None) == "false" else {}


def _check_free(spark: SparkSession, name: str | None) -> None:
    if name is not None and any(query.name == name for query in spark.streams.active):
        raise WriterError(
            "the query cannot be started",
            "a name that no query has which runs in this Spark session",
            f"{name!r}, perhaps of another pipeline",
            "choose another name, or stop the other query first; if a checkpoint has the query under this name, keep "
            "that and set the writer's queryName",
        )


def _stop(spark: SparkSession, query_id: str) -> None:
    """Stop the query with an id, if it runs."""
    for query in spark.streams.active:
        if query.id == query_id:
            query.stop()


def _await_sources(query: StreamingQuery) -> None:
    # A query copies the session's settings when it starts, but creates its sources a little later and with the
    # session itself. Their logs have a file manager, too. If this takes longer, those logs are slower, nothing else.
    deadline = runtime.monotonic() + _SOURCES_DEADLINE
    while query.isActive and query.status["message"] in _BEFORE_SOURCES and runtime.monotonic() < deadline:
        runtime.sleep(_POLL_SECONDS)


@contextmanager
def _restored(writer: DataStreamWriter, *names: str) -> Iterator[None]:
    """Have fields of a writer as they were, once the ``with`` is over. What they hold is immutable."""
    # Spark cannot remove an option.
    java = writer._jwrite
    before = {name: field(java, name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            set_field(java, name, value)


@contextmanager
def _unless_set(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Set, within the ``with``, those settings of a session that the user has not set."""
    own = {name: value for name, value in wanted.items() if spark.conf.get(name, None) is None}
    try:
        for name, value in own.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name in own:
            spark.conf.unset(name)
