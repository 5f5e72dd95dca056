"""What mTLS costs: the calls of a task over a state host's Unix socket and over mTLS on the loopback interface."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from chandy.coordinator.execution.certificates import issue
from chandy.state.format.arrow import BYTES
from chandy.state.rpc.access import Entries
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.messages import BeginTask
from chandy.storage.codec import to_json
from chandy.storage.ids import BatchId

from ..report import Options
from ..stage import balanced
from .figures import Figure, Pair
from .transport_host import SOCKET, Serving

PART: Final = "transport"
UNIX: Final = "Unix socket"
MTLS: Final = "mTLS"
CONTESTANTS: Final = (UNIX, MTLS)
_SHARDS: Final = tuple(range(4))
_VALUE_BYTES: Final = 100
_ROUNDS: Final = 20
"""Turns in which contestants run a block of batches each."""


@attrs.frozen
class Block:
    """Batches that a contestant runs in one turn."""

    keys: int
    """Keys that a batch fetches, and then changes."""
    batches: int
    warm_up: int = 2

    @property
    def measure(self) -> str:
        """The name of what is measured."""
        return f"batch of {self.keys:,} keys (ms)"


BLOCKS: Final = (Block(100, 20), Block(20_000, 5))
CHARTED: Final = BLOCKS[-1].measure
PAIRS: Final = tuple(Pair(PART, MTLS, block.measure, UNIX) for block in BLOCKS)


def measure(options: Options) -> Iterator[Figure]:
    """Run blocks of batches in turns; a figure is the median batch of a block."""
    names = [name for name in CONTESTANTS if options.takes(f"{PART}: {name}")]
    if not names:
        return
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        with _serving(folder) as clients:
            tasks = {name: _Task(clients[name], name) for name in names}
            for turn in range(options.repetitions or _ROUNDS):
                for name in balanced(names, turn):
                    for block in BLOCKS:
                        seconds = [
                            tasks[name].batch(block.keys) for _ in range(block.warm_up + block.batches)
                        ]
                        yield Figure(PART, name, block.measure, 1000 * median(seconds[block.warm_up :]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Task:
    """Batch after batch of a query of its own, over the same keys."""

    def __init__(self, client: TaskClient, query: str) -> None:
        self._client, self._query, self._batch = client, query, BatchId(0)

    def batch(self, keys: int) -> float:
        """Begin a batch, fetch so many keys and change their values; return the seconds."""
        # In the order of their shards, as the engine asks.
        shards = np.sort(np.arange(keys, dtype=np.int32) % len(_SHARDS))
        names = pa.array([f"{number:012}".encode() for number in range(keys)], BYTES)
        value = f"{self._batch:012}".encode().ljust(_VALUE_BYTES, b"x")
        changes = Entries(shards, names, pa.array([value] * keys, BYTES))
        begun = time.perf_counter()
        task = BeginTask(self._query, self._batch, "op", _SHARDS)
        with self._client.begin(task) as access:
            access.fetch(shards, names)
            access.apply([changes])
        self._batch = BatchId(self._batch + 1)
        return time.perf_counter() - begun


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[dict[str, TaskClient]]:
    """Run a state host, and provide a client for each contestant."""
    serving = Serving(str(folder), "token", issue())
    command = [sys.executable, "-m", "benchmarks.cluster.transport_host"]
    with (folder / "host.log").open("wb") as log:
        host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        assert host.stdin is not None and host.stdout is not None
        try:
            host.stdin.write(to_json(serving) + b"\n")
            host.stdin.flush()
            port = host.stdout.readline()
            if not port:
                raise OSError(f"the state host did not start: {(folder / 'host.log').read_text()}")
            clients = {
                UNIX: TaskClient.over_flight(f"grpc+unix://{folder / SOCKET}", serving.token),
                MTLS: TaskClient.over_flight(
                    f"grpc+tls://127.0.0.1:{int(port)}", serving.token, serving.identity
                ),
            }
            yield clients
            for client in clients.values():
                client.close()
        finally:
            # It ends with its input.
            host.stdin.close()
            host.wait()
            host.stdout.close()
