"""Where the coordinator listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from chandy.coordinator.errors import SetupError
from chandy.coordinator.execution import service
from chandy.coordinator.execution.service import Service, listen
from chandy.state.errors import HostUnreachableError, RemoteError
from chandy.state.rpc.calls import ActionClient, ActionServer, Call
from chandy.state.rpc.messages import AskBatch, AskHost, BatchAnswer, HostHello, HostName, Message
from chandy.state.rpc.orders import Heartbeat


class AnsweringHosts:
    """``ConnectedHosts`` that answer every batch, and have one order for a host."""

    handlers: ClassVar[dict[type[Message[Any]], Callable[[Any], object]]] = {
        AskBatch: lambda request: BatchAnswer()
    }

    def orders(self, hello: HostHello) -> Iterator[Heartbeat]:
        yield Heartbeat()


@pytest.mark.parametrize("host", ["nobody.invalid", "203.0.113.7", "no host", ""])
def test_a_host_that_is_not_this_machine_is_named_with_what_to_do(host: str) -> None:
    with pytest.raises(SetupError, match=r"set spark\.driver\.host to") as caught:
        listen(host, "token", "p")
    assert repr(host) in caught.value.expected


def test_calls_are_answered_as_soon_as_there_is_something_to_answer_them_with() -> None:
    checkpoints: Any = AnsweringHosts()
    service = listen("127.0.0.1", "token", "p")
    client = ActionClient(service.address, "token")
    ask = AskBatch("host", "q", 0)
    with pytest.raises(RemoteError, match="found 'AskBatch'"):
        client.call("AskBatch", ask, BatchAnswer)
    service.answer(checkpoints)
    assert client.call("AskBatch", ask, BatchAnswer) == BatchAnswer()
    client.close()
    service.shutdown()


# --- state hosts on other machines --------------------------------------------------------------------------


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that takes this machine for one of many."""
    monkeypatch.setattr(service, "is_loopback", lambda host: False)
    running = listen("127.0.0.1", "token", "p")
    checkpoints: Any = AnsweringHosts()
    running.answer(checkpoints)
    yield running
    running.shutdown()


def host(service: Service, name: str) -> ActionServer:
    actions = {"host": Call(AskHost, lambda _: HostName(name))}
    return ActionServer("grpc+tls://127.0.0.1:0", "token", actions, identity=service.identity)


def orders(service: Service, network: str) -> list[Any]:
    client = ActionClient(service.address, "token", identity=service.identity)
    hello = HostHello("h", "grpc+unix:///nowhere", "m", "m:/tmp/1", 1, network=network)
    try:
        return list(client.stream("orders", hello, (Heartbeat,)))
    finally:
        client.close()


def test_a_host_gets_orders_once_it_has_answered_on_the_network(remote: Service) -> None:
    server = host(remote, "h")
    assert orders(remote, f"grpc+tls://127.0.0.1:{server.port}") == [Heartbeat()]
    server.shutdown()


def test_a_host_that_is_not_where_it_says_is_refused_by_name(remote: Service) -> None:
    with pytest.raises(
        HostUnreachableError, match=r"executor m:/tmp/1 cannot be reached at .*CHANDY_ADDRESS"
    ):
        orders(remote, "grpc+tls://127.0.0.1:1")


def test_another_host_at_the_same_address_is_noticed(remote: Service) -> None:
    server = host(remote, "another")
    with pytest.raises(HostUnreachableError, match="found state host another at this address"):
        orders(remote, f"grpc+tls://127.0.0.1:{server.port}")
    server.shutdown()
