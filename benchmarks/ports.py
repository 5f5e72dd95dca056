"""Finds ports for servers that cannot choose their own."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_PLACES: Final = range(20_000, 32_000)
"""Below the ports that systems give to clients. A port that a client may get is gone before a slow server listens."""
_chance: Final = random.SystemRandom()
"""Of its own: what draws from a seed would find the same ports in two processes."""


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """Return different ports of an address on which nobody listens."""
    with contextlib.ExitStack() as stack:
        # All ports are held until the last one is found. Otherwise two might be the same.
        return [_taken(stack.enter_context(socket.socket()), address) for _ in range(count)]


def _taken(probe: socket.socket, address: str) -> int:
    for port in _chance.sample(_PLACES, len(_PLACES)):
        with contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
    raise OSError(f"no port of {address} is free")
