"""What a state host and whoever starts it agree on: the files of their meeting place, and what a host is told.

Apart from the host itself, which loads RocksDB and much else that a task never needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from ..rpc.messages import Endpoint

SOCKET: Final = "host.sock"
"""Name of the socket in a host's meeting place."""
START_LOCK: Final = "start"
"""The lock file that whoever starts a host holds in the meeting place."""
READY: Final = b"ready\n"
"""What a host writes on stdout once it serves."""


@attrs.frozen
class HostConfig:
    """What a host is told when it starts. Holds the token: it goes through a pipe, never into arguments."""

    endpoint: Endpoint
    meeting: str
    """The meeting place: private directory where tasks of the executor look for the socket."""
    executor: str
    lease_seconds: float = 10.0
    """How long the host goes on when it hears nothing from the coordinator."""

    @property
    def socket(self) -> Path:
        """The socket, under the name by which tasks know it."""
        return Path(self.meeting) / SOCKET

    @property
    def address(self) -> str:
        """Arrow Flight location of the socket."""
        return f"grpc+unix://{self.socket}"
