"""Large objects in parts: several at a time, within a bound of memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

PART = 8 << 20
"""Bytes of one part of a large object."""

PARTS_AT_A_TIME = 4
"""Parts of one object that are on their way at a time: with ``PART`` the memory that moving one file takes."""


def download_in_parts(read: Callable[[int, int], bytes], size: int, path: Path) -> str:
    """Write an object to a file, hashing it in its order while further parts are on their way.

    Args:
        read: returns so many bytes (second argument) from an offset (first), fewer where the object ends.
        size: how many bytes the object should have. One more is asked for: an object that is longer gives a
            longer file.
        path: the file.

    Returns:
        The SHA-256 of what was written, in hex.
    """
    digest = hashlib.sha256()
    offsets = iter(range(0, size + 1, PART))
    waiting: deque[Future[bytes]] = deque()
    pool = ThreadPoolExecutor(PARTS_AT_A_TIME, "chandy-part")

    def ask() -> None:
        if (offset := next(offsets, None)) is not None:
            waiting.append(pool.submit(read, offset, min(PART, size + 1 - offset)))

    try:
        with path.open("wb") as file:
            for _ in range(PARTS_AT_A_TIME):
                ask()
            while waiting:
                data = waiting.popleft().result()
                ask()
                digest.update(data)
                file.write(data)
    finally:
        pool.shutdown(cancel_futures=True)
    return digest.hexdigest()
