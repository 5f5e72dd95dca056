"""A state host without a coordinator, which every batch may begin on: ``python -m benchmarks.cluster.transport_host``.

It reads a ``Serving`` from the first line of its input, prints the port at which it serves by mTLS, and ends with its
input.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import attrs

from chandy.state.host.memory import Memory
from chandy.state.host.serving import HostServer
from chandy.state.host.state_host import StateHost
from chandy.state.rpc.messages import AskBatch, BatchAnswer, ClaimAnswer, ClaimShards, Message
from chandy.state.rpc.tls import Identity
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.codec import from_json

SOCKET: Final = "socket"
_MEMORY: Final = 512 << 20


@attrs.frozen
class Serving:
    """Where and to whom the host is to serve."""

    folder: str
    """Takes its files, and its Unix socket."""
    token: str
    identity: Identity


class _Alone:
    """``Control`` of a host that gets every shard it asks for, empty. Nothing else is asked of it."""

    def send(self, message: Message[Any]) -> object:
        match message:
            case AskBatch():
                return BatchAnswer()
            case ClaimShards():
                return ClaimAnswer(dict.fromkeys(message.shards))
        return None


def main() -> None:
    """Serve until the input ends."""
    serving = from_json(Serving, sys.stdin.buffer.readline())
    folder = Path(serving.folder)
    control: Any = _Alone()
    host = StateHost("host", control, folder / "state", Memory(_MEMORY), FileCache(folder / "cache"))
    _near = HostServer(f"grpc+unix://{folder / SOCKET}", serving.token, host)
    far = HostServer("grpc+tls://127.0.0.1:0", serving.token, host, serving.identity)
    print(far.port, flush=True)
    sys.stdin.buffer.read()
    # Open calls and RocksDB's threads have nothing left to do.
    os._exit(0)


if __name__ == "__main__":
    main()
