"""Structured logs that go through the standard library's ``logging``, as those of a library should."""

from __future__ import annotations

import logging

import structlog


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a structured logger for a module; what is shown, and where, is for the program to configure."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
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
