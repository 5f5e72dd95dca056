"""The process of a state host: ``python -m chandy.state.host.process``, started by ``discovery``."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import uuid
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final, NoReturn

from ...storage.checkpoints.files import FileCache
from ...storage.codec import from_json
from ...storage.disk.directories import HOSTS
from ...storage.disk.locks import acquire, try_acquire
from ...storage.disk.owners import OwnerRecord, write_owner
from ...storage.disk.workspace import ALIVE, Workspace, remove_unless_held
from ...storage.errors import UnsafeDirectoryError
from ...storage.logs import logger
from ...storage.signals import EndSignal
from ..local.machine import machine_id, machine_name
from ..rpc.addresses import bind_address, location, own_address, place, serve
from ..rpc.client import HostClient
from ..rpc.messages import Endpoint, HostHello
from ..rpc.tls import SCHEME
from .changelogs import HostChangelogs, RunChangelogs
from .coordinator_client import CoordinatorClient
from .host_config import DISCOVERY_FOLDER, LOG, READY, SOCKET, SPARE, START_LOCK, UNIX, HostConfig
from .life import live
from .memory import Memory
from .serving import HostServer
from .state_host import StateHost

_HIDDEN_SOCKET: Final = ".new"
_SWITCH_SECONDS: Final = 0.001
"""How long a thread may keep the GIL while another one waits. With Python's default of 5 ms, batches would wait that
long again and again for a thread that writes a checkpoint."""
_log = logger(__name__)


def run(config: HostConfig) -> NoReturn:
    """Serve until an order, a signal or a lost lease ends the process.

    At the end it deletes its working directory and the discovery directory, unless another host is being started there.
    """
    end = EndSignal(signal.SIGTERM, signal.SIGINT)
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_SECONDS)
    sys.meta_path.insert(0, _NoPandas())
    directory, cache = Path(config.directory), Path(config.endpoint.cache)
    write_owner(directory / ALIVE, OwnerRecord(DISCOVERY_FOLDER))
    alive = acquire(directory / ALIVE)
    _remove_unused_directories(directory)
    host = uuid.uuid4().hex[:12]
    workspace = Workspace.create(cache / HOSTS, host, OwnerRecord(HOSTS, host))
    code = 1
    try:
        control = CoordinatorClient(config.endpoint)
        memory = Memory(config.endpoint.memory)
        changelogs = _changelogs(config.endpoint, host)
        state_host = StateHost(
            host,
            control,
            workspace.path,
            memory,
            FileCache(cache),
            changelogs=changelogs,
            peers=HostClient(config.endpoint.token, config.endpoint.identity),
        )
        # The socket gets its final name, which tasks look for, when the coordinator knows this host.
        hidden = directory / _HIDDEN_SOCKET
        hidden.unlink(missing_ok=True)
        # It serves in gRPC's threads from now on, as long as the variable lives: until the process ends.
        _server = HostServer(f"{UNIX}{hidden}", config.endpoint.token, state_host)
        _remote = _serve_others(config, state_host)

        def announce() -> None:
            hidden.rename(config.socket)
            _announce_ready()

        code = live(
            _hello(config, host, _remote, changelogs),
            control,
            state_host,
            directory=workspace.path,
            lease_seconds=config.lease_seconds,
            announce=announce,
            must_end=lambda: end.has_come,
        )
    except Exception:  # noqa: BLE001 - the directories must be removed in any case
        _log.exception("failed", host=host)
    _log.info("ending", host=host, code=code)
    workspace.remove()
    _remove_directory(directory)
    alive.release()
    sys.stderr.flush()
    # Open calls and RocksDB's threads have nothing left to do.
    os._exit(code)


class _NoPandas(MetaPathFinder):
    """Hides pandas.

    pyarrow imports pandas with its first array if it can: 40 MB, and tenths of a second that the first tasks would
    wait. A host does not need it.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def _serve_others(config: HostConfig, state_host: StateHost) -> HostServer | None:
    """Serve processes that cannot use the Unix socket, if there are any."""
    endpoint = config.endpoint
    if endpoint.identity is None:
        return None
    identity, address = endpoint.identity, bind_address(own_address(endpoint.address))

    def start(port: int) -> HostServer:
        return HostServer(location(SCHEME, address, port), endpoint.token, state_host, identity)

    return serve(endpoint.ports, address, Path(endpoint.runtime), start)


def _changelogs(endpoint: Endpoint, host: str) -> RunChangelogs | HostChangelogs | None:
    """Return where the host keeps changelogs; None if it keeps none."""
    if endpoint.changelogs is not None:
        return RunChangelogs(Path(endpoint.changelogs))
    if endpoint.host_changelogs is None:
        return None
    try:
        return HostChangelogs.begin(Path(endpoint.host_changelogs), endpoint.token, host)
    except (OSError, UnsafeDirectoryError) as error:
        _log.warning("no changelogs are kept", host=host, error=str(error))
        return None


def _hello(
    config: HostConfig,
    host: str,
    remote: HostServer | None,
    changelogs: RunChangelogs | HostChangelogs | None,
) -> HostHello:
    endpoint = config.endpoint
    shared = None
    if isinstance(changelogs, HostChangelogs):
        # Machines may show each other's names and paths, and containers of a machine its start.
        shared = f"{changelogs.root} on {machine_name()}, {machine_id()}"
    return HostHello(
        host,
        config.address,
        machine_name(),
        config.executor,
        os.getpid(),
        pid_of=machine_id(),
        place=place(Path(endpoint.runtime)),
        network=remote and location(SCHEME, own_address(endpoint.address), remote.port),
        spark_executor=config.spark_executor,
        changelogs=shared,
    )


def _announce_ready() -> None:
    os.write(sys.stdout.fileno(), READY)
    # Close the starter's pipe. Later prints go to the log.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _remove_unused_directories(own: Path) -> None:
    for other in own.parent.iterdir():
        if other != own and other.is_dir():
            remove_unless_held(other, DISCOVERY_FOLDER, START_LOCK, ALIVE)


def _remove_directory(directory: Path) -> None:
    # A task that holds the lock has found this host silent and starts the next one in the same directory.
    lock = try_acquire(directory / START_LOCK)
    if lock is not None:
        (directory / SOCKET).unlink(missing_ok=True)
        for path in directory.iterdir():
            path.unlink(missing_ok=True)
        directory.rmdir()
        lock.release()


def main() -> None:
    """Read the configuration from stdin and run. A spare process ends without one if its starter has ended."""
    given = sys.stdin.buffer.read()
    is_spare = SPARE in sys.argv[1:]
    if is_spare and not given:
        return
    config = from_json(HostConfig, given)
    if is_spare:
        with (Path(config.directory) / LOG).open("ab") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s %(name)s pipeline={config.endpoint.pipeline} %(message)s",
    )
    run(config)


if __name__ == "__main__":
    main()
