"""Where processes listen and how others reach them: Arrow Flight locations, own addresses, ports, places."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import attrs
import pyarrow as pa

from ...storage.disk.locks import locked
from ..errors import NoPortError

ADDRESS_VARIABLE: Final = "CHANDY_ADDRESS"
"""Environment variable of an executor: the address at which others reach it, where it cannot know that by itself."""
_LOCK: Final = "ports"
_ROUTE_PORT: Final = 9
T = TypeVar("T")


@attrs.frozen
class PortRange:
    """Ports that processes may listen on."""

    first: int
    last: int
    """The last port, included."""


def location(scheme: str, host: str, port: int) -> str:
    """Return an Arrow Flight location. An IPv6 address gets its brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def own_address(peer: str) -> str:
    """Return this machine's address on the route to a peer, an Arrow Flight location; nothing is sent.

    On a machine with several interfaces it is the one that faces the peer. ``CHANDY_ADDRESS`` overrides it.

    Raises:
        OSError: there is no route.
    """
    given = os.environ.get(ADDRESS_VARIABLE)
    if given:
        return given
    host = urlsplit(peer).hostname or ""
    family, kind, protocol, _, address = socket.getaddrinfo(host, _ROUTE_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def bind_address(own: str) -> str:
    """Return what to listen on to be reached at an address.

    It is the address itself, unless that was given: behind a translation of addresses no interface has it.
    """
    if own != os.environ.get(ADDRESS_VARIABLE):
        return own
    return "::" if ":" in own else "0.0.0.0"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address reaches this machine alone."""
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return False
    return all(str(one[4][0]).startswith("127.") or one[4][0] == "::1" for one in found)


def place(runtime: Path) -> str:
    """Return what two processes have in common if the Unix sockets below a directory connect them.

    A host name alone would not do: containers may share their machine's, and have files of their own.
    """
    try:
        found = runtime.stat()
    except FileNotFoundError:
        return socket.gethostname()
    return f"{socket.gethostname()}:{found.st_dev}:{found.st_ino}"


def serve(ports: PortRange | None, host: str, runtime: Path, start: Callable[[int], T]) -> T:
    """Start a server on a port of a range that nobody else on the machine listens on.

    gRPC lets two servers share a port, and each gets some of the calls. So every port is tried out before, and
    processes that look for one wait for each other.

    Args:
        ports: where to look; None: any port.
        host: the address to listen on.
        runtime: directory of this machine, which exists.
        start: starts the server on a port; 0: any.

    Raises:
        NoPortError: all ports are taken.
        OSError: this machine does not have the address.
    """
    if ports is None:
        return start(0)
    with locked(runtime / _LOCK):
        for port in range(ports.first, ports.last + 1):
            if _is_free(host, port):
                try:
                    return start(port)
                except (OSError, pa.ArrowException):
                    continue
    raise NoPortError(
        f"no port to listen on at {host}",
        f"a free port from {ports.first} to {ports.last}",
        "that all are taken",
        "widen CheckpointConfig.ports: the driver needs one, and each executor of a machine one",
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        # As servers do: a port whose last connections have just ended counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return False
    return True
