"""Rows that delete their key in the tables of a lake, by the sinks that upsert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.connectors.tables.iceberg import IcebergSink
from chandy.coordinator.sinks.two_phase.errors import OutputError
from chandy.testing import SCHEMA, SinkPipeline

from ...effort import chance
from . import delta_tables, iceberg_tables

MARKED = SCHEMA.append(pa.field("gone", pa.bool_()))
Table = delta_tables.DeltaTarget | iceberg_tables.IcebergTarget
TABLES: dict[str, Callable[[Path], Table]] = {
    "delta": lambda folder: delta_tables.DeltaUpserts(str(folder / "table")),
    "iceberg": lambda folder: iceberg_tables.IcebergUpserts(folder / "lake"),
}
Given = tuple[int, str | None, bool | None]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return TABLES[request.param](tmp_path).make()


def deleting(table: Table, **options: Any) -> DeltaSink | IcebergSink:
    sink: DeltaSink | IcebergSink = attrs.evolve(table.sink(), **{"deleted": "gone", **options})
    return sink


class DeletedRows:
    """Commits rows, some of which delete their key."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table = table
        self._pipeline = SinkPipeline(deleting(table), f"file://{folder}/store/flights/")
        self._committer = self._pipeline.recover()
        self._epochs = 0

    def commit(self, *rows: Given) -> dict[int, str | None]:
        """Commit an epoch, and return what the table has then."""
        self._epochs += 1
        given = pa.Table.from_pylist(
            [dict(zip(MARKED.names, row, strict=True)) for row in rows], schema=MARKED
        )
        self._committer.commit(self._pipeline.accepted(self._epochs, given))
        found = self.table.rows()
        assert len(dict(found)) == len(found)
        return dict(found)


@pytest.fixture
def deletions(table: Table, tmp_path: Path) -> DeletedRows:
    return DeletedRows(table, tmp_path)


def test_rows_that_are_marked_delete_their_key(deletions: DeletedRows) -> None:
    commit = deletions.commit
    assert commit((1, "a", False), (2, "b", None), (3, "c", False)) == {1: "a", 2: "b", 3: "c"}
    # One that is not there is deleted, too, and of two rows of a key the last one counts.
    assert commit((1, None, True), (4, None, True), (2, "d", False)) == {2: "d", 3: "c"}
    assert commit((2, None, True), (2, "e", False), (3, "f", False), (3, None, True)) == {2: "e"}
    # An epoch that changes nothing is published, too.
    assert commit((7, None, True)) == {2: "e"}
    assert commit((2, None, True)) == {}


def test_the_table_is_what_is_left_of_random_rows(deletions: DeletedRows) -> None:
    numbers = chance("deletions", type(deletions.table).__module__)
    expected: dict[int, str | None] = {}
    for epoch in range(6):
        rows: list[Given] = [
            (
                numbers.randrange(12),
                numbers.choice([f"{epoch}.{at}", None]),
                numbers.choice([True, False, None]),
            )
            for at in range(numbers.randint(1, 12))
        ]
        for key, value, gone in rows:
            expected.pop(key, None)
            if not gone:
                expected[key] = value
        assert deletions.commit(*rows) == expected


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"k": pa.int64()}, {}),
        ({"k": pa.int64(), "gone": pa.string()}, {}),
        ({"k": pa.int64(), "gone": pa.bool_()}, {"key": ["gone"]}),
        ({"k": pa.int64(), "gone": pa.bool_()}, {"mode": "append", "key": ()}),
    ],
)
def test_a_mark_of_deletions_is_a_boolean_apart_from_the_key_of_an_upsert(
    table: Table, columns: dict[str, pa.DataType], options: dict[str, Any]
) -> None:
    with pytest.raises(OutputError, match="a boolean column 'gone' apart from the key"):
        deleting(table, **options).check(pa.schema(columns))


def in_delta(folder: Path) -> tuple[DeltaSink | IcebergSink, Callable[[], pa.Table]]:
    sink = DeltaSink(str(folder / "out"), mode="upsert", key=("a", "b"), deleted="gone")
    return sink, lambda: sink.open().to_pyarrow_table()


def in_iceberg(folder: Path) -> tuple[DeltaSink | IcebergSink, Callable[[], pa.Table]]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = IcebergSink(catalog, "db.out", mode="upsert", key=("a", "b"), deleted="gone")

    def read() -> pa.Table:
        with sink.connected() as found:
            return sink.load(found).scan().to_arrow()

    return sink, read


@pytest.mark.parametrize("make", [in_delta, in_iceberg])
def test_a_null_in_a_key_equals_a_null(
    make: Callable[[Path], tuple[DeltaSink | IcebergSink, Callable[[], pa.Table]]], tmp_path: Path
) -> None:
    sink, read = make(tmp_path)
    pipeline = SinkPipeline(sink, f"file://{tmp_path}/store/flights/")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("v", pa.int64()), ("gone", pa.bool_())])
    sink.check(schema)
    committer, numbers = pipeline.recover(), chance("nulls in keys", make.__name__)
    expected: dict[tuple[int | None, str | None], int] = {}
    for epoch in range(1, 6):
        rows = [
            {
                "a": numbers.choice([None, 1, 2]),
                "b": numbers.choice([None, "x", "y"]),
                "v": 100 * epoch + at,
                "gone": numbers.choice([True, False, None]),
            }
            for at in range(numbers.randint(1, 12))
        ]
        for row in rows:
            expected.pop((row["a"], row["b"]), None)
            if not row["gone"]:
                expected[row["a"], row["b"]] = row["v"]
        committer.commit(pipeline.accepted(epoch, pa.Table.from_pylist(rows, schema=schema)))
        found = [(row["a"], row["b"], row["v"]) for row in read().to_pylist()]
        assert sorted(found, key=repr) == sorted(((*key, v) for key, v in expected.items()), key=repr)
    committer.close()
