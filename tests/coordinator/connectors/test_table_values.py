"""What ``DeltaSink`` and ``IcebergSink`` accept they publish, and the table's own client reads it back as it was."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chandy.coordinator.connectors.tables.delta import DeltaSink
from chandy.coordinator.connectors.tables.iceberg import IcebergSink
from chandy.coordinator.sinks.two_phase.staged import StagedSink, in_utc
from chandy.testing import SinkPipeline

from ...drawn_rows import Kind, kinds, refused_is_no_example, rows_of, same, tables
from ...effort import trying

pytestmark = pytest.mark.server
"""They need no server, and as much of the machine."""

_numbers = itertools.count()
# What clients have written so that no reader opens the table again, or have never come to an end with.
DECIMAL = pa.table({"k": pa.array([Decimal("-0.750")])})
FAR = pa.table({"k": pa.array([4_000_000], pa.date32())})
HUGE = pa.table({"k": [1e253]})
BYTES = pa.table({"k": [b"abc"]})
TWO_BYTES = 3
"""A seed by which a table takes fewer."""


Made = tuple[StagedSink, Callable[[], pa.Table], Callable[[str], None]]
"""A sink, what reads its table, and what says more of the table than its schema does."""


def in_delta(folder: Path, partition_by: tuple[str, ...], upserts: bool) -> Made:
    from deltalake import DeltaTable, TableFeatures

    sink = DeltaSink(
        str(folder / "out"),
        mode="upsert" if upserts else "append",
        key=("id",) if upserts else (),
        partition_by=partition_by,
    )

    def say(what: str) -> None:
        change = DeltaTable(sink.table).alter
        if what == "delta.appendOnly":
            change.set_table_properties({what: "true"})
        else:
            change.add_feature(getattr(TableFeatures, what), allow_protocol_versions_increase=True)

    return sink, lambda: pa.table(DeltaTable(sink.table).to_pyarrow_table()), say


def in_iceberg(folder: Path, partition_by: tuple[str, ...], upserts: bool) -> Made:
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

    return sink, read, lambda what: None


PROPERTIES = ["delta.appendOnly", "RowTracking", "DomainMetadata", "ChangeDataFeed"]


@st.composite
def keys(draw: st.DrawFn, count: int) -> pa.Array:
    """What may name rows: numbers that differ, or any values, of which some are one key."""
    kind = draw(kinds() | st.just(Kind(pa.float64(), st.sampled_from([0.0, -0.0, math.nan, 1.5]))))
    if draw(st.booleans()):
        return pa.array(range(count), pa.int32())
    values = draw(st.lists(st.none() | kind.values, min_size=1, max_size=count))
    return pa.array([draw(st.sampled_from(values)) for _ in range(count)], kind.arrow)


def as_grouped(value: object) -> object:
    """A key as the table has it: Spark's GROUP BY has one zero."""
    return 0.0 if isinstance(value, float) and value == 0 else value


@pytest.mark.parametrize("make", [in_delta, in_iceberg])
def test_what_is_accepted_is_published_and_read_back_as_it_was(
    make: Callable[[Path, tuple[str, ...], bool], Made], tmp_path: Path
) -> None:
    @trying(50)
    @given(tables(), st.data(), st.booleans(), st.randoms(use_true_random=False))
    @example((DECIMAL, ("k",)), None, False, None)
    @example((FAR, ()), None, False, None)
    @example((HUGE, ("k",)), None, False, None)
    @example((BYTES, ()), None, False, random.Random(TWO_BYTES))
    def check(
        case: tuple[pa.Table, tuple[str, ...]],
        data: st.DataObject | None,
        upserts: bool,
        chance: random.Random | None,
    ) -> None:
        rows, partition_by = in_utc(case[0]), case[1] if make is in_delta else ()
        rows = rows.append_column("id", data.draw(keys(rows.num_rows)) if data else pa.array([0]))
        rows = in_utc(rows)
        folder = tmp_path / f"{next(_numbers)}"
        sink, read, say = make(folder, partition_by, upserts)
        pipeline = SinkPipeline(sink, f"file://{folder}-store/flights/")
        with refused_is_no_example():
            if chance and chance.random() < 0.7:
                # It makes the table, which takes less.
                sink.check(pa.schema([stricter(field, chance) for field in rows.schema]))
                if chance.random() < 0.3:
                    say(chance.choice(PROPERTIES))
            epoch = pipeline.accepted(1, rows)
            committer = pipeline.recover()
        with contextlib.closing(committer):
            committer.commit(epoch)
            if upserts and chance and chance.random() < 0.5:
                # Its keys are there by now.
                committer.commit(attrs.evolve(epoch, record=attrs.evolve(epoch.record, id=2)))
        names = [*rows.column_names[:-1], "id"]
        if upserts:
            last = {repr(same(as_grouped(key))): at for at, key in enumerate(rows["id"].to_pylist())}
            rows = rows.take(sorted(last.values()))
            keys_there = pa.array(map(as_grouped, rows["id"].to_pylist()), rows.schema.field("id").type)
            rows = rows.set_column(len(names) - 1, "id", keys_there)
        assert rows_of(read().select(names), partition_by) == rows_of(rows, partition_by)

    check()


def stricter(field: pa.Field, chance: random.Random) -> pa.Field:
    """A field of a table that takes no more than another one, but for numbers."""
    type_ = wider(field.type)
    if pa.types.is_binary(type_) and chance.random() < 0.8:
        type_ = pa.binary(2)
    if pa.types.is_list(type_):
        type_ = pa.list_(stricter(type_.value_field, chance))
    elif pa.types.is_struct(type_):
        type_ = pa.struct([stricter(part, chance) for part in type_])
    elif pa.types.is_map(type_):
        type_ = pa.map_(type_.key_type, stricter(type_.item_field, chance))
    return pa.field(field.name, type_, field.nullable and chance.random() < 0.6)


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
