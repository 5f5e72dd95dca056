"""A state host on the network serves its coordinator's own processes alone, and goes on whatever others send it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyarrow import flight

from chandy.coordinator.execution.certificates import issue
from chandy.state.errors import RemoteError
from chandy.state.host.serving import HostServer
from chandy.state.rpc.auth import token_options
from chandy.state.rpc.calls import ActionClient, caller_errors
from chandy.state.rpc.messages import AskHost, BeginTask, HostName
from chandy.state.rpc.tls import Identity, connect
from chandy.state.rpc.wire import FETCH, REQUEST
from chandy.storage.codec import to_json
from chandy.storage.errors import ChandyError

from ...waiting import DEADLINE

TOKEN = "secret"
TASK = to_json(BeginTask("q", 1, "op", (0,)))


class Shards:
    """``StateHost`` that notes what it is asked."""

    host = "h"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[[Any], Any]:
        return lambda request: self.asked.append(name)

    def shards(self, task: BeginTask) -> dict[int, Any]:
        self.asked.append("shards")
        return {}


@pytest.fixture(scope="module")
def identity() -> Identity:
    return issue()


@pytest.fixture
def shards() -> Shards:
    return Shards()


@pytest.fixture
def server(identity: Identity, shards: Any) -> Iterator[HostServer]:
    running = HostServer("grpc+tls://127.0.0.1:0", TOKEN, shards, identity)
    yield running
    running.shutdown()


def address(server: HostServer) -> str:
    return f"grpc+tls://127.0.0.1:{server.port}"


def is_served(server: HostServer, identity: Identity) -> bool:
    client = ActionClient(address(server), TOKEN, identity=identity, timeout=DEADLINE)
    try:
        return client.call("host", AskHost(), HostName) == HostName("h")
    finally:
        client.close()


def calls(client: flight.FlightClient, token: str) -> list[Callable[[], Any]]:
    """Everything that a client can ask of a Flight server."""
    options = token_options(token, timeout=DEADLINE)
    descriptor = flight.FlightDescriptor.for_command(TASK)

    def exchange() -> None:
        writer, reader = client.do_exchange(descriptor, options)
        with writer:
            writer.begin(REQUEST)
            writer.done_writing()
            reader.read_all()

    def put() -> None:
        writer, _ = client.do_put(descriptor, REQUEST, options)
        with writer:
            writer.write_batch(pa.record_batch([[0], [b"k"], [b"v"]], schema=REQUEST))

    return [
        exchange,
        put,
        lambda: list(client.do_action(flight.Action("begin", TASK), options)),
        lambda: list(client.list_actions(options)),
        lambda: list(client.list_flights(b"", options)),
        lambda: client.do_get(flight.Ticket(b""), options).read_all(),
        lambda: client.get_flight_info(descriptor, options),
        lambda: client.get_schema(descriptor, options),
    ]


@pytest.mark.parametrize("who", ["without a certificate", "of another authority", "with another token"])
def test_a_stranger_can_ask_nothing_of_a_host(
    server: HostServer, shards: Shards, identity: Identity, who: str
) -> None:
    if who == "without a certificate":
        client = flight.FlightClient(
            address(server), tls_root_certs=identity.authority.encode(), override_hostname="chandy"
        )
    elif who == "of another authority":
        client = connect(address(server), attrs.evolve(issue(), authority=identity.authority))
    else:
        client = connect(address(server), identity)
    # For get_schema, pyarrow has no error of Flight's own.
    refused = (flight.FlightUnavailableError, flight.FlightUnauthenticatedError, OSError)
    for call in calls(client, "another" if who == "with another token" else TOKEN):
        with pytest.raises(refused):
            call()
    client.close()
    assert shards.asked == []
    assert is_served(server, identity)


def test_connections_that_say_nothing_or_nonsense_keep_nobody_waiting(
    server: HostServer, shards: Shards, identity: Identity
) -> None:
    with ExitStack() as open_:
        for number in range(60):
            raw = open_.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE))
            if number % 3 == 1:
                raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
            elif number % 3 == 2:
                # The beginning of a TLS record of 16 KB that never comes.
                raw.sendall(b"\x16\x03\x01\x40\x00" + b"\x01" * 100)
        assert is_served(server, identity)
    assert shards.asked == []


@pytest.mark.parametrize(
    "command", [b"", b"{", b"\x80\x04\x95cposix\nsystem\n", b"[" * 200_000, b'{"uid": "op"}', TASK[:-1]]
)
def test_what_is_no_task_is_refused_by_name_and_the_next_call_is_served(
    server: HostServer, shards: Shards, identity: Identity, command: bytes
) -> None:
    client = connect(address(server), identity)
    options = token_options(TOKEN, timeout=DEADLINE)
    with pytest.raises(ChandyError), caller_errors(address(server), RemoteError):  # type: ignore[arg-type]
        list(client.do_action(flight.Action("begin", command), options))
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
    with pytest.raises(flight.FlightError), writer:
        reader.read_all()
    client.close()
    assert shards.asked == []
    assert is_served(server, identity)


def test_rows_of_a_shard_that_the_task_does_not_have_and_columns_that_are_missing_are_refused(
    server: HostServer, identity: Identity
) -> None:
    client = connect(address(server), identity)
    descriptor = flight.FlightDescriptor.for_command(TASK)
    schemas = [REQUEST, pa.schema([("shard", pa.int32())])]
    for schema in schemas:
        writer, reader = client.do_exchange(descriptor, token_options(TOKEN, timeout=DEADLINE))
        columns = [[7], [b"k"], [b"v"]][: len(schema)]
        with pytest.raises(flight.FlightError), writer:
            writer.begin(schema)
            writer.write_with_metadata(pa.record_batch(columns, schema=schema), FETCH)
            reader.read_chunk()
    client.close()
    assert is_served(server, identity)
