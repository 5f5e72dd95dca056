"""The coordinator's Arrow Flight server: what state hosts call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa
from pyarrow import flight

from ...state.errors import HostLostError, HostUnreachableError
from ...state.rpc.addresses import PortRange, is_loopback, location, serve
from ...state.rpc.calls import ActionClient, ActionServer, Call, Stream
from ...state.rpc.messages import AskHost, HostHello, HostName
from ...state.rpc.orders import Order
from ...state.rpc.tls import SCHEME, Identity
from ...storage import runtime
from ..errors import SetupError
from .certificates import issue
from .connected_hosts import ConnectedHosts

_PROBE_SECONDS: Final = 5.0
"""How long a state host may take to answer on the network before it is refused."""
_STOP_SECONDS: Final = 5.0
"""How long a stop waits for the streams of orders to end. That of a host that is frozen ends a minute later."""


@attrs.frozen
class Service:
    """A running server."""

    address: str
    """Its Arrow Flight location."""
    server: ActionServer
    token: str
    identity: Identity | None
    """What it and all state hosts prove themselves with. None: all are on this machine."""

    def answer(self, hosts: ConnectedHosts) -> None:
        """Answer the calls of state hosts from now on."""

        def orders(hello: HostHello) -> Iterator[Order]:
            self._check_reached(hello)
            yield from hosts.orders(hello)

        actions: dict[str, Call | Stream] = {
            message.__name__: Call(message, handle) for message, handle in hosts.handlers.items()
        }
        self.server.answer(actions | {"orders": Stream(HostHello, orders)})

    def shutdown(self) -> None:
        """Stop the server; the streams of orders end with it, in the background if a host takes nothing in."""
        stopping = runtime.thread(target=self.server.shutdown, name="chandy-shutdown")
        stopping.start()
        stopping.join(_STOP_SECONDS)

    def _check_reached(self, hello: HostHello) -> None:
        """Refuse a host that others could not reach, before it gets a shard."""
        if hello.network is None:
            return
        client = ActionClient(
            hello.network, self.token, HostLostError, identity=self.identity, timeout=_PROBE_SECONDS
        )
        try:
            found = client.call("host", AskHost(), HostName).host
        except (HostLostError, flight.FlightError) as error:
            raise _unreachable(hello, str(error)) from error
        finally:
            client.close()
        if found != hello.host:
            raise _unreachable(hello, f"state host {found} at this address")


def _unreachable(hello: HostHello, found: str) -> HostUnreachableError:
    return HostUnreachableError(
        f"the state host of executor {hello.executor} cannot be reached at {hello.network}",
        f"an answer of host {hello.host} within {_PROBE_SECONDS:g} s",
        found,
        "open the ports of CheckpointConfig.ports between the machines; if the executor is reached at another address, "
        "set the environment variable CHANDY_ADDRESS there to it",
    )


def listen(
    host: str,
    token: str,
    pipeline: str,
    *,
    bind: str | None = None,
    ports: PortRange | None = None,
    runtime: Path = Path(),
) -> Service:
    """Listen for state hosts; every call must present the token, and a certificate if it can come from elsewhere.

    Args:
        host: name or address of this machine, at which executors reach it; loopback if all of them are on it.
        token: what every call must present.
        pipeline: what logged lines are about.
        bind: the address to listen on, if it is another one.
        ports: where to listen; None: on any port.
        runtime: directory of this machine, which exists, for the choice of a port.

    Raises:
        SetupError: the host is not an address of this machine, or certificates cannot be issued.
        NoPortError: all ports are taken.
    """
    identity = None if is_loopback(host) else issue()
    scheme = SCHEME if identity else "grpc"

    def start(port: int) -> ActionServer:
        return ActionServer(
            location(scheme, bind or host, port), token, {}, {"pipeline": pipeline}, identity=identity
        )

    try:
        server = serve(ports, bind or host, runtime, start)
    except (OSError, pa.ArrowException) as error:
        raise SetupError(
            "the coordinator cannot listen for state hosts",
            f"a free port of {bind or host!r}",
            str(error),
            "set spark.driver.host to a name or an address of this machine that the executors reach",
        ) from error
    return Service(location(scheme, host, server.port), server, token, identity)
