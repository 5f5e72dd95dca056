"""The exceptions of users' code: what was raised and where, in one line, and the traceback without Chandy's frames."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

import attrs

_OWN: Final = tuple(
    f"{Path(__file__).parents[1] / name}{os.sep}" for name in ("coordinator", "barrier", "state", "storage")
)
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "<frozen ")
_BEGIN: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'\s+File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_CALL: Final = re.compile(r"An error occurred while calling \w+\.")
"""All that Py4J says of an exception in Java. The exception itself follows."""
_CAUSE: Final = re.compile(r"^(?:Caused by: |: )(.+)", re.MULTILINE)
"""An exception in the stack trace of Java. The last one is where it began."""
_TASK: Final = re.compile(r"Lost task \S+ in stage \S+ \(TID \d+\) \((\S+) executor ")


@attrs.frozen
class Raised:
    """An exception of a user's code."""

    summary: str
    """In one line: ``ZeroDivisionError: division by zero, at /home/me/job.py:12 in handleInputRows``."""
    traceback: str
    """All of it, from the user's first frame on."""


def raised(error: BaseException) -> Raised:
    """Describe an exception that a user's code has let out."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    text = text_of(error).strip()
    what = type(error).__name__ + (f": {text.splitlines()[0]}" if text else "")
    try:
        told = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # noqa: BLE001 (what an exception says of itself may raise anything)
        told = "".join((*traceback.format_tb(trace), what))
    return Raised(storable(_summary(what, _frames(trace))), storable(told))


def text_of(value: object, text: Callable[[object], str] = str) -> str:
    """Return a value's text, by ``str`` or by ``repr``; a class of a user's may have none."""
    try:
        return text(value)
    except Exception as error:  # noqa: BLE001 (it may raise anything)
        return f"<the text of {type(value).__name__} raises {type(error).__name__}>"


def storable(text: str) -> str:
    """Return a text that can be encoded, and stored by any database, with escapes for what cannot."""
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def raised_in(text: str) -> str:
    """Return, in one line, the Python exception whose traceback a text contains; empty if there is none.

    Of several, it is the last: that of the task which failed, and not one that it was handling. If it says no more than
    that a call of Java has failed, Java's own exception stands for it.
    """
    _, begin, tail = text.rpartition(_BEGIN)
    if not begin:
        return ""
    frames: list[tuple[str, str, str]] = []
    for line in tail.splitlines()[1:]:
        if found := _FRAME.match(line):
            frames.append((found["file"], found["line"], found["function"]))
        elif _RAISED.fullmatch(line):
            return _java_cause(tail) if _CALL.search(line) else _summary(line, frames)
    return ""


def _java_cause(text: str) -> str:
    """Return, in one line, what has failed in Java, and on which machine if it was a task that did."""
    causes = _CAUSE.findall(text)
    cause = causes[-1] if causes else "Java has failed"
    task = _TASK.search(text)
    return f"{cause}, in a task on {task[1]}" if task else cause


def _frames(trace: TracebackType | None) -> list[tuple[str, str, str]]:
    return [(frame.filename, str(frame.lineno), frame.name) for frame in traceback.extract_tb(trace)]


def _summary(what: str, frames: Iterable[tuple[str, str, str]]) -> str:
    """Say where it was raised: in the innermost frame that is the user's own, outside of libraries."""
    known = list(frames)
    if not known:
        return what
    own = [frame for frame in known if not _is_library(frame[0])]
    if not own and what.startswith("ModuleNotFoundError: "):
        # It was unpickled, and the frames are those of PySpark's worker.
        return f"{what}, in a Python worker; install it where workers run, or name its folder in their PYTHONPATH"
    file, line, function = own[-1] if own else known[0]
    return f"{what}, at {file}:{line} in {function}"


def _is_library(file: str) -> bool:
    return (
        file.startswith(_OWN)
        or file.startswith(sysconfig.get_path("stdlib") + os.sep)
        or any(part in file for part in _LIBRARIES)
    )
