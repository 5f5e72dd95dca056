"""Looks at something again and again, in the background: at executors that come and go, at what queries do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Self

import attrs

from ...storage import runtime
from ...storage.logs import carried, logger

log = logger(__name__)


@attrs.frozen
class Look:
    """What to do again and again."""

    take: Callable[[], None]
    seconds: float
    """From one look to the next."""


class Looks:
    """Takes looks in the background, each on a thread of its own: one that takes long holds up no other.

    A thread lives as long as its look, because with each thread py4j opens a connection to the JVM, and closes one.

    Args:
        looks: what to do, each by what it is for, as in "could not ...".
    """

    def __init__(self, looks: Mapping[str, Look]) -> None:
        self._closing = runtime.flag()
        self._threads = [
            runtime.thread(target=carried(partial(self._watch, aim, look)), name="chandy-look")
            for aim, look in looks.items()
        ]

    @classmethod
    def begin(cls, looks: Mapping[str, Look]) -> Self:
        """Take the first looks now."""
        made = cls(looks)
        for thread in made._threads:
            thread.start()
        return made

    def close(self) -> None:
        """Look no more. A look that is being taken goes on to its end."""
        self._closing.set()

    def _watch(self, aim: str, look: Look) -> None:
        has_failed = False
        while not self._closing.is_set():
            try:
                look.take()
                has_failed = False
            except Exception as error:  # noqa: BLE001 - the next look makes up for it, and a batch does without
                # Once, and not at each look while it lasts.
                if not has_failed and not self._closing.is_set():
                    log.warning(f"could not {aim}", error=str(error))
                has_failed = True
            self._closing.wait(look.seconds)
