"""Failure codes on their way from a task, through Spark, to the driver.

Spark hands the text of a task's error to the driver, and nothing else. So a task adds the error's code as a note
(PEP 678), which Python prints with the traceback. The note holds a tag that only this pipeline's processes know: what a
user's code raises cannot be taken for one, whatever it says.
"""

from __future__ import annotations

import hashlib
import re

from ..storage.errors import ChandyError, FailureCode


def mark(error: BaseException, token: str) -> None:
    """Add the code of an error, or of what caused it, to the error's text; do nothing if there is none.

    Args:
        error: what is about to end a task.
        token: the secret that the pipeline's processes share.
    """
    cause: BaseException | None = error
    # ``raise error from error`` makes an error its own cause.
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, ChandyError) and cause.code is not None:
            error.add_note(f"[chandy {_tag(token)} {cause.code}]")
            return
        seen.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def codes_in(text: str, token: str) -> frozenset[FailureCode]:
    """Return the codes that tasks of this pipeline have added to a text."""
    found: list[str] = re.findall(rf"\[chandy {_tag(token)} ([A-Z_]+)\]", text)
    return frozenset(FailureCode[code] for code in found if code in FailureCode.__members__)


def _tag(token: str) -> str:
    # Logs and error messages show the tag, and must not show the secret.
    return hashlib.sha256(f"failure {token}".encode()).hexdigest()[:16]
