"""Keeps from Spark's log a warning that every stop of a query causes, and that looks like trouble.

To stop a query, Spark cancels its jobs. A query that is between two batches has none, and Spark warns of that, twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from ...storage.logs import logger
from .session import answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_LOGGER: Final = "org.apache.spark.scheduler.DAGScheduler"
_WARNING: Final = "Failed to cancel job group .* Cannot find active jobs for it.*"


def hide_warning_of_stops(spark: SparkSession) -> Callable[[], None]:
    """Have log4j drop the warning, and nothing else; return what ends that.

    Nothing happens if Spark logs by something else, or if the JVM has ended.
    """
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    try:
        result = log4j.core.Filter.Result
        drop = log4j.core.filter.RegexFilter.createFilter(_WARNING, None, False, result.DENY, result.NEUTRAL)
        config = log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(_LOGGER)
        config.addFilter(drop)
    except (Py4JError, OSError, TypeError) as error:
        log.debug("the warning of Spark's stops stays in its log", error=str(error))
        return lambda: None
    return lambda: answer(lambda: config.removeFilter(drop), lambda error: None)
