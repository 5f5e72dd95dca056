"""What the log says of a failure: first what was raised and where, then what it happened to, below it the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ProcessorFailedError, QueryFailedError


def tell_failure(write: Callable[..., Any], cause: Exception, **facts: object) -> None:
    """Log a failure.

    Args:
        write: a logger's method.
        cause: what has failed.
        facts: what else is to be said.
    """
    match cause:
        case ProcessorFailedError():
            where = {"query": cause.query, "operator": cause.uid, "key": cause.key, "batch": cause.batch}
            write(cause.summary, **where, **facts, exception=cause.traceback)
        case QueryFailedError():
            head, _, rest = cause.message.partition("\n")
            write(
                cause.summary or head,
                query=cause.query,
                **facts,
                exception=cause.message if cause.summary else rest,
            )
        case _:
            head, _, rest = str(cause).partition("\n")
            write(head, **facts, exception=rest)
