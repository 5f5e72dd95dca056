"""Which failures are the same one again, from what Spark says of them."""

from __future__ import annotations

import pytest

from chandy.coordinator.protocol.repetition import FailurePoint, Repetition
from chandy.coordinator.recovery.failure_point import failure_point

TRACEBACK = "Traceback (most recent call last):"
IDS = ("9b2f6c1e-2a53-4d7b-9a51-0c8c1be5a1f2", "11111111-2a53-4d7b-9a51-0c8c1be5a1f2")


def of_spark(cause: str, attempt: int) -> str:
    return f"[STREAM_FAILED] Query [id = {IDS[0]}, runId = {IDS[attempt]}] terminated with exception: {cause}"


def in_a_task(error: str, attempt: int, host: str = "a") -> str:
    return (
        of_spark("Job aborted due to stage failure: ", attempt)
        + f"Lost task {attempt}.0 in stage {attempt + 3}.0 (TID {attempt + 40}) (worker-{host} executor driver): "
        + "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        + f'  File "/job.py", line 7, in handle\n    return 1 / 0\n{error}\n\n'
        + f"\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle({attempt}.scala)\n"
    )


def test_the_same_error_of_spark_in_two_runs_is_the_same() -> None:
    wall = "[BATCH_METADATA_NOT_FOUND] Unable to find batch /out/_spark_metadata/29. SQLSTATE: 42K03"
    first, second = (failure_point(7, of_spark(wall, attempt), None) for attempt in range(2))
    assert first == second is not None
    assert not first.in_user_code


def test_the_same_exception_in_a_task_is_the_same_wherever_the_task_ran() -> None:
    first = failure_point(7, in_a_task("ZeroDivisionError: division by zero", 0, "a"), None)
    assert (
        first == failure_point(7, in_a_task("ZeroDivisionError: division by zero", 1, "b"), None) is not None
    )
    assert first.in_user_code


@pytest.mark.parametrize(
    ("batch", "error"), [(8, "ZeroDivisionError: division by zero"), (7, "KeyError: 'k'")]
)
def test_another_batch_or_another_error_is_not_the_same(batch: int, error: str) -> None:
    first = failure_point(7, in_a_task("ZeroDivisionError: division by zero", 0), None)
    assert first != failure_point(batch, in_a_task(error, 0), None)


def test_of_a_processor_that_raised_its_own_traceback_counts() -> None:
    """Which key comes first is chance, and what Spark says differs."""
    first, second = (
        failure_point(7, in_a_task(text, attempt), "Traceback...\nValueError: 19 is odd")
        for attempt, text in enumerate(("key 19", "another text"))
    )
    assert first == second is not None
    assert first.in_user_code


@pytest.mark.parametrize(
    "error",
    [
        "ConnectionRefusedError: [Errno 111] Connection refused",
        "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='x', port=443)",
        "psycopg2.OperationalError: server closed the connection unexpectedly",
        "java.net.UnknownHostException: broker",
        "java.io.IOException: No space left on device",
        "org.apache.kafka.common.errors.TimeoutException: Failed to get offsets",
        "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling PutObject",
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/share/model'",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
        "java.lang.OutOfMemoryError: Java heap space",
    ],
)
def test_trouble_with_something_outside_is_never_the_same(error: str) -> None:
    assert failure_point(7, of_spark(error, 0), None) is None
    assert failure_point(7, in_a_task(error, 0), None) is None
    assert failure_point(7, of_spark("", 0), f"Traceback...\n{error}") is None


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: not to raise",
        "org.apache.spark.SparkFileNotFoundException: [BATCH_METADATA_NOT_FOUND] Unable to find batch /out/29",
        "ValueError: no column ConnectTimeout, only RetryError_count",
        "KeyError: 'SocketAddress'",
        "ValueError: /mnt/timed out/Timeout/HTTP 503/part-0.parquet has no column 'k'".replace(" ", "_", 2),
        "RuntimeError: s3://retries/java.net.SocketTimeoutException/a.csv is empty",
        "pyspark.errors.exceptions.captured.AnalysisException: `socket_timeout` cannot be resolved",
        "java.lang.ArithmeticException: / by zero\n\tat py4j.ClientServerConnection.run(ClientServerConnection.java)",
    ],
)
def test_what_a_program_does_wrong_is(error: str) -> None:
    assert failure_point(7, of_spark(error, 0), None) is not None


def test_the_code_that_an_exception_came_through_does_not_make_it_pass_by_itself() -> None:
    error = (
        '  File "/app/RetryPolicy.py", line 12, in fetch\n'
        "    return Connection(timeout=Timeout(3)).get(row)\n"
        "           ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~^^^^^^^^\n"
        "ValueError: 19 is odd"
    )
    assert failure_point(7, in_a_task(error, 0), None) is not None
    assert failure_point(7, of_spark("", 0), f"{TRACEBACK}\n{error}") is not None
    passing = error.replace("ValueError", "ConnectTimeout")
    assert failure_point(7, of_spark("", 0), f"{TRACEBACK}\n{passing}") is None


def test_a_run_without_an_error_text_is_not_compared() -> None:
    assert failure_point(7, "", None) is None


def test_only_failures_in_a_row_count() -> None:
    here, there = FailurePoint(1, "a", in_user_code=False), FailurePoint(2, "a", in_user_code=False)
    twice = Repetition(here).then(here)
    assert (twice.times, twice.then(there).times, twice.then(there).then(here).times) == (2, 1, 1)
