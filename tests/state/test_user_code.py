"""What is said of an exception of a user's code."""

from __future__ import annotations

import json
import traceback

import pytest

from chandy.state import user_code
from chandy.state.user_code import Raised, raised, raised_in
from chandy.storage.errors import ChandyError
from chandy.storage.keys import validate_name


def caught(error: BaseException | None = None, text: str = "{}") -> BaseException:
    """An exception from a line of this module, of its own or of a library that it calls."""
    try:
        if error is not None:
            raise error
        json.loads(text)
        validate_name("state", text)
    except (ValueError, KeyError, ChandyError) as found:
        return found
    raise AssertionError("nothing was raised")


def line_of(error: BaseException) -> int:
    assert error.__traceback__ is not None
    return error.__traceback__.tb_lineno


def test_the_summary_says_what_was_raised_and_where() -> None:
    error = caught(ValueError("no such carrier"))
    assert raised(error).summary == f"ValueError: no such carrier, at {__file__}:{line_of(error)} in caught"


@pytest.mark.parametrize(
    ("text", "what"),
    [("{", "JSONDecodeError: Expecting"), ("[]", "InvalidNameError: ")],
    ids=["json", "chandy"],
)
def test_the_place_is_the_users_line_and_not_that_of_the_library_that_it_called(text: str, what: str) -> None:
    error = caught(text=text)
    told = raised(error)
    assert told.summary.startswith(what)
    assert told.summary.endswith(f"at {__file__}:{line_of(error)} in caught")
    assert "decoder.py" in told.traceback or "keys.py" in told.traceback


def test_a_summary_is_one_line() -> None:
    assert raised(caught(ValueError("first\nsecond"))).summary.startswith("ValueError: first, at ")
    assert raised(caught(ValueError())).summary.startswith("ValueError, at ")


def test_an_exception_without_a_frame_of_the_user_has_no_place() -> None:
    assert raised(TypeError("None")) == Raised("TypeError: None", "TypeError: None\n")


def test_frames_of_chandy_above_the_users_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def task() -> None:
        caught_again()

    def caught_again() -> None:
        raise ValueError("own")

    code = task.__code__.replace(co_filename=f"{user_code._OWN[0]}engine.py")
    monkeypatch.setattr(task, "__code__", code)
    with pytest.raises(ValueError) as failed:
        task()
    told = raised(failed.value.with_traceback(failed.tb.tb_next))
    assert "engine.py" not in told.traceback
    assert told.summary.endswith("in caught_again")


def test_the_exception_of_a_python_function_is_found_in_what_spark_says() -> None:
    handled, error = caught(KeyError("handled")), caught(ValueError("no such carrier"))
    text = "".join(
        [
            "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted\n",
            *traceback.format_exception(handled),
            "\nDuring handling of the above exception, another exception occurred:\n\n",
            *traceback.format_exception(error),
            "\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)",
        ]
    )
    assert raised_in(text) == f"ValueError: no such carrier, at {__file__}:{line_of(error)} in caught"


@pytest.mark.parametrize(
    "text", ["", "Job aborted: disk full", "Traceback (most recent call last):\n  cut off"]
)
def test_a_text_without_a_python_exception_has_none(text: str) -> None:
    assert raised_in(text) == ""


def of_py4j(java: str) -> str:
    return (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
        '  File "/app/py4j/protocol.py", line 327, in get_return_value\n'
        "    raise Py4JJavaError(\n"
        "py4j.protocol.Py4JJavaError: An error occurred while calling o20215.collectToPython.\n" + java
    )


def test_a_failure_in_java_is_named_by_its_cause_and_machine() -> None:
    text = of_py4j(
        ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 3.0 (TID 9) (10.0.0.2 executor 1): java.io.IOException: No space left\n"
        "\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)\n\nDriver stacktrace:\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)\n"
        "Caused by: java.io.IOException: No space left on device\n\tat java.base/sun.nio.ch.write0(Native Method)\n"
    )
    assert raised_in(text) == "java.io.IOException: No space left on device, in a task on 10.0.0.2"


def test_a_failure_in_java_on_the_driver_has_no_machine() -> None:
    text = of_py4j(": java.lang.IllegalStateException: stopped\n\tat org.apache.spark.A.b(A.scala:1)\n")
    assert raised_in(text) == "java.lang.IllegalStateException: stopped"
    assert raised_in(of_py4j("")) == "Java has failed"


def test_a_module_that_workers_lack_is_named_with_what_to_do() -> None:
    text = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError\n"
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.11/site-packages/pyspark/worker.py", line 4207, in invoke_udf\n'
        "ModuleNotFoundError: No module named 'chandy_sqlite'\n"
    )
    assert raised_in(text) == (
        "ModuleNotFoundError: No module named 'chandy_sqlite', in a Python worker; install it where workers run, or "
        "name its folder in their PYTHONPATH"
    )
