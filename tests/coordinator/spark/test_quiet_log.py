"""Which messages Spark's log keeps. Java's regular expressions say of these what Python's say."""

from __future__ import annotations

import inspect
import logging
import re

import pytest
from py4j import clientserver

from chandy.coordinator.spark import quiet_log
from chandy.coordinator.spark.quiet_log import FRAMES_VARIABLE, _pattern

FAILURES = [
    "Aborting task",
    "Exception in task 1.0 in stage 5.0 (TID 11)",
    "[queryId = 65361] [batchId = 2] Lost task 1.0 in stage 5.0 (TID 11) (192.0.2.2 executor driver): "
    "org.apache.spark.api.python.PythonException: no\n\tat org.apache.spark.Task.run(Task.scala:1)\n",
    "[queryId = 63a05] [batchId = 0] Lost task 1.0 in stage 5.0 (TID 11) (192.0.2.2 executor driver): "
    'TaskKilled (Stage cancelled: no\n  File "job.py", line 1\nValueError: no)',
    "[queryId = 65361] [batchId = 2] Task 1 in stage 5.0 failed 1 times; aborting job",
    "Data source write support MicroBatchWrite[epoch: 2, writer: NoopStreamingWrite] is aborting.",
    "Data source write support MicroBatchWrite[epoch: 2, writer: NoopStreamingWrite] aborted.",
    "Aborted commit for partition 1 (task 11, attempt 0, stage 5.0)",
    "Query totals [id = 65361e28, runId = 0a2c3fa5] terminated with error",
]
KEPT = [
    "Lost task 1.0 in stage 5.0 (TID 11) (192.0.2.2 executor 3): ExecutorLostFailure (executor 3 exited)",
    "Lost executor 3 on 192.0.2.2: Remote RPC client disassociated",
    "Query totals [id = 65361e28, runId = 0a2c3fa5] has slowed down",
]


@pytest.mark.parametrize("message", FAILURES)
def test_failures_that_the_driver_tells_are_dropped_unless_somebody_wants_them(message: str) -> None:
    assert re.fullmatch(_pattern({}), message)
    assert not re.fullmatch(_pattern({FRAMES_VARIABLE: "1"}), message)


def test_what_is_told_nowhere_else_is_kept() -> None:
    assert not [message for message in KEPT if re.fullmatch(_pattern({}), message)]


def test_the_warning_of_a_stop_is_dropped_in_any_case() -> None:
    warning = "Failed to cancel job group 1. Cannot find active jobs for it."
    assert re.fullmatch(_pattern({FRAMES_VARIABLE: "1"}), warning)


def test_py4j_logs_what_is_looked_for() -> None:
    source = inspect.getsource(clientserver)
    first, second = quiet_log._PROXY.split("the ", 1)[0], "Python Proxy on the Python Side."
    assert f'"{first}the "' in source
    assert second in source
    assert clientserver.logger.name == "py4j.clientserver"
    told = logging.makeLogRecord({"msg": quiet_log._PROXY})
    assert not quiet_log._is_news(told)
    assert quiet_log._is_news(logging.makeLogRecord({"msg": "Error while sending"}))
