"""The connection through which Spark sends a task its rows: has them come without delay."""

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
"""None where the system has no such option: it is Linux's."""
_DESCRIPTORS: Final = Path("/proc/self/fd")


def with_quick_ack(batches: Iterator[T]) -> Iterator[T]:
    """Return what Spark gave to this task, and have it come at once; to be called before the first is taken.

    Spark sends a task's function, and then its rows, by TCP with Nagle's algorithm on: rows that do not fill a segment
    wait in the JVM until the function has been acknowledged. Linux puts that off for 40 ms in the hope of an answer
    that could carry it, and a task does not answer before it has its rows. So every task of a small batch would wait
    that long. Asking for quick acknowledgements sends the one that is due, and lasts for the next few segments
    (``TCP_QUICKACK`` in tcp(7)).
    """
    if _QUICKACK is not None and _DESCRIPTORS.exists():
        for descriptor in _DESCRIPTORS.iterdir():
            _acknowledge(int(descriptor.name), _QUICKACK)
    return batches


def _acknowledge(descriptor: int, option: int) -> None:
    # Descriptors that are no socket, not connected, or closed by now are passed over.
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return
        # PySpark does not tell which is the connection: any of this process on the loopback interface may be.
        with socket.fromfd(descriptor, -1, -1, -1) as connection:
            if _is_local_tcp(connection):
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)


def _is_local_tcp(connection: socket.socket) -> bool:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return ipaddress.ip_address(connection.getpeername()[0]).is_loopback
