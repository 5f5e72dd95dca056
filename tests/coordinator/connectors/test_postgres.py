"""``PostgresSink`` on a real server."""

from __future__ import annotations

import uuid

import attrs
import pytest

from chandy.coordinator.connectors.postgres import PostgresSink

from .conformance import Row, SinkConformance, Target
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres

pytestmark = pytest.mark.server


@attrs.frozen
class Table(Target):
    """A schema of its own with a table ``out``."""

    server: PostgresServer
    schema: str = attrs.field(factory=lambda: f"Test {uuid.uuid4().hex[:12]}")

    @classmethod
    def make(cls, server: PostgresServer, columns: str = "k bigint NOT NULL, v text") -> Table:
        table = cls(server)
        server.execute(f'CREATE SCHEMA "{table.schema}"')
        if columns:
            server.execute(f"CREATE TABLE {table.sql} ({columns})")
        return table

    @property
    def name(self) -> str:
        return f"{self.schema}.out"

    @property
    def sql(self) -> str:
        return f'"{self.schema}".out'

    def sink(self, uid: str = "out") -> PostgresSink:
        return PostgresSink(conninfo=self.server.conninfo(), table=self.name, uid=uid, timeout=20)

    def rows(self) -> list[Row]:
        return self.server.execute(f"SELECT k, v FROM {self.sql}")


class TestConformance(SinkConformance):
    @pytest.fixture
    def target(self, postgres: PostgresServer) -> Table:
        return Table.make(postgres)
