"""A bound on the time of calls whose client has no timeout of its own, and on how many of them hang."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from ...sinks.two_phase.errors import TargetUnavailableError

T = TypeVar("T")

MOST: Final = 100
"""Calls to one target that may hang at a time. Each has a thread and a connection until its client gives it up."""
_under_way: Counter[str] = Counter()
_lock: Final = threading.Lock()


def within(seconds: float, target: str, step: Callable[[], T]) -> T:
    """Return what a step returns, in another thread, or give it up.

    A step that was given up may still take effect, whenever it wants.

    Raises:
        TargetUnavailableError: it took longer, or too many earlier steps have been given up and still hang. Other
            errors are those of the step.
    """
    _count_in(target)
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(step())
        except BaseException as error:  # noqa: BLE001 (it is raised again where it is waited for)
            outcome.set_exception(error)
        finally:
            _count_out(target)

    thread = threading.Thread(target=run, name=f"call to {target}", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The process can have no more threads.
        _count_out(target)
        raise
    try:
        return outcome.result(seconds)
    except TimeoutError as error:
        if outcome.done():
            raise
        raise TargetUnavailableError(target, f"no answer within {seconds:g} s", is_understood=True) from error


def _count_in(target: str) -> None:
    with _lock:
        if _under_way[target] >= MOST:
            # It may have come back, and nobody would see it here. So this is tried for a while only.
            raise TargetUnavailableError(
                target, f"{MOST} calls have had no answer, and their clients still wait: restart the driver"
            )
        _under_way[target] += 1


def _count_out(target: str) -> None:
    with _lock:
        _under_way[target] -= 1
        if not _under_way[target]:
            del _under_way[target]
