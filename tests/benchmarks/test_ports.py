"""Ports that are given out are free, and each is another one."""

from __future__ import annotations

import contextlib
import socket

from benchmarks.ports import free_ports


def test_free_ports_are_different_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
