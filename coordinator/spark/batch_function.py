"""Follows the ``foreachBatch`` function of a writer: what comes after it, before Spark commits the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...storage.ids import BatchId
from ...storage.logs import logger
from .plan import field, set_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logger(__name__)

_FIELD = "foreachBatchWriter"
AfterBatch = Callable[["DataFrame", BatchId], None]
"""What is called with the rows of a batch, and its number, once a function has returned."""


@contextmanager
def followed(writer: DataStreamWriter, after: AfterBatch | None) -> Iterator[None]:
    """Have queries that are started inside of the ``with`` call a function after each batch.

    Args:
        writer: the writer. If it has a ``foreachBatch`` function, it has the same one afterwards.
        after: called with the rows and the batch once the writer's function has returned. What it raises fails the
            batch, which Spark has not committed then. None: nothing is called, as for a function that is not Python's.
    """
    java = writer._jwrite
    given = field(java, _FIELD)
    function = None if after is None or given is None else _function(writer, given)
    if after is None or function is None:
        yield
        return

    def call(rows: DataFrame, batch: int) -> None:
        function(rows, batch)
        after(rows, BatchId(batch))

    writer.foreachBatch(call)
    try:
        yield
    finally:
        set_field(java, _FIELD, given)


def take_all(rows: DataFrame) -> None:
    """Run all tasks that compute rows, and write none of them."""
    rows.write.format("noop").mode("overwrite").save()


def _function(writer: DataStreamWriter, given: Any) -> Callable[[DataFrame, int], None] | None:
    """Return the function that was given to a writer, which the JVM has as a closure over a proxy of it."""
    spark = writer._spark
    proxies: Any = spark._jvm.java.lang.reflect.Proxy  # type: ignore[union-attr]
    captured = list(given.getClass().getDeclaredFields())
    for one in captured:
        one.setAccessible(True)
    found = [one.get(given) for one in captured]
    if len(found) != 1 or not proxies.isProxyClass(found[0].getClass()):
        log.warning("a function of foreachBatch is not followed: batches that it does not take go unnoticed")
        return None
    handler = proxies.getInvocationHandler(found[0])
    pool = spark._sc._gateway.gateway_property.pool  # type: ignore[union-attr]
    function: Callable[[DataFrame, int], None] = pool[field(handler, "id")].func
    return function
