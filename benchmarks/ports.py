"""Finds ports for servers that cannot choose their own."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Return different ports on which nobody listens."""
    with contextlib.ExitStack() as stack:
        # All ports are held until the last one is found. Otherwise two might be the same.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
