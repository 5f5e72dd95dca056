"""Looks at a cluster's executors again and again, for all that has to do something when they come or go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, Self

from ...storage.logs import carried, logger
from ..execution.workers import Workers

log = logger(__name__)

_LOOK_SECONDS: Final = 0.5
"""How often. An executor that is decommissioned and has nothing to do is there for one more second."""


class ExecutorWatch:
    """Takes looks at the executors twice a second, in the background.

    Args:
        looks: what to do, each by what it is for, as in "could not ...". One that takes long holds up no other, and is
            not begun again meanwhile.
    """

    def __init__(self, looks: Mapping[str, Callable[[], None]]) -> None:
        self._looks = looks
        self._workers = {aim: Workers(self._look, 1, "chandy-look") for aim in looks}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=carried(self._watch), name="chandy-executors", daemon=True)

    @classmethod
    def begin(cls, looks: Mapping[str, Callable[[], None]]) -> Self:
        """Take the first looks now."""
        made = cls(looks)
        made._thread.start()
        return made

    def close(self) -> None:
        """Look no more. A look that is being taken goes on to its end."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.is_set():
            for aim, workers in self._workers.items():
                if workers.is_idle:
                    workers.submit(aim)
            self._closing.wait(_LOOK_SECONDS)

    def _look(self, aim: str) -> None:
        try:
            self._looks[aim]()
        except Exception as error:  # noqa: BLE001 - the next look makes up for it, and a batch does without
            if not self._closing.is_set():
                log.warning(f"could not {aim}", error=str(error))
