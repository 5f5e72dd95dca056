"""What the log says of a failure: first what was raised and where, then what it happened to, below it the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ..errors import ProcessorFailedError, QueryFailedError


@attrs.define
class FailureReport:
    """What the log is told of the failures of a pipeline. Where one came from is told once, however often it comes."""

    _told: str = attrs.field(default="", init=False)

    def tell(self, write: Callable[..., Any], cause: Exception, **facts: object) -> None:
        """Log a failure.

        Args:
            write: a logger's method.
            cause: what has failed.
            facts: what else is to be said.
        """
        summary, where, traceback = _parts_of(cause)
        write(summary, **where, **facts, exception="" if traceback == self._told else traceback)
        self._told = traceback


def _parts_of(cause: Exception) -> tuple[str, dict[str, object], str]:
    """Return what has failed in a line, what it happened to, and the rest: where it came from."""
    match cause:
        case ProcessorFailedError():
            where = {"query": cause.query, "operator": cause.uid, "key": cause.key, "batch": cause.batch}
            return cause.summary, where, cause.traceback
        case QueryFailedError():
            head, _, rest = cause.message.partition("\n")
            return cause.summary or head, {"query": cause.query}, cause.message if cause.summary else rest
        case _:
            head, _, rest = str(cause).partition("\n")
            return head, {}, rest
