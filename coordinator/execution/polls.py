"""Polls: what the driver looks at again and again in the background, such as executors that come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import attrs

from ...storage import runtime
from ...storage.logs import carried, logger

log = logger(__name__)


@attrs.frozen
class Poll:
    """What to do again and again."""

    take: Callable[[], None]
    seconds: float
    """From the end of one poll to the next."""


class Polls:
    """Polls in the background, each on a thread of its own: one that takes long holds up no other.

    A thread lives as long as its poll, because with each thread py4j opens a connection to the JVM, and closes one.

    Args:
        polls: what to do, each by what it is for, as in "could not ...".
    """

    def __init__(self, polls: Mapping[str, Poll]) -> None:
        self._closing = runtime.flag()
        self._threads = [
            runtime.thread(target=carried(partial(self._watch, aim, poll)), name="chandy-poll")
            for aim, poll in polls.items()
        ]

    @classmethod
    def begin(cls, polls: Mapping[str, Poll]) -> Self:
        """Begin to poll now."""
        made = cls(polls)
        for thread in made._threads:
            thread.start()
        return made

    def close(self) -> None:
        """Poll no more. A poll that is under way goes on to its end."""
        self._closing.set()

    def _watch(self, aim: str, poll: Poll) -> None:
        has_failed = False
        while not self._closing.is_set():
            try:
                poll.take()
                has_failed = False
            except Exception as error:  # noqa: BLE001 - the next poll makes up for it, and a batch does without
                # Once, and not at each look while it lasts.
                if not has_failed and not self._closing.is_set():
                    log.warning(f"could not {aim}", error=str(error))
                has_failed = True
            self._closing.wait(poll.seconds)
