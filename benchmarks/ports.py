"""Ports of this machine, for servers that must be told theirs."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Return different ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        # All are held until the last one is found: else two might be the same.
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
