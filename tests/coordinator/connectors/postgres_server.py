"""A PostgreSQL server for tests, as a process of its own that can be killed, frozen and started again."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager

import attrs
import pytest

from benchmarks.servers import postgres as servers

from ...waiting import freeze


@attrs.define
class PostgresServer(servers.PostgresServer):
    """A server with users that may do little, and one that can be frozen."""

    def user_with(self, grants: str, schema: str) -> str:
        """Make a user with some rights; ``{0}`` in them stands for the schema."""
        user = f"user_{uuid.uuid4().hex[:12]}"
        quoted = '"' + schema + '"'
        self.execute(f"CREATE USER {user}")
        for grant in filter(None, grants.format(quoted).split("; ")):
            self.execute(f"GRANT {grant} TO {user}")
        return user

    def freeze(self) -> None:
        """Have the server accept connections and answer nobody."""
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def running(**settings: str) -> AbstractContextManager[PostgresServer]:
    """A server for the length of the ``with``."""
    return servers.running(PostgresServer, **settings)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server that tests share; a test that kills it starts it again."""
    with running() as server:
        yield server
