"""Codes of failures in the text of an error."""

from __future__ import annotations

import io
import subprocess
import sys
import traceback

import pytest
from pyspark.util import handle_worker_exception

from chandy.state.errors import ChangelogBrokenError, HostLostError
from chandy.state.failure_marks import codes_in, mark
from chandy.storage.errors import DamagedError, FailureCode, FencedError

TOKEN = "secret"
LOST = HostLostError("unix://host", "killed")


def text(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (HostLostError("unix://host", "killed"), {FailureCode.HOST_LOST}),
        (ChangelogBrokenError("a", 1, "nothing"), {FailureCode.STATE_UNUSABLE}),
        (DamagedError("s", "k", "x", "y"), {FailureCode.UNREADABLE}),
        (FencedError("s", 1, 2, "another"), set()),
        (ValueError("HostLostError"), set()),
    ],
)
def test_an_error_carries_its_code_in_its_text(error: Exception, codes: set[FailureCode]) -> None:
    mark(error, TOKEN)
    assert codes_in(text(error), TOKEN) == codes


def test_an_error_carries_the_code_of_what_caused_it() -> None:
    try:
        try:
            raise LOST
        except HostLostError as error:
            raise RuntimeError("in the middle of something else") from error
    except RuntimeError as error:
        mark(error, TOKEN)
        assert codes_in(text(error), TOKEN) == {FailureCode.HOST_LOST}


def test_an_error_that_caused_itself_ends_its_task() -> None:
    error = ValueError("a user's own")
    error.__cause__ = error
    mark(error, TOKEN)
    assert codes_in(text(error), TOKEN) == set()


def test_an_error_does_not_carry_the_code_of_one_that_was_dealt_with() -> None:
    try:
        try:
            raise LOST
        except HostLostError:
            raise RuntimeError("another") from None
    except RuntimeError as error:
        mark(error, TOKEN)
        assert codes_in(text(error), TOKEN) == set()


@pytest.mark.parametrize("setting", ["SPARK_HIDE_TRACEBACK", "SPARK_SIMPLIFIED_TRACEBACK"])
def test_the_code_is_in_what_a_worker_tells_spark_however_short_that_is(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(setting, "1")
    sent = io.BytesIO()
    try:
        try:
            raise LOST
        except HostLostError as error:
            raise RuntimeError("in the middle of something else") from error
    except RuntimeError as error:
        mark(error, TOKEN)
        handle_worker_exception(error, sent)
    assert codes_in(sent.getvalue().decode(errors="replace"), TOKEN) == {FailureCode.HOST_LOST}


@pytest.mark.parametrize(
    "said",
    [
        "HostLostError: the state host is gone",
        "chandy.state.errors.ShardBrokenError: ...",
        "[chandy HOST_LOST]",
        "[chandy 0123456789abcdef HOST_LOST]",
    ],
)
def test_a_text_that_only_says_so_carries_no_code(said: str) -> None:
    assert codes_in(said, TOKEN) == set()


def test_another_pipelines_codes_are_not_this_ones() -> None:
    error = HostLostError("unix://host", "killed")
    mark(error, "another secret")
    assert codes_in(text(error), TOKEN) == set()
    assert "another secret" not in text(error)


def test_python_prints_the_code_of_an_error_that_nobody_catches() -> None:
    program = (
        "from chandy.state.errors import HostLostError; from chandy.state.failure_marks import mark\n"
        f"error = HostLostError('unix://host', 'killed'); mark(error, {TOKEN!r}); raise error"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert codes_in(ended.stderr, TOKEN) == {FailureCode.HOST_LOST}
