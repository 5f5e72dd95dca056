"""A publisher whose server is killed at random moments and started again with what it had."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from chandy.testing import SinkPipeline

from ...effort import chance, rounds
from .steps import connected, epoch_of, published

ROUNDS: Final = rounds(2, full=20)
"""How often a server is killed."""


def publish_while_killed(pipeline: SinkPipeline, restart: Callable[[], None], longest: float = 0.5) -> int:
    """Publish epoch after epoch while the server is killed and started again; return the newest epoch.

    Args:
        pipeline: publishes as its first life.
        restart: kills the server and starts it again.
        longest: seconds within which the server is killed after a round has begun.
    """
    numbers = itertools.count(1)
    moments = chance("server")
    committer = connected(pipeline, 1)

    def publish() -> int:
        nonlocal committer
        number = next(numbers)
        committer = published(pipeline, 1, committer, epoch_of(pipeline, number))
        return number

    def kill() -> None:
        threading.Event().wait(moments.uniform(0, longest))
        restart()

    publish()
    for _ in range(ROUNDS):
        with ThreadPoolExecutor(1) as pool:
            killed = pool.submit(kill)
            while not killed.done():
                publish()
            killed.result()
    newest = publish()
    committer.close()
    return newest
