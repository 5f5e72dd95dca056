"""Looks at something again and again, in the background: at executors that come and go, at what queries do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

import attrs

from ...storage.logs import carried, logger
from .workers import Workers

log = logger(__name__)


@attrs.frozen
class Look:
    """What to do again and again."""

    take: Callable[[], None]
    seconds: float
    """From one look to the next."""


class Looks:
    """Takes looks in the background. One that takes long holds up no other, and is not begun again meanwhile.

    Args:
        looks: what to do, each by what it is for, as in "could not ...".
    """

    def __init__(self, looks: Mapping[str, Look]) -> None:
        self._looks = looks
        self._workers = {aim: Workers(self._take, 1, "chandy-look") for aim in looks}
        self._failing: set[str] = set()
        """Those whose latest look failed."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=carried(self._watch), name="chandy-looks", daemon=True)

    @classmethod
    def begin(cls, looks: Mapping[str, Look]) -> Self:
        """Take the first looks now."""
        made = cls(looks)
        made._thread.start()
        return made

    def close(self) -> None:
        """Look no more. A look that is being taken goes on to its end."""
        self._closing.set()

    def _watch(self) -> None:
        due = dict.fromkeys(self._looks, 0.0)
        while not self._closing.wait(max(0.0, min(due.values()) - time.monotonic())):
            for aim, look in self._looks.items():
                if (now := time.monotonic()) >= due[aim]:
                    due[aim] = now + look.seconds
                    if self._workers[aim].is_idle:
                        self._workers[aim].submit(aim)

    def _take(self, aim: str) -> None:
        try:
            self._looks[aim].take()
            self._failing.discard(aim)
        except Exception as error:  # noqa: BLE001 - the next look makes up for it, and a batch does without
            # Once, and not at each look while it lasts.
            if aim not in self._failing and not self._closing.is_set():
                log.warning(f"could not {aim}", error=str(error))
            self._failing.add(aim)
