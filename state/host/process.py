"""The process of a state host: ``python -m chandy.state.host.process``, started by ``rendezvous``."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import uuid
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final, NoReturn

import attrs

from ...storage.codec import from_json
from ...storage.files import FileCache
from ...storage.logs import logger
from ..local.locks import acquire, remove_unless_held, try_acquire
from ..local.workspace import ALIVE, Workspace
from ..rpc.messages import HostHello
from .coordinator_client import CoordinatorClient, Lease, OrderStream
from .host_config import READY, SOCKET, START_LOCK, HostConfig
from .memory import Memory
from .serving import HostServer
from .state_host import StateHost

_HIDDEN_SOCKET: Final = ".new"
_LOOK_SECONDS: Final = 0.1
_SWITCH_SECONDS: Final = 0.001
"""How long a thread keeps the GIL from one that waits for it. Python's own 5 ms are for programs that compute; here
a batch waits so long, again and again, for a thread that writes a checkpoint."""
_log = logger(__name__)


def run(config: HostConfig) -> NoReturn:
    """Serve until ordered to stop, told to by a signal, or the lease is lost; then end the process.

    The working directory is gone then, and so is the meeting place, unless somebody starts a host there.
    """
    told = _EndRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told.take)
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    sys.meta_path.insert(0, _NoPandas())
    meeting, cache = Path(config.meeting), Path(config.endpoint.cache)
    alive = acquire(meeting / ALIVE)
    _remove_left_meetings(meeting)
    host = uuid.uuid4().hex[:12]
    workspace = Workspace.create(cache / "hosts", host)
    code = 1
    try:
        control = CoordinatorClient(config.endpoint)
        memory = Memory(config.endpoint.memory)
        changelogs = config.endpoint.changelogs
        state_host = StateHost(
            host,
            control,
            workspace.path,
            memory,
            FileCache(cache),
            changelogs=None if changelogs is None else Path(changelogs),
        )
        # Tasks see the socket only under its final name, which it gets when the coordinator knows this host.
        hidden = meeting / _HIDDEN_SOCKET
        hidden.unlink(missing_ok=True)
        # Serves from now on, in gRPC's threads, as long as the object lives: to the end of the process.
        _server = HostServer(f"grpc+unix://{hidden}", config.endpoint.token, host, state_host)
        code = _serve(config, host, control, state_host, told)
    except Exception:  # noqa: BLE001 - whatever it is, nothing may be left behind
        _log.exception("failed", host=host)
    _log.info("ending", host=host, code=code)
    workspace.remove()
    _remove_meeting(meeting)
    alive.release()
    sys.stderr.flush()
    # Calls may still be open and RocksDB's threads run: there is nothing left for them to do.
    os._exit(code)


class _NoPandas(MetaPathFinder):
    """Makes pandas a package that is not there.

    pyarrow imports it at its first array, wherever it finds it: 40 MB, and tenths of a second that the first tasks
    would wait. A host has no use for it.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


@attrs.define
class _EndRequest:
    """Whether a signal has told the process to end: no lock, for a handler interrupts whoever holds one."""

    made: bool = False

    def take(self, number: int, frame: object) -> None:
        self.made = True


def _serve(
    config: HostConfig, host: str, control: CoordinatorClient, state_host: StateHost, told: _EndRequest
) -> int:
    """Make the host known and wait for its end; return the exit code."""
    meeting = Path(config.meeting)
    hello = HostHello(host, config.address, socket.gethostname(), config.executor, os.getpid())
    lease = Lease(config.lease_seconds)
    orders = OrderStream(control.client, hello, state_host.obey, lease)
    threading.Thread(target=orders.follow, name="orders", daemon=True).start()
    while not orders.welcomed.wait(_LOOK_SECONDS):
        if told.made:
            return 0
        if lease.expired:
            _log.error("the coordinator did not answer", address=config.endpoint.address)
            return 1
    (meeting / _HIDDEN_SOCKET).rename(config.socket)
    _say_ready()
    _log.info("serving", host=host, pid=os.getpid(), address=config.address)
    while not state_host.stopped.wait(_LOOK_SECONDS) and not told.made:
        if lease.expired:
            _log.error("lease lost", seconds=config.lease_seconds)
            return 1
    return 0


def _say_ready() -> None:
    os.write(sys.stdout.fileno(), READY)
    # The starter's pipe ends here; a later print goes to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _remove_left_meetings(own: Path) -> None:
    for other in own.parent.iterdir():
        if other != own and other.is_dir():
            remove_unless_held(other, START_LOCK, ALIVE)


def _remove_meeting(meeting: Path) -> None:
    # Whoever holds the lock has found this host silent and starts the next one in the same place.
    lock = try_acquire(meeting / START_LOCK)
    if lock is not None:
        (meeting / SOCKET).unlink(missing_ok=True)
        for path in meeting.iterdir():
            path.unlink(missing_ok=True)
        meeting.rmdir()
        lock.release()


def main() -> None:
    """Read the configuration from stdin and run."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    run(from_json(HostConfig, sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
