"""Finds the state host of an executor, or starts it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from ...storage.codec import to_json
from ...storage.disk.directories import private_directory
from ...storage.disk.locks import locked
from ...storage.disk.owners import OwnerRecord, write_owner
from ...storage.disk.workspace import ALIVE
from ...storage.logs import logger
from ..errors import HostStartError
from ..rpc.addresses import place
from ..rpc.client import TaskClient
from ..rpc.messages import Endpoint
from .host_config import (
    DISCOVERY_FOLDER,
    LOG,
    NAME_LENGTH,
    READY,
    SPARE,
    START_LOCK,
    UNIX,
    HostConfig,
    check_socket,
)
from .spark_executor import executor_id
from .versions import check_same, versions_of

_log = logger(__name__)

_START_SECONDS: Final = 60.0
_LOG_TAIL: Final = 4000

_clients: dict[tuple[int, str, int, int], TaskClient] = {}
"""By process and socket file: Spark forks its workers, and a connection does not survive a fork."""

_spare: subprocess.Popen[bytes] | None = None
"""A process that waits to become a state host."""
_spare_lock = threading.Lock()


def executor_identity(root: str | None = None) -> str:
    """Return what identifies this executor; it is the same in all of its tasks.

    Args:
        root: root directory of the executor's files; by default that of ``SparkFiles``. ``spark.executor.id`` does
            not identify it, because a Python worker sees that of the driver.
    """
    if root is None:
        from pyspark import SparkFiles

        root = SparkFiles.getRootDirectory()
    # Pods that share their node's network have its host name, too, and the same paths.
    return f"{place(Path(root))}:{Path(root).resolve()}"


def connect(endpoint: Endpoint, root: str | None = None, lease_seconds: float = 10.0) -> TaskClient:
    """Return a client of the executor's state host. The host is started if there is none.

    Clients are shared in a process: do not close them.

    Args:
        endpoint: where the coordinator is.
        root: as in ``executor_identity``.
        lease_seconds: how long a host that is started here keeps running without its coordinator.

    Raises:
        HostStartError: no host could be started, this executor has another version of Chandy or RocksDB than the
            driver, or the path of the runtime directory is too long for its socket.
        UnsafeDirectoryError: the runtime directory does not belong to this user alone.
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


def end_host(endpoint: Endpoint, root: str, seconds: float = 2.0) -> None:
    """Wait until an executor's state host has ended, which was told so, and kill it otherwise: the next one is another.

    Args:
        endpoint, root: as for ``connect``.
        seconds: to wait at most.
    """
    config, until = _config(endpoint, root), time.monotonic() + seconds
    while is_listening(config.socket):
        if time.monotonic() >= until:
            end_silent_host(config.address)
        time.sleep(0.01)


def end_silent_host(address: str) -> None:
    """Kill a state host on this machine that does not answer, so that the next ``connect`` starts another one.

    Args:
        address: its Arrow Flight location. Nothing happens unless it is a Unix socket on which a process listens.
    """
    if not address.startswith(UNIX):
        return
    pid = _listener(Path(address.removeprefix(UNIX)))
    if pid is not None:
        _log.warning("a state host does not answer and is killed", pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _listener(path: Path) -> int | None:
    """Return the id of the process that listens on a Unix socket, as Linux has it (``SO_PEERCRED``, unix(7))."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError:
            return None
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None


def _config(endpoint: Endpoint, root: str | None, lease_seconds: float = 10.0) -> HostConfig:
    executor = executor_identity(root)
    name = hashlib.sha256(f"{endpoint.token}\n{executor}".encode()).hexdigest()[:NAME_LENGTH]
    # In a folder of their own: a host that starts removes the other discovery directories there that are unused.
    directory = Path(endpoint.runtime) / DISCOVERY_FOLDER / name
    config = HostConfig(endpoint, str(directory), executor, lease_seconds)
    check_socket(config.socket)
    return config


def _start_unless_listening(config: HostConfig) -> None:
    directory, path = Path(config.directory), config.socket
    while not is_listening(path):
        private_directory(directory.parent.parent)
        private_directory(directory.parent)
        private_directory(directory)
        # A host that ends removes the directory. Then the lock file is gone, and this starts again.
        with contextlib.suppress(FileNotFoundError):
            write_owner(directory / ALIVE, OwnerRecord(DISCOVERY_FOLDER))
            with locked(directory / START_LOCK):
                if not is_listening(path):
                    path.unlink(missing_ok=True)
                    if driver := config.endpoint.versions:
                        check_same(driver, versions_of(driver))
                    _start(attrs.evolve(config, spark_executor=executor_id()), directory)


def _client(config: HostConfig) -> TaskClient:
    path = config.socket
    found = path.stat()
    key = (os.getpid(), str(path), found.st_ino, found.st_ctime_ns)
    client = _clients.get(key)
    if client is None:
        endpoint = config.endpoint
        looks = endpoint.patience > 0
        client = _clients[key] = TaskClient.over_flight(
            config.address, endpoint.token, endpoint.identity, looks=looks
        )
    return client


def is_listening(path: Path) -> bool:
    """Return whether a process listens on a Unix socket. A killed process leaves the file behind."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


def _start(config: HostConfig, directory: Path) -> None:
    """Start the process, or use the spare one, and wait until it serves."""
    log = directory / LOG
    process = _take_spare()
    if process is None:
        with log.open("ab") as target:
            process = _new_process(target)
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(to_json(config))
        answer = _read(process.stdout.fileno(), time.monotonic() + _START_SECONDS)
    if answer != READY:
        process.kill()
        code = process.wait()
        raise HostStartError(
            f"the state host for {directory} could not be started",
            f"it to serve within {_START_SECONDS:g} s",
            f"that it ended with code {code}" if answer == b"" else "that it did not",
            f"read the end of its log:\n{_tail(log)}",
        )


def keep_spare() -> None:
    """Start a process that becomes the next state host that this process starts. It has its imports done by then.

    It ends with this process. Calls while there is a spare process do nothing.
    """
    global _spare
    with _spare_lock:
        if _spare is None or _spare.poll() is not None:
            # It writes its log into the directory of the host that it becomes.
            _spare = _new_process(subprocess.DEVNULL, SPARE)


def _take_spare() -> subprocess.Popen[bytes] | None:
    global _spare
    with _spare_lock:
        taken, _spare = _spare, None
    return taken if taken is not None and taken.poll() is None else None


def _new_process(log: BinaryIO | int, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "chandy.state.host.process", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        # Outside the executor's process group, which Spark ends together with a worker.
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )


def _read(descriptor: int, deadline: float) -> bytes | None:
    """Return the first bytes from a pipe, b"" at its end, or None at the deadline."""
    readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    return os.read(descriptor, len(READY)) if readable else None


def _tail(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip() or "(empty)"
    except FileNotFoundError:
        return "(removed)"
