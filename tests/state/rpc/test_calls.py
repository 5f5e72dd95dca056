from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import attrs
import pytest
from pyarrow import flight

from chandy.state.errors import CannotGoBackError, CoordinatorLostError, RemoteError
from chandy.state.rpc.calls import ActionClient, ActionServer, Call, Stream, pack_error, unpack_error
from chandy.state.rpc.messages import AskBatch, BatchAnswer
from chandy.state.rpc.orders import Heartbeat, Order, StopHost
from chandy.storage.errors import ChandyError

from ...waiting import DEADLINE

TOKEN = "a token"


@attrs.define(eq=False)
class UnsendableError(ChandyError):
    cause: object

    def __str__(self) -> str:
        return "it broke"


class Service:
    def __init__(self) -> None:
        self.closed = False
        self.asked: list[AskBatch] = []

    def ask(self, ask: AskBatch) -> BatchAnswer:
        self.asked.append(ask)
        if ask.batch == 1:
            raise CannotGoBackError("op/3", 1, 7)
        if ask.batch == 2:
            raise KeyError("bug")
        if ask.batch == 3:
            raise RemoteError("StaleQueryError", "from further away")
        if ask.batch == 4:
            raise UnsendableError(object())
        if ask.batch == 5:
            # As from a side that stands between two that know it, and does not.
            raise RemoteError("CannotGoBackError", "", {"shard": "op/3", "asked": 1, "position": 7})
        return BatchAnswer()

    def orders(self, ask: AskBatch) -> Iterator[Order]:
        try:
            while True:
                yield Heartbeat()
                yield StopHost()
                if ask.batch == 1:
                    raise CannotGoBackError("op/3", 1, 7)
        finally:
            self.closed = True


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def server(service: Service) -> Iterator[ActionServer]:
    actions = {
        "ask": Call(AskBatch, service.ask),
        "note": Call(AskBatch, service.asked.append),
        "orders": Stream(AskBatch, service.orders),
    }
    running = ActionServer("grpc://127.0.0.1:0", TOKEN, actions)
    yield running
    running.shutdown()


@pytest.fixture
def client(server: ActionServer) -> Iterator[ActionClient]:
    connected = ActionClient(f"grpc://127.0.0.1:{server.port}", TOKEN, CoordinatorLostError)
    yield connected
    connected.close()


def test_a_value_goes_there_and_its_answer_comes_back(client: ActionClient, service: Service) -> None:
    ask = AskBatch("host", "q", 0)
    assert client.call("ask", ask, BatchAnswer) == BatchAnswer()
    client.tell("note", ask)
    assert service.asked == [ask, ask]


@pytest.mark.parametrize("batch", [1, 5])
def test_an_error_arrives_as_what_it_was(client: ActionClient, batch: int) -> None:
    with pytest.raises(CannotGoBackError) as caught:
        client.call("ask", AskBatch("host", "q", batch), BatchAnswer)
    assert (caught.value.shard, caught.value.asked, caught.value.position) == ("op/3", 1, 7)


@pytest.mark.parametrize(
    ("batch", "name", "message"),
    [
        (2, "KeyError", "'bug'"),
        (3, "StaleQueryError", "from further away"),
        (4, "UnsendableError", "it broke"),
    ],
)
def test_an_error_without_a_type_here_keeps_its_name(
    client: ActionClient, batch: int, name: str, message: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        client.call("ask", AskBatch("host", "q", batch), BatchAnswer)
    assert (caught.value.error, caught.value.message) == (name, message)


def test_a_stream_yields_its_values_and_then_its_error(client: ActionClient) -> None:
    stream = client.stream("orders", AskBatch("host", "q", 1), (Heartbeat, StopHost))
    assert [next(stream), next(stream)] == [Heartbeat(), StopHost()]
    with pytest.raises(CannotGoBackError):
        next(stream)


def test_a_stream_that_is_over_is_closed_in_the_server(client: ActionClient, service: Service) -> None:
    with pytest.raises(CannotGoBackError):
        list(client.stream("orders", AskBatch("host", "q", 1), (Heartbeat, StopHost)))
    assert service.closed


@pytest.mark.parametrize("header", [None, "Bearer another", "a token", "Bearer a token2", "Bearer ü"])
def test_a_call_without_the_token_is_refused_before_any_handler(
    server: ActionServer, service: Service, header: str | None
) -> None:
    headers = [] if header is None else [(b"authorization", header.encode())]
    options = flight.FlightCallOptions(headers=headers)
    client = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
    for call in (
        lambda: list(client.do_action(flight.Action("ask", b"{}"), options)),
        lambda: list(client.list_actions(options)),
        lambda: client.do_get(flight.Ticket(b""), options).read_all(),
    ):
        with pytest.raises(flight.FlightUnauthenticatedError if header != "Bearer ü" else flight.FlightError):
            call()
    assert service.asked == []
    client.close()


def test_an_unknown_action_and_a_wrong_request_are_named(client: ActionClient) -> None:
    with pytest.raises(RemoteError, match=r"expected one of \['ask', 'note', 'orders'\], found 'nothing'"):
        client.tell("nothing", AskBatch("host", "q", 0))
    with pytest.raises(ChandyError, match="AskBatch"):
        client.tell("ask", BatchAnswer())


def test_a_peer_that_is_not_there_is_lost() -> None:
    client = ActionClient("grpc://127.0.0.1:1", TOKEN, CoordinatorLostError)
    with pytest.raises(CoordinatorLostError) as caught:
        client.tell("ask", AskBatch("host", "q", 0))
    assert caught.value.address == "grpc://127.0.0.1:1"


def test_an_error_of_flight_itself_is_not_taken_for_a_packed_one() -> None:
    assert unpack_error(flight.FlightServerError("x", b"not json")) is None
    assert unpack_error(flight.FlightServerError("x", json.dumps({"other": 1}).encode())) is None
    assert isinstance(unpack_error(pack_error(CannotGoBackError("s", 1, 2))), CannotGoBackError)


def test_a_child_that_was_forked_beside_a_server_ends() -> None:
    """It has the server, and none of the threads that its end would wait for."""
    program = (
        "import os, sys\n"
        "from chandy.state.rpc.calls import ActionServer\n"
        "server = ActionServer('grpc://127.0.0.1:0', 'token', {})\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "server.shutdown()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=DEADLINE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert said == "3\n"
