"""Where and how a query has failed, by what Spark says of it. Rules about texts, no I/O.

Two failures are the same if they hit the same batch, which has not committed in between, with the same error at the
same point: the texts are equal but for numbers and ids. Trouble with something outside, such as a database that is
away, is never the same: it passes, or the restart strategy gives up.
"""

from __future__ import annotations

import re
from typing import Final

from ..error_texts import without_places
from ..protocol.repetition import FailurePoint

_LENGTH: Final = 20_000
_IDS: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|0x[0-9a-fA-F]+|\d+")
_PYTHON: Final = "Traceback (most recent call last)"
_JAVA_FRAME: Final = re.compile(r"^\s+at \S.*$", re.MULTILINE)
# With the lines of code below it, which are indented further.
_PYTHON_FRAME: Final = re.compile(r'^( +)File "[^"\n]*", line \d+.*(?:\n\1 .*)*$', re.MULTILINE)
_TYPES: Final = re.compile(
    r"\b(?:[A-Za-z_]\w*[.$])+([A-Z]\w*)|\b([A-Z]\w*(?:Error|Exception|Failure|Failed))\b|^([A-Z]\w*)(?=:|\s*$)",
    re.MULTILINE,
)
"""Names of types of errors: those with their module, those that are called errors, and what a line begins with."""
_PASSING: Final = re.compile(
    r"\w*(?:Connect|Disconnect|Timeout|TimedOut|Socket|Network|UnknownHost|NoRouteToHost|Unavailable|Throttl|SlowDown"
    r"|BrokenPipe|Retr[iy]|Interrupted|Unreachable|RateLimit|TooManyRequests|Deadlock)\w*"
    r"|OSError|IOError|IOException|EOFError|EOFException|BlockingIOError|FileNotFoundError|FileNotFoundException"
    r"|PermissionError|MemoryError|OutOfMemoryError|ServiceError|HTTPError|URLError|HTTPException|StoreFailedError"
    r"|gaierror|OperationalError|ExecutorLostFailure|FetchFailed\w*|ClosedChannelException"
)
"""Types of errors of something outside."""
_PASSING_TEXTS: Final = re.compile(
    r"No space left on device|Python worker exited unexpectedly|[Cc]onnection (?:reset|refused|closed|aborted)"
    r"|timed out|temporarily unavailable|HTTP (?:429|5\d\d)"
    r"|\((?:SlowDown|Throttl\w*|RequestTimeout\w*|ServiceUnavailable|TooManyRequests\w*|InternalError)\)"
)
"""What those say whose types say nothing, such as an error of S3 with its code."""
_RACE: Final = "Race while writing batch"
"""What Spark's file sink says if the entry of a batch is in its log already when it adds that."""


def says_output_is_shared(text: str) -> bool:
    """Return whether a query has failed because another program has written the same batch into its output.

    Args:
        text: what Spark says.
    """
    return _RACE in text


def _passes(error: str) -> bool:
    # What was raised counts, not the names of the code that it came through, nor those of the files that it was about.
    raised = without_places(_PYTHON_FRAME.sub("", error))
    types = ("".join(found) for found in _TYPES.findall(raised))
    return any(map(_PASSING.fullmatch, types)) or bool(_PASSING_TEXTS.search(raised))


def failure_point(batch: int, text: str, traceback: str | None) -> FailurePoint | None:
    """Return where a query has failed; None if the failure may pass by itself.

    Args:
        batch: the newest batch that had been planned.
        text: what Spark says.
        traceback: of the user's processor, if that raised.
    """
    # The machine that a task ran on comes before the traceback.
    raised = text[text.find(_PYTHON) :] if _PYTHON in text else text
    error = _JAVA_FRAME.sub("", (raised if traceback is None else traceback)[:_LENGTH])
    if not error or _passes(error):
        return None
    return FailurePoint(batch, _IDS.sub("#", error), traceback is not None or _PYTHON in text)
