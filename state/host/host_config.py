"""What a state host and its starter agree on: the files of the discovery directory and the host's configuration.

A module of its own, because the host loads RocksDB and much else that a task never needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from ..rpc.messages import Endpoint

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
