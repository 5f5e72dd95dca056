"""Signals that ask a process to end. Their handler takes no lock, because it may interrupt the thread that holds it."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from types import FrameType, TracebackType
from typing import Any, Final, Self

_MANY: Final = 4096


class EndSignal:
    """Whether a signal has asked this process to end, and which. Made, left and waited for in the main thread.

    The handler sets a plain attribute, and the interpreter writes a byte into a pipe, on which ``wait`` waits. A
    ``threading.Event`` has a lock: a thread that is interrupted while it holds that would wait for itself. A handler
    runs between two steps of Python: what it wrote itself could come too late for a wait that is about to begin.
    """

    def __init__(self, *numbers: signal.Signals, once: bool = False) -> None:
        """Handle signals from now on.

        Args:
            numbers: the signals.
            once: whether the ones after the first do what they did before.
        """
        self.number: signal.Signals | None = None
        """The latest one that has come; None: none has."""
        self._once = once
        self._reads, self._writes = os.pipe()
        os.set_blocking(self._writes, False)
        # What is not of Python cannot be set again.
        self._before: dict[signal.Signals, Any] = {
            number: signal.getsignal(number) or signal.SIG_DFL for number in numbers
        }
        # A full pipe wakes anyone who waits just as well.
        self._woken_before = signal.set_wakeup_fd(self._writes, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = signal.Signals(number)
        if self._once:
            self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @property
    def has_come(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.number is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a signal, so many seconds at most; return whether one has come."""
        asked = select.poll()
        asked.register(self._reads, select.POLLIN)
        until = math.inf if seconds is None else time.monotonic() + seconds
        while not self.has_come:
            left = until - time.monotonic()
            if not asked.poll(None if left == math.inf else max(0.0, left) * 1000):
                break
            # It may be another signal.
            os.read(self._reads, _MANY)
        return self.has_come

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        signal.set_wakeup_fd(self._woken_before)
        for end in (self._reads, self._writes):
            os.close(end)
