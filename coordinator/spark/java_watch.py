"""Watches the JVM of the session: whether it has ended, and whether it still answers.

Every question to Spark is one to its JVM, and py4j waits for the answer without end. So a JVM that does nothing any
more, because a signal has stopped it or it collects garbage all the time, would hold up whatever is asked of the
pipeline, and its driver would renew its lease nevertheless. A JVM that has been silent for long is ended: then all that
waits for it fails, and none of its queries writes anything later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from ...state.local.processes import Process
from ...storage.logs import carried, logger
from ...storage.long_waits import Reminder
from ..errors import JavaEndedError
from . import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)

_ASK_SECONDS: Final = 1.0
"""From one question to the next."""
_END_SECONDS: Final = 1.0
"""How long closing waits for an answer."""


@attrs.define
class UnansweredTime:
    """How long there has been no answer while this process was running itself.

    A machine that was suspended, or a container that was paused, wakes as a whole: then nobody could have answered.
    """

    longest_step: float
    """How much of the time between two calls counts at most."""
    seconds: float = attrs.field(default=0.0, init=False)

    def after(self, passed: float, *, answered: bool) -> float:
        """Return the seconds without an answer, now that some have passed since the call before."""
        self.seconds = 0.0 if answered else self.seconds + min(passed, self.longest_step)
        return self.seconds


class JavaWatch:
    """Asks one JVM again and again whether it answers, and ends it once it has been silent for too long."""

    def __init__(
        self,
        process: Process,
        ask: Callable[[], object],
        timeout: float | None,
        *,
        pause: float = _ASK_SECONDS,
    ) -> None:
        """Make a watch that does not ask yet.

        Args:
            process: the JVM.
            ask: asks it anything; returns or raises once there is an answer.
            timeout: seconds of silence after which it is ended; None for no limit.
            pause: seconds from one question to the next.
        """
        self.process = process
        self._ask = ask
        self._timeout = timeout
        self._pause = pause
        # A process that cannot be seen cannot be seen to end.
        self._is_seen = process.lives
        self._answered = threading.Event()
        self._ended_after: float | None = None
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=carried(target), name=name, daemon=True)
            for target, name in ((self._keep_asking, "chandy-java"), (self._listen, "chandy-java-watch"))
        ]

    @classmethod
    def begin(cls, spark: SparkSession, timeout: float | None) -> JavaWatch:
        """Watch the JVM of a session from now on."""
        watch = cls(session.java_process(spark), session.clock_of_java(spark), timeout)
        watch.start()
        return watch

    def start(self) -> None:
        """Ask from now on, on a thread that waits as long as the JVM is silent; another one counts how long that is."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ask no more. A question that is under way is waited for only a little."""
        self._closed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(_END_SECONDS)

    def check(self) -> None:
        """Check that the JVM lives.

        Raises:
            JavaEndedError: it has ended.
        """
        if self._has_ended:
            raise JavaEndedError(self.process.pid, self._ended_after)

    @property
    def _has_ended(self) -> bool:
        return self._is_seen and not self.process.lives

    def _keep_asking(self) -> None:
        while not self._closed.wait(self._pause) and not self._has_ended:
            # A question that fails has been answered, too.
            with suppress(Exception):
                self._ask()
            self._answered.set()

    def _listen(self) -> None:
        unanswered, reminder, before = UnansweredTime(2 * self._pause), Reminder(), time.monotonic()
        while not self._closed.wait(self._pause):
            now = time.monotonic()
            silent = unanswered.after(now - before, answered=self._answered.is_set())
            before = now
            if silent == 0.0:
                self._answered.clear()
                reminder = Reminder()
            if self._timeout is not None and silent > self._timeout:
                self._end(silent)
                return
            if reminder.is_due(silent):
                log.warning(
                    "the JVM of the Spark session does not answer; all that is asked of Spark waits for it",
                    process=self.process.pid,
                    seconds=round(silent),
                    ended_after=self._timeout,
                )

    def _end(self, silent: float) -> None:
        # Before it ends: what waits for it fails at once then, and asks why.
        self._ended_after = silent
        log.error(
            "ending the JVM of the Spark session, which does not answer",
            process=self.process.pid,
            seconds=round(silent),
        )
        if not self.process.kill():
            log.error("the JVM could not be ended; end it by kill -9", process=self.process.pid)
