"""A reader in a process of its own, so that it takes no time from the driver's Python: says when rows have appeared.

``python -m benchmarks.sinks.watch TARGET``: the target is pickled, as base64.
"""

from __future__ import annotations

import base64
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..lives import Life, say
from .figures import Seen
from .targets import NOTHING, Target

_POLL_SECONDS: Final = 0.01


class Watcher:
    """The reader's process, and what it has seen."""

    def __init__(self, target: Target, folder: Path) -> None:
        """Start it.

        Args:
            target: what to read.
            folder: takes its files.
        """
        self.seen: list[Seen] = []
        value = base64.b64encode(pickle.dumps(target)).decode()
        folder.mkdir(parents=True, exist_ok=True)
        self._life = Life([value], module=__name__, folder=folder, log=folder / "reader.log")
        self._log = folder / "reader.log"

    def wait(self, until: Callable[[], bool], deadline: float) -> None:
        """Take in what is seen until a condition holds.

        Args:
            until: the condition.
            deadline: seconds since 1970.

        Raises:
            TimeoutError: it does not hold by then.
            RuntimeError: the reader has ended.
        """
        while not until():
            left = deadline - time.time()
            if left <= 0:
                raise TimeoutError("the rows did not appear in time")
            try:
                event = self._life.next_event(min(left, 0.1))
            except TimeoutError:
                continue
            if event is None:
                raise RuntimeError(f"the reader has ended: {self._log.read_text()[-1000:]}")
            if event["event"] == "seen":
                self.seen.append(Seen(event["at"], event["mark"]))

    def __enter__(self) -> Watcher:
        self._life.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._life.__exit__(*error)


def main() -> None:
    """Look at a target until the parent ends."""
    target: Target = pickle.loads(base64.b64decode(sys.argv[1]))
    reader, newest, parent = target.reader(), NOTHING, os.getppid()
    while os.getppid() == parent:
        found = reader.newest()
        if found > newest:
            newest = found
            say("seen", mark=newest)
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    main()
