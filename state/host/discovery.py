"""How an executor's state host is found, or started: by its tasks, or ahead of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from ...storage.codec import to_json
from ..errors import HostStartError, SocketPathError
from ..local.directories import private_directory
from ..local.locks import locked
from ..rpc.client import TaskClient
from ..rpc.messages import Endpoint
from .host_config import READY, START_LOCK, HostConfig

_SOCKET_LIMIT: Final = 107
"""Bytes of a Unix socket's path on Linux, without the closing zero (``sun_path``, unix(7))."""
_START_SECONDS: Final = 60.0
_LOG: Final = "host.log"
_LOG_TAIL: Final = 4000

_clients: dict[tuple[int, str, int, int], TaskClient] = {}
"""By process and socket file: Spark forks its workers, and a connection does not live through a fork."""


def executor_identity(root: str | None = None) -> str:
    """Return what tells this executor from all others, the same in all of its tasks.

    Args:
        root: root directory of the executor's files; by default that of ``SparkFiles``.
            ``spark.executor.id`` would not do, a Python worker sees the driver's.
    """
    if root is None:
        from pyspark import SparkFiles

        root = SparkFiles.getRootDirectory()
    return f"{socket.gethostname()}:{Path(root).resolve()}"


def connect(endpoint: Endpoint, root: str | None = None, lease_seconds: float = 10.0) -> TaskClient:
    """Return a client of the executor's state host, which is started if there is none.

    Clients are shared within a process: do not close them.

    Args:
        endpoint: where the coordinator is.
        root: as in ``executor_identity``.
        lease_seconds: how long a host that is started here goes on without its coordinator.

    Raises:
        HostStartError: no host could be started; holds the end of its log.
        SocketPathError: the runtime directory's path is too long.
        UnsafeDirectoryError: the runtime directory is not this user's alone.
    """
    config = _config(endpoint, root, lease_seconds)
    _start_unless_listening(config)
    return _client(config)


def start_host(endpoint: Endpoint, root: str) -> str:
    """Start an executor's state host unless there is one; return its Arrow Flight location.

    Args, Raises: as for ``connect``.
    """
    config = _config(endpoint, root)
    _start_unless_listening(config)
    return config.address


def _config(endpoint: Endpoint, root: str | None, lease_seconds: float = 10.0) -> HostConfig:
    executor = executor_identity(root)
    place = hashlib.sha256(f"{endpoint.token}\n{executor}".encode()).hexdigest()[:16]
    # In a folder of their own: a host that starts removes the meeting places beside its own that are dead.
    meeting = Path(endpoint.runtime) / "meet" / place
    config = HostConfig(endpoint, str(meeting), executor, lease_seconds)
    if len(os.fsencode(config.socket)) > _SOCKET_LIMIT:
        raise SocketPathError(str(config.socket), _SOCKET_LIMIT)
    return config


def _start_unless_listening(config: HostConfig) -> None:
    meeting, path = Path(config.meeting), config.socket
    while not is_listening(path):
        private_directory(meeting.parent.parent)
        private_directory(meeting.parent)
        private_directory(meeting)
        # A host that ends removes the place: then the lock is on a file that is gone, and all begins again.
        with contextlib.suppress(FileNotFoundError), locked(meeting / START_LOCK):
            if not is_listening(path):
                path.unlink(missing_ok=True)
                _start(config, meeting)


def _client(config: HostConfig) -> TaskClient:
    path = config.socket
    found = path.stat()
    key = (os.getpid(), str(path), found.st_ino, found.st_ctime_ns)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = TaskClient(config.address, config.endpoint.token)
    return client


def is_listening(path: Path) -> bool:
    """Whether somebody listens on a Unix socket; a killed process leaves the file of one that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(config: HostConfig, meeting: Path) -> None:
    """Start the process and wait until it serves."""
    log = meeting / _LOG
    with log.open("ab") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "chandy.state.host.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=target,
            # Away from the executor's process group, which Spark ends together with a worker.
            start_new_session=True,
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(to_json(config))
        said = _read(process.stdout.fileno(), time.monotonic() + _START_SECONDS)
    if said != READY:
        process.kill()
        code = process.wait()
        detail = f"it ended with code {code}" if said == b"" else f"it was not ready in {_START_SECONDS:g} s"
        raise HostStartError(str(meeting), detail, _tail(log))


def _read(descriptor: int, deadline: float) -> bytes | None:
    """Return what comes first from a pipe, b"" at its end, None at the deadline."""
    readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    return os.read(descriptor, len(READY)) if readable else None


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip() or "(empty)"
    except FileNotFoundError:
        return "(removed)"
