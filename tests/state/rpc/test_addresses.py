"""Where processes listen, and how others reach them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chandy.state.errors import NoPortError
from chandy.state.rpc import addresses
from chandy.state.rpc.addresses import ADDRESS_VARIABLE, PortRange


def test_the_own_address_is_the_one_that_faces_the_peer() -> None:
    assert addresses.own_address("grpc+tls://127.0.0.1:40000") == "127.0.0.1"


def test_an_address_that_was_given_is_believed_and_every_interface_listened_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "203.0.113.9")
    assert addresses.own_address("grpc+tls://127.0.0.1:40000") == "203.0.113.9"
    assert addresses.bind_address("203.0.113.9") == "0.0.0.0"
    monkeypatch.setenv(ADDRESS_VARIABLE, "2001:db8::9")
    assert addresses.bind_address("2001:db8::9") == "::"


def test_otherwise_only_the_address_itself_is_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    assert addresses.bind_address("192.0.2.7") == "192.0.2.7"


def test_an_address_of_ipv6_gets_brackets() -> None:
    assert addresses.location("grpc+tls", "2001:db8::1", 7) == "grpc+tls://[2001:db8::1]:7"
    assert addresses.location("grpc", "driver", 7) == "grpc://driver:7"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "localhost"])
def test_loopback_reaches_this_machine_alone(host: str) -> None:
    assert addresses.is_loopback(host)


@pytest.mark.parametrize("host", ["192.0.2.7", "nobody.invalid"])
def test_other_hosts_may_reach_others(host: str) -> None:
    assert not addresses.is_loopback(host)


def test_two_directories_are_two_places(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert addresses.place(tmp_path / "a") == addresses.place(tmp_path / "a")
    assert addresses.place(tmp_path / "a") != addresses.place(tmp_path / "b")


def taken(ports: list[int]) -> list[socket.socket]:
    """Listeners as gRPC makes them: others may listen on the same port."""
    found = []
    for port in ports:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        found.append(listener)
    return found


def neighbours() -> int:
    """The first of three free ports in a row."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        try:
            for listener in taken([port, port + 1, port + 2]):
                listener.close()
        except (OSError, OverflowError):
            continue
        return port


def test_the_first_port_that_nobody_listens_on_is_taken(tmp_path: Path) -> None:
    first = neighbours()
    (listener,) = taken([first])
    with listener:
        assert (
            addresses.serve(PortRange(first, first + 2), "127.0.0.1", tmp_path, lambda port: port)
            == first + 1
        )


def test_no_port_is_shared_with_another_server(tmp_path: Path) -> None:
    first = neighbours()
    listeners = taken([first, first + 1])
    with listeners[0], listeners[1], pytest.raises(NoPortError, match=f"from {first} to {first + 1}"):
        addresses.serve(PortRange(first, first + 1), "127.0.0.1", tmp_path, lambda port: port)


def test_an_address_of_another_machine_is_no_matter_of_ports(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="assign"):
        addresses.serve(PortRange(40000, 40001), "203.0.113.7", tmp_path, lambda port: port)
