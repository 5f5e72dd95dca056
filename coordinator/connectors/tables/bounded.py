"""A bound on the time of a call whose client has no timeout of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ...sinks.two_phase.errors import TargetUnavailableError

T = TypeVar("T")


def within(seconds: float, target: str, step: Callable[[], T]) -> T:
    """Return what a step returns, in another thread, or give it up.

    A step that was given up may still take effect, whenever it wants.

    Raises:
        TargetUnavailableError: it took longer. Other errors are those of the step.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(step())
        except BaseException as error:  # noqa: BLE001 (it is raised again where it is waited for)
            outcome.set_exception(error)

    threading.Thread(target=run, name=f"call to {target}", daemon=True).start()
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        if outcome.done():
            raise
        raise TargetUnavailableError(target, f"no answer within {seconds:g} s", is_understood=True) from error
