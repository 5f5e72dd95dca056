"""Structured logs through the standard library's ``logging``.

What several lines are about, such as the pipeline, is named once: ``named`` for the code inside of a ``with``, and
``carried`` and ``named_pool`` for threads that go on with the work. Lines that follow from an event of the checkpoint
protocol have its id as ``event_id``, see ``caused_by``.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from . import runtime

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger
    from structlog.typing import EventDict

P = ParamSpec("P")
T = TypeVar("T")

_loading = runtime.lock()
_cause: contextvars.ContextVar[int | None] = contextvars.ContextVar("chandy_cause", default=None)


@cache
def _load() -> None:
    """Load structlog. Threads that import parts of it at the same time may be given half a module."""
    with _loading:
        import structlog  # noqa: F401


def logger(name: str) -> BoundLogger:
    """Return a structured logger for a module. The program configures what is shown and where."""
    return cast("BoundLogger", _Late(name))


@contextmanager
def named(**names: str) -> Iterator[None]:
    """Add names, such as that of the pipeline, to every line that is logged inside of the ``with``."""
    _load()
    from structlog.contextvars import bound_contextvars

    with bound_contextvars(**names):
        yield


@contextmanager
def caused_by(event: int | None) -> Iterator[None]:
    """Add the id of an event of the checkpoint protocol to every line inside of the ``with``; None: of no event."""
    token = _cause.set(event)
    try:
        yield
    finally:
        _cause.reset(token)


def cause() -> int | None:
    """Return the id of the event that what is done here follows from; None if it follows from none."""
    return _cause.get()


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """Return a function for another thread to call, once, which logs with the names that are known here.

    A thread outlives the event in which it was started. So the event is not its cause.
    """
    context = contextvars.copy_context()
    context.run(_cause.set, None)
    return partial(context.run, call)


def named_pool(threads: int, name: str) -> Executor:
    """Return a pool of threads that log with the names that are known here."""
    _load()
    from structlog.contextvars import bind_contextvars, get_contextvars

    return runtime.pool(threads, name, initializer=partial(bind_contextvars, **get_contextvars()))


class _Late:
    """A logger that is made with its first event, because most tasks log nothing and need not load structlog."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(_logger(self._name), attribute)


def _with_cause(logger: Any, method: str, event: EventDict) -> EventDict:
    if (of := _cause.get()) is not None:
        event.setdefault("event_id", of)
    return event


def _line_and_traceback(line: Callable[[Any, str, EventDict], str]) -> Callable[[Any, str, EventDict], str]:
    """Put a traceback on lines of its own, below the line with the facts: it is to be read."""

    def render(logger: Any, method: str, event: EventDict) -> str:
        trace = str(event.pop("exception", "")).rstrip()
        return "\n".join(filter(None, [line(logger, method, event), trace]))

    return render


@cache
def _logger(name: str) -> BoundLogger:
    _load()
    import structlog

    bound: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _with_cause,
            structlog.processors.format_exc_info,
            _line_and_traceback(
                structlog.processors.LogfmtRenderer(
                    key_order=["event", "pipeline", "query"], drop_missing=True
                )
            ),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return bound
