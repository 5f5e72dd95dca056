"""Tables of PostgreSQL that a sink publishes to."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.sinks.two_phase.contract import Committer, Epoch, WriteContext
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.testing import Row, SinkPipeline, SinkTarget

from ...waiting import eventually
from .postgres_proxy import PostgresProxy
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres


@attrs.frozen
class OutTable(SinkTarget):
    """A schema of its own with a table ``out``."""

    server: PostgresServer
    schema: str = attrs.field(factory=lambda: f"Test {uuid.uuid4().hex[:12]}")

    @classmethod
    def make(cls, server: PostgresServer, columns: str = "k bigint NOT NULL, v text") -> Self:
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

    def upsert(self, deleted: str | None = None) -> PostgresSink:
        """A sink whose key is ``k``."""
        return attrs.evolve(self.sink(), mode="upsert", key=("k",), deleted=deleted)

    def rows(self) -> list[Row]:
        return self.server.execute(f"SELECT k, v FROM {self.sql}")

    def check_nothing_left(self) -> None:
        assert_nothing_is_open(self.server)


@attrs.frozen
class BatchTable(OutTable):
    """A table whose sinks publish each batch at once."""

    def sink(self, uid: str = "out") -> PostgresSink:
        appends = OutTable(self.server, self.schema).sink(uid)
        return attrs.evolve(appends, mode="upsert", key=("k",), publish="batch")


@pytest.fixture
def table(postgres: PostgresServer) -> OutTable:
    return OutTable.make(postgres)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/flights/"


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(postgres.port).running() as proxy:
        yield proxy


def through(proxy: PostgresProxy, pipeline: SinkPipeline) -> SinkPipeline:
    """The same pipeline with a sink that connects by the proxy."""
    sink = pipeline.sink
    assert isinstance(sink, PostgresSink)
    conninfo = sink.conninfo.replace(f"port={proxy.server_port}", f"port={proxy.port}")
    assert conninfo != sink.conninfo
    return attrs.evolve(pipeline, sink=attrs.evolve(sink, conninfo=conninfo))


def assert_nothing_is_open(server: PostgresServer) -> None:
    """No transaction and no lock of a sink is left."""
    open_ones = (
        "SELECT pid, state, query FROM pg_stat_activity "
        "WHERE application_name LIKE 'chandy %%' AND xact_start IS NOT NULL"
    )
    eventually(lambda: server.execute(open_ones) == [], "the end of all transactions")
    assert server.execute("SELECT * FROM pg_prepared_xacts") == []


def position_of(committer: Committer) -> int:
    return committer.position or 0


def publish(pipeline: SinkPipeline, *tables: pa.Table) -> None:
    """Publish the next epoch, of one batch per table."""
    with contextlib.closing(pipeline.recover()) as committer:
        id = position_of(committer) + 1
        staged = [
            pipeline.sink.write(iter(rows.to_batches()), WriteContext(pipeline.store, "staged/", n, 0))
            for n, rows in enumerate(tables)
        ]
        files = tuple(file for one in staged for file in one.files)
        record = EpochRecord(id, sum(one.rows for one in staged), Handle(files))
        committer.commit(Epoch(record, pipeline.store))
