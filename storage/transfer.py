"""Downloading large objects in parts, several at a time, with bounded memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from .logs import named_pool

PART = 8 << 20
"""Bytes of one part of a large object."""

PARTS_AT_A_TIME = 4
"""Parts of one object that are transferred at a time. With ``PART`` it bounds the memory that a transfer needs."""


def download_in_parts(read: Callable[[int, int], bytes], size: int, path: Path) -> str:
    """Download an object to a file, and hash each part while the next ones are transferred.

    Args:
        read: returns the bytes at an offset (first argument), up to a number (second), fewer if the object ends before.
        size: how many bytes the object should have. One more is requested, so that an object that is too long gives
            a file that is too long.
        path: the file.

    Returns:
        The SHA-256 of what was written, in hex.
    """
    digest = hashlib.sha256()
    offsets = iter(range(0, size + 1, PART))
    waiting: deque[Future[bytes]] = deque()
    pool = named_pool(PARTS_AT_A_TIME, "chandy-part")

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
