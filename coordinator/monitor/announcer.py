"""Calls a function with what happens in a pipeline, on a thread of its own: nothing waits for the function."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final

from ...storage.logs import carried, logger
from ..recovery.pipeline_events import PipelineEvent

log = logger(__name__)

_WAITING: Final = 1000
"""How many events may wait for a function that is slow. Further ones are dropped."""
_END_SECONDS: Final = 5.0
"""How long closing waits for the function to take what has happened."""


class Announcer:
    """Hands events to one function, one after the other, in their order."""

    def __init__(self, listener: Callable[[PipelineEvent], object], name: str = "on_event") -> None:
        """Start the thread.

        Args:
            listener: the function. What it raises is logged.
            name: what the log calls it.
        """
        self._listener = listener
        self._name = name
        self._events: queue.Queue[PipelineEvent | None] = queue.Queue(_WAITING)
        self._dropped = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=carried(self._run), name="chandy-events", daemon=True)
        self._thread.start()

    def tell(self, event: PipelineEvent) -> None:
        """Have the function called with an event. This never waits, and never raises."""
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                log.error(
                    "events are taken more slowly than they come; further ones are dropped",
                    by=self._name,
                    waiting=_WAITING,
                )

    def close(self) -> None:
        """End the thread once the function has taken all events, or leave it behind if that takes long."""
        self._closing.set()
        # If there is no room, the thread sees by itself that it is to end.
        with contextlib.suppress(queue.Full):
            self._events.put_nowait(None)
        if threading.current_thread() is self._thread:
            # The function has stopped the pipeline.
            return
        self._thread.join(_END_SECONDS)
        left = self._events.qsize()
        if self._thread.is_alive():
            log.error(
                "closed although a listener hangs; it is left behind",
                listener=self._name,
                events=left,
                seconds=_END_SECONDS,
            )
        if self._dropped:
            log.error("a listener was not told of everything", listener=self._name, dropped=self._dropped)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                self._listener(event)
            except Exception:
                # Nothing depends on it.
                log.exception("a listener has raised", listener=self._name, what=type(event).__name__)
            if self._closing.is_set() and self._events.empty():
                return
