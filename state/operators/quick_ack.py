"""Avoids a delay of 40 ms before Spark sends a task its rows, by TCP quick acknowledgements."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)
"""The socket option; None on systems other than Linux, which do not have it."""
_DESCRIPTORS: Final = Path("/proc/self/fd")


def with_quick_ack(batches: Iterator[T]) -> Iterator[T]:
    """Return a task's batches, after asking TCP to acknowledge what Spark sends at once.

    Call it before taking the first batch.

    Spark sends a task's function, and then its rows, by TCP with Nagle's algorithm on. Rows that do not fill a segment
    wait in the JVM until the function has been acknowledged. Linux delays the acknowledgement by up to 40 ms, to send
    it along with an answer, but a task does not answer before it has its rows. So every task of a small batch would
    wait that long. The option ``TCP_QUICKACK`` (see tcp(7)) sends the acknowledgement that is due, and holds for the
    next few segments.
    """
    if _QUICKACK is not None and _DESCRIPTORS.exists():
        for descriptor in _DESCRIPTORS.iterdir():
            _acknowledge(int(descriptor.name), _QUICKACK)
    return batches


def _acknowledge(descriptor: int, option: int) -> None:
    # Skips descriptors that are no socket, are not connected or have been closed meanwhile.
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return
        # PySpark does not tell which connection it uses: it may be any one of this process on the loopback interface.
        with socket.fromfd(descriptor, -1, -1, -1) as connection:
            if _is_local_tcp(connection):
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)


def _is_local_tcp(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return ipaddress.ip_address(connection.getpeername()[0]).is_loopback
