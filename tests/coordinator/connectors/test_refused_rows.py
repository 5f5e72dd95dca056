"""Rows that a target refuses, on each real target: the error names the row, the column and where it comes from."""

from __future__ import annotations

from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.sinks.two_phase.contract import Batch, Epoch, Fence, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError

from . import delta_tables, iceberg_tables, kafka_targets, postgres_tables
from .kafka_broker import Broker, new_topic
from .kafka_broker import kafka as kafka
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres

GOOD = pa.table({"k": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})
BAD = pa.table({"k": pa.array([3, 777, None], pa.int64()), "v": ["c", None, "e"]})


@attrs.frozen
class Publishing:
    """Publishes as a coordinator does, without Spark."""

    sink: TwoPhaseSink
    store: str

    def write(self, batch: int, rows: pa.Table) -> Batch:
        context = WriteContext(self.store, "staged/delays/", batch, 0)
        staged = self.sink.write(iter(rows.to_batches()), context)
        return Batch(batch, staged.rows, staged.files, self.store)

    def epoch(self, id: int, *batches: Batch) -> Epoch:
        files = tuple(file for batch in batches for file in batch.files)
        return Epoch(EpochRecord(id, sum(batch.rows for batch in batches), Handle(files)), self.store)

    def refused(self, rows: Epoch | Batch) -> str:
        """How rows are refused; the position stays."""
        failures: list[ChandyError] = []
        publisher = Publisher(
            self.sink,
            Fence("flights", "delays", "out", self.store, 1),
            Unshared(),
            on_failure=failures.append,
        )
        position = publisher.begin(30)
        with pytest.raises(OutputError) as error:
            if isinstance(rows, Batch):
                publisher.upsert(rows, lambda _: False)
            else:
                publisher.publish_now([rows], 0)
        assert publisher.begin(30) == position
        publisher.close(30)
        return str(error.value)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/flights/"


def of_two_batches(publishing: Publishing, bad: pa.Table = BAD) -> str:
    """How an epoch of two batches is refused for a row of the second one."""
    batches = publishing.write(4, GOOD), publishing.write(5, bad)
    said = publishing.refused(publishing.epoch(7, *batches))
    assert "while publishing checkpoint 7 (batches 4 to 5)" in said
    # The batch is known where there is one.
    alone = publishing.refused(publishing.epoch(8, publishing.write(6, bad)))
    assert "while publishing checkpoint 8 (batch 6)" in alone
    return said


@pytest.mark.server
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_row_that_postgres_refuses(postgres: PostgresServer, store: str, mode: str) -> None:
    table = postgres_tables.OutTable.make(postgres, "k bigint PRIMARY KEY, v text NOT NULL")
    sink = table.sink() if mode == "append" else table.upsert()
    said = of_two_batches(Publishing(sink, store))
    assert 'null value in column "v"' in said
    assert "(777, null)" in said
    assert table.rows() == []


@pytest.mark.server
def test_a_row_of_a_batch_that_postgres_refuses(postgres: PostgresServer, store: str) -> None:
    table = postgres_tables.BatchTable.make(postgres, "k bigint PRIMARY KEY, v text NOT NULL")
    publishing = Publishing(table.sink(), store)
    said = publishing.refused(publishing.write(5, BAD))
    assert "while publishing batch 5" in said
    assert "(777, null)" in said
    assert table.rows() == []


@pytest.mark.server
def test_a_row_that_kafka_refuses(kafka: Broker, store: str) -> None:
    topic = new_topic(kafka, partitions=1, **{"max.message.bytes": "1500"})
    sink = kafka_targets.KafkaTarget(kafka, topic, f"positions-{topic}").sink()
    large = pa.table({"k": pa.array([777], pa.int64()), "v": ["x" * 10_000]})
    publishing = Publishing(sink, store)
    said = publishing.refused(publishing.epoch(7, publishing.write(4, GOOD), publishing.write(5, large)))
    assert "the row with key '777'" in said
    assert "while publishing checkpoint 7 (batches 4 to 5)" in said
    assert kafka_targets.values(kafka, topic) == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_row_that_a_delta_table_refuses(tmp_path: Path, store: str, mode: str) -> None:
    kind = delta_tables.DeltaTarget if mode == "append" else delta_tables.DeltaUpserts
    table = kind(str(tmp_path / "table")).make()
    said = of_two_batches(Publishing(table.sink(), store))
    assert "column 'k' to be never null" in said
    assert "{'k': None, 'v': 'e'}" in said
    assert table.rows() == []


def test_a_row_that_a_constraint_of_a_delta_table_refuses(tmp_path: Path, store: str) -> None:
    table = delta_tables.DeltaTarget(str(tmp_path / "table")).make()
    table.open().alter.add_constraint({"small": "k < 100"})
    said = of_two_batches(Publishing(table.sink(), store), BAD.slice(1, 1))
    assert "777" in said
    assert table.rows() == []


def test_a_row_that_an_iceberg_table_refuses(tmp_path: Path, store: str) -> None:
    table = iceberg_tables.IcebergTarget(tmp_path / "lake").make()
    said = of_two_batches(Publishing(table.sink(), store))
    assert "column 'k' to be never null" in said
    assert "{'k': None, 'v': 'e'}" in said
    assert table.rows() == []
