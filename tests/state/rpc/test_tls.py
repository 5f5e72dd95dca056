"""Nobody is served, and nobody is believed, without the coordinator's own certificate."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import attrs
import pytest
from cryptography import x509
from pyarrow import flight

from chandy.coordinator.execution.certificates import issue
from chandy.state.errors import PeerLostError
from chandy.state.rpc.calls import ActionClient, ActionServer, Call
from chandy.state.rpc.messages import AskHost, HostName
from chandy.state.rpc.tls import Identity

from ...waiting import DEADLINE

TOKEN = "secret"


@pytest.fixture(scope="module")
def identity() -> Identity:
    return issue()


@pytest.fixture(scope="module")
def stranger() -> Identity:
    return issue()


@pytest.fixture(scope="module")
def address(identity: Identity) -> Iterator[str]:
    actions = {"host": Call(AskHost, lambda _: HostName("h"))}
    server = ActionServer("grpc+tls://127.0.0.1:0", TOKEN, actions, identity=identity)
    yield f"grpc+tls://127.0.0.1:{server.port}"
    server.shutdown()


def ask(address: str, token: str, identity: Identity | None) -> str:
    client = ActionClient(address, token, identity=identity, timeout=DEADLINE)
    try:
        return client.call("host", AskHost(), HostName).host
    finally:
        client.close()


def test_the_coordinators_own_processes_are_served(address: str, identity: Identity) -> None:
    assert ask(address, TOKEN, identity) == "h"


def test_the_certificate_alone_is_not_enough(address: str, identity: Identity) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError):
        ask(address, "another", identity)


def test_a_stranger_is_refused_even_with_the_token(
    address: str, identity: Identity, stranger: Identity
) -> None:
    # It knows whom to expect, so that only its own certificate is what is wrong.
    forged = attrs.evolve(stranger, authority=identity.authority)
    with pytest.raises(PeerLostError):
        ask(address, TOKEN, forged)


def test_a_client_without_a_certificate_is_refused(address: str, identity: Identity) -> None:
    client = flight.FlightClient(
        address, tls_root_certs=identity.authority.encode(), override_hostname="chandy"
    )
    with pytest.raises(flight.FlightUnavailableError):
        list(client.do_action(flight.Action("host", b"{}")))
    client.close()


def test_a_stranger_is_not_believed(address: str, identity: Identity, stranger: Identity) -> None:
    forged = attrs.evolve(identity, authority=stranger.authority)
    with pytest.raises(PeerLostError):
        ask(address, TOKEN, forged)


def test_a_plain_connection_is_refused(address: str) -> None:
    with pytest.raises(PeerLostError):
        ask(address.replace("grpc+tls", "grpc"), TOKEN, None)


def test_clocks_may_be_wrong_by_days(identity: Identity) -> None:
    certificate = x509.load_pem_x509_certificate(identity.certificate.encode())
    now, week = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=7)
    assert certificate.not_valid_before_utc < now - week
    assert certificate.not_valid_after_utc > now + week


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Identity("a", "c", "secret"))
