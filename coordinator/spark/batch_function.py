"""Follows the ``foreachBatch`` function of a writer: what comes after it, before Spark commits the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...storage.ids import BatchId
from .plan import field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_FIELD = "foreachBatchWriter"


@contextmanager
def followed(writer: DataStreamWriter, after: Callable[[BatchId], None] | None) -> Iterator[None]:
    """Have queries that are started inside of the ``with`` call a function after each batch.

    Args:
        writer: the writer. If it has a ``foreachBatch`` function, it has the same one afterwards.
        after: called with the batch once the writer's function has returned. What it raises fails the batch, which
            Spark has not committed then. None: nothing is called.
    """
    java = writer._jwrite
    given = field(java, _FIELD)
    if after is None or given is None:
        yield
        return
    function, then = _function(writer, given), after

    def call(rows: DataFrame, batch: int) -> None:
        function(rows, batch)
        then(BatchId(batch))

    writer.foreachBatch(call)
    try:
        yield
    finally:
        holder = java.getClass().getDeclaredField(_FIELD)
        holder.setAccessible(True)
        holder.set(java, given)


def _function(writer: DataStreamWriter, given: Any) -> Callable[[DataFrame, int], None]:
    """Return the function that was given to a writer, which the JVM has as a closure over a proxy of it."""
    spark = writer._spark
    (captured,) = given.getClass().getDeclaredFields()
    captured.setAccessible(True)
    handler = spark._jvm.java.lang.reflect.Proxy.getInvocationHandler(captured.get(given))  # type: ignore[union-attr]
    pool = spark._sc._gateway.gateway_property.pool  # type: ignore[union-attr]
    found: Callable[[DataFrame, int], None] = pool[field(handler, "id")].func
    return found
