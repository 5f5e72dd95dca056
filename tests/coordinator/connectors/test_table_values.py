"""What ``DeltaSink`` and ``IcebergSink`` accept they publish, and the table's own client reads it back as it was."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.connectors.tables.iceberg import IcebergSink
from chandy.coordinator.sinks.two_phase.staged import StagedSink, in_utc

from ...drawn_rows import refused_is_no_example, rows_of, tables
from ...effort import trying
from .conformance import Pipeline

pytestmark = pytest.mark.server
"""They need no server, and as much of the machine."""

_numbers = itertools.count()
# What clients have written so that no reader opens the table again, or have never come to an end with.
DECIMAL = pa.table({"k": pa.array([Decimal("-0.750")])})
FAR = pa.table({"k": pa.array([4_000_000], pa.date32())})
HUGE = pa.table({"k": [1e253]})


def in_delta(
    folder: Path, partition_by: tuple[str, ...], upserts: bool
) -> tuple[StagedSink, Callable[[], pa.Table]]:
    from deltalake import DeltaTable

    sink = DeltaSink(
        str(folder / "out"),
        mode="upsert" if upserts else "append",
        key=("id",) if upserts else (),
        partition_by=partition_by,
    )
    return sink, lambda: pa.table(DeltaTable(sink.table).to_pyarrow_table())


def in_iceberg(
    folder: Path, partition_by: tuple[str, ...], upserts: bool
) -> tuple[StagedSink, Callable[[], pa.Table]]:
    folder.mkdir()
    # The sink makes tables without partitions.
    sink = IcebergSink(
        {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"},
        "db.out",
        mode="upsert" if upserts else "append",
        key=("id",) if upserts else (),
    )

    def read() -> pa.Table:
        with sink.connected() as catalog:
            return sink.load(catalog).scan().to_arrow()

    return sink, read


@pytest.mark.parametrize("make", [in_delta, in_iceberg])
def test_what_is_accepted_is_published_and_read_back_as_it_was(
    make: Callable[[Path, tuple[str, ...], bool], tuple[StagedSink, Callable[[], pa.Table]]], tmp_path: Path
) -> None:
    @trying(50)
    @given(tables(), st.booleans(), st.booleans())
    @example((DECIMAL, ("k",)), False, False)
    @example((FAR, ()), False, False)
    @example((HUGE, ("k",)), False, False)
    def check(case: tuple[pa.Table, tuple[str, ...]], upserts: bool, is_wider: bool) -> None:
        rows, partition_by = in_utc(case[0]), case[1] if make is in_delta else ()
        rows = rows.append_column("id", pa.array(range(rows.num_rows), pa.int32()))
        folder = tmp_path / f"{next(_numbers)}"
        sink, read = make(folder, partition_by, upserts)
        pipeline = Pipeline(sink, f"file://{folder}-store/flights/")
        with refused_is_no_example():
            if is_wider:
                # It makes the table, in which a column takes no nulls.
                fields = [
                    field.with_type(wider(field.type)).with_nullable(field.name != "k")
                    for field in rows.schema
                ]
                sink.check(pa.schema(fields))
            epoch = pipeline.accepted(1, rows)
        with contextlib.closing(pipeline.recover()) as committer:
            committer.commit(epoch)
        assert rows_of(read().select(rows.column_names), partition_by) == rows_of(rows, partition_by)

    check()


def wider(narrow: pa.DataType) -> pa.DataType:
    """A type that has all values of another one."""
    if pa.types.is_integer(narrow):
        return pa.int64()
    if pa.types.is_float32(narrow):
        return pa.float64()
    if pa.types.is_decimal(narrow):
        return pa.decimal128(narrow.precision + 2, narrow.scale)
    if pa.types.is_list(narrow):
        return pa.list_(wider(narrow.value_type))
    if pa.types.is_struct(narrow):
        return pa.struct([field.with_type(wider(field.type)) for field in narrow])
    if pa.types.is_map(narrow):
        return pa.map_(wider(narrow.key_type), wider(narrow.item_type))
    return narrow
