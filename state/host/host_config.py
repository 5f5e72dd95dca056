"""What a state host and its starter agree on: the files of the discovery directory and the host's configuration.

A module of its own, because the host loads RocksDB and much else that a task never needs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import attrs

from ..errors import HostStartError
from ..rpc.messages import Endpoint

DISCOVERY_FOLDER: Final = "meet"
"""The folder of the runtime directory with the discovery directories of all hosts."""
NAME_LENGTH: Final = 16
"""How long the name of a discovery directory is."""
SOCKET: Final = "host.sock"
"""Name of the host's socket in the discovery directory."""
START_LOCK: Final = "start"
"""Name of the lock file in the discovery directory that a process holds while it starts a host."""
LOG: Final = "host.log"
"""Name of the host's log in the discovery directory."""
UNIX: Final = "grpc+unix://"
"""How the Arrow Flight location of a Unix socket begins."""
SPARE: Final = "--spare"
"""The argument of a process that is started before there is a configuration for it."""
READY: Final = b"ready\n"
"""What a host writes to stdout when it serves."""


_SOCKET_LIMIT: Final = 107
"""The most bytes of a Unix socket's path on Linux, without the closing zero (``sun_path``, unix(7))."""


def check_socket(path: Path) -> None:
    """Refuse the path of a host's socket that the system cannot take.

    Raises:
        HostStartError: it is too long.
    """
    size = len(os.fsencode(path))
    if size > _SOCKET_LIMIT:
        raise HostStartError(
            f"the state host's socket {str(path)!r} has too long a path",
            f"at most {_SOCKET_LIMIT} bytes",
            f"{size} bytes",
            "set the environment variable CHANDY_RUNTIME_DIR to a directory with a shorter path; without it, the "
            "runtime directory is in that for temporary files, which TMPDIR chooses",
        )


def check_runtime(runtime: Path) -> None:
    """Refuse a runtime directory whose path is too long for the sockets of hosts.

    Raises:
        HostStartError: it is too long.
    """
    check_socket(runtime / DISCOVERY_FOLDER / ("0" * NAME_LENGTH) / SOCKET)


@attrs.frozen
class HostConfig:
    """The configuration of a host. It contains the token, so it is sent through a pipe, never as an argument."""

    endpoint: Endpoint
    directory: str
    """The discovery directory: a private directory where the executor's tasks look for the socket."""
    executor: str
    lease_seconds: float = 10.0
    """How long the host keeps running when it hears nothing from the coordinator."""
    spark_executor: str | None = None
    """Spark's id of the executor, if it is known."""

    @property
    def socket(self) -> Path:
        """Path of the socket under the name that tasks look for."""
        return Path(self.directory) / SOCKET

    @property
    def address(self) -> str:
        """Arrow Flight location of the socket."""
        return f"{UNIX}{self.socket}"
