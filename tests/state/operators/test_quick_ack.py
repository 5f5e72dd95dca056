from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.state.operators.quick_ack import with_quick_ack

needs_quickack = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="an option of Linux")


@pytest.fixture(params=["127.0.0.1", "::1"])
def connection(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """This side of a connection as a Python worker has one to its JVM, acknowledging late."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    try:
        server = socket.create_server((request.param, 0), family=family)
    except OSError:
        pytest.skip("no such interface")
    with server, socket.create_connection(server.getsockname()[:2]) as client:
        accepted, _ = server.accept()
        with accepted:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            yield client


@needs_quickack
def test_what_spark_has_sent_is_acknowledged_at_once(connection: socket.socket) -> None:
    assert not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
    with_quick_ack(iter(()))
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def test_other_descriptors_are_left_alone_and_open() -> None:
    ends = socket.socketpair()
    listening, datagrams = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
    with ends[0], ends[1], listening, datagrams:
        with_quick_ack(iter(()))
        ends[0].send(b"still open")
        assert ends[1].recv(100) == b"still open"
        assert listening.getsockname()[1] and datagrams.fileno() > 0


@needs_quickack
def test_no_descriptor_stays_open(connection: socket.socket, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w"):
        before = sorted(Path("/proc/self/fd").iterdir())
        with_quick_ack(iter(()))
        assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_batches_come_as_they_were() -> None:
    batches = iter([1, 2, 3])
    assert with_quick_ack(batches) is batches
