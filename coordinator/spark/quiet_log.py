"""Keeps from Spark's log what says nothing new: a warning of every stop of a query, and failures that Chandy tells.

To stop a query, Spark cancels its jobs. A query that is between two batches has none, and Spark warns of that, twice.
Of a task that fails, Spark tells four to eight times, each time with all frames of the JVM, and py4j once more of a
function of ``foreachBatch``; the driver's log tells of it once, with the user's own lines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError

from ...storage.logs import logger
from .session import answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

FRAMES_VARIABLE: Final = "CHANDY_SPARK_FRAMES"
"""Environment variable of the driver: if it is set, Spark's log keeps what it says of failed tasks and queries."""
_LOGGER: Final = "org.apache.spark.scheduler.DAGScheduler"
_STOPS: Final = (r"Failed to cancel job group .* Cannot find active jobs for it.*",)
_FAILURES: Final = (
    r"Aborting task.*",
    r"Abort(ing|ed) commit for partition .*",
    r"Exception in task .* in stage .*",
    # What has more lines is an exception; a lost executor has one.
    r"Lost task .* in stage .*\n.*",
    r"Task \d+ in stage .* failed \d+ times; aborting job",
    r"Data source write support .* (is aborting|aborted)\.",
    r"Aborting job .*",
    r"Query .* terminated with error",
)


_PROXY: Final = "There was an exception while executing the Python Proxy on the Python Side."
"""What py4j says of a Python function that was called by the JVM and has raised. Spark gets the exception, too."""


def _is_news(record: logging.LogRecord) -> bool:
    return record.msg != _PROXY


def _pattern(environment: Mapping[str, str]) -> str:
    """Return what matches the whole of each message that is dropped, as Java's regular expressions have it."""
    dropped = _STOPS if environment.get(FRAMES_VARIABLE) else (*_STOPS, *_FAILURES)
    # The structured log of Spark names the query before the message.
    return rf"(?s)(\[queryId = \S*\] )?(\[batchId = \S*\] )?({'|'.join(dropped)})"


def hide_what_is_told(spark: SparkSession) -> Callable[[], None]:
    """Have log4j drop such messages, and nothing else; return what ends that.

    Nothing happens if Spark logs by something else, or if the JVM has ended.
    """
    proxies = logging.getLogger("py4j.clientserver")
    if not os.environ.get(FRAMES_VARIABLE):
        # It stays, as pipelines of one process share the logger; added again, it is there once.
        proxies.addFilter(_is_news)
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    try:
        result = log4j.core.Filter.Result
        pattern = _pattern(os.environ)
        drop = log4j.core.filter.RegexFilter.createFilter(pattern, None, False, result.DENY, result.NEUTRAL)
        config = log4j.LogManager.getContext(False).getConfiguration().getLoggerConfig(_LOGGER)
        config.addFilter(drop)
    except (Py4JError, OSError, TypeError) as error:
        log.debug("Spark's log keeps what is told elsewhere", error=str(error))
        return lambda: None
    return lambda: answer(lambda: config.removeFilter(drop), lambda error: None)
