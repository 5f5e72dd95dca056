"""Structured logs through the standard library's ``logging``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict


def logger(name: str) -> BoundLogger:
    """Return a structured logger for a module. The program configures what is shown and where."""
    return cast("BoundLogger", _Late(name))


class _Late:
    """A logger that is made with its first event, because most tasks log nothing and need not load structlog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_logger(self._name), attribute)


def _line_and_traceback(line: Callable[[Any, str, EventDict], str]) -> Callable[[Any, str, EventDict], str]:
    """Put a traceback on lines of its own, below the line with the facts: it is to be read."""

    def render(logger: Any, method: str, event: EventDict) -> str:
        trace = str(event.pop("exception", "")).rstrip()
        return "\n".join(filter(None, [line(logger, method, event), trace]))

    return render


@cache
def _logger(name: str) -> BoundLogger:
    import structlog

    bound: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            _line_and_traceback(structlog.processors.LogfmtRenderer(key_order=["event"])),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound
