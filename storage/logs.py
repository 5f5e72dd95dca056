"""Structured logs through the standard library's ``logging``."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


def logger(name: str) -> BoundLogger:
    """Return a structured logger for a module. The program configures what is shown and where."""
    return cast("BoundLogger", _Late(name))


class _Late:
    """A logger that is made with its first event, because most tasks log nothing and need not load structlog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_logger(self._name), attribute)


@cache
def _logger(name: str) -> BoundLogger:
    import structlog

    bound: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound
