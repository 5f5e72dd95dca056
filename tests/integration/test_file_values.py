"""What ``FilesSink`` accepts as files of a format, Spark reads back as it was; all else is refused before."""

from __future__ import annotations

import datetime
import itertools
import math
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from chandy.coordinator.connectors.files.formats import WRITERS, in_partitions, unwritable, unwritten
from chandy.coordinator.connectors.values import far_year
from chandy.coordinator.sinks.two_phase.staged import in_utc

from ..effort import examples

pytestmark = pytest.mark.spark

UTC = datetime.UTC
ZONES = ["UTC", "America/New_York", "Asia/Kathmandu"]
NAMES = ["k", "Column", 'odd "%s" ,name', "select", "é", " blank "]
AS_DOCUMENTED = {"escape": '"', "header": "true", "multiLine": "true"}
"""How the sink's documentation says that Spark reads its CSV."""
_numbers = itertools.count()


@attrs.frozen
class Kind:
    """A type of rows, with values."""

    arrow: pa.DataType
    values: st.SearchStrategy[Any]


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.sampled_from(
    ["", " ", " a ", "a\nb", "\r\n", "\t", "\\N", 'q"\\,{}', "null", "NaN", "é\U0001f600", "#x", "a=b/c%"]
)
LEAVES = [
    *(
        Kind(arrow, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for bits, arrow in {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.items()
    ),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.float64(), st.floats()),
    Kind(pa.decimal128(10, 3), st.decimals("-9999999.999", "9999999.999", places=3)),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.string(), TEXTS),
    Kind(pa.binary(), st.binary(max_size=5)),
    Kind(pa.date32(), st.dates() | st.just(4_000_000)),
    Kind(pa.timestamp("us"), st.datetimes() | st.just(3 * 10**17)),
    Kind(
        pa.timestamp("us", "America/New_York"),
        st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29)).map(
            lambda at: at.replace(tzinfo=UTC)
        ),
    ),
]
KEYS = [kind for kind in LEAVES if kind.arrow in (pa.string(), pa.int32(), pa.bool_(), pa.date32())]


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """A type, nested or not."""
    leaf, shape = (
        draw(st.sampled_from(LEAVES)),
        draw(st.sampled_from(["leaf", "leaf", "list", "struct", "map"])),
    )
    if shape == "list":
        return Kind(pa.list_(leaf.arrow), st.lists(st.none() | leaf.values, max_size=3))
    if shape == "struct":
        other = draw(st.sampled_from(LEAVES))
        fields = {"a": st.none() | leaf.values, "b.c": st.none() | other.values}
        return Kind(pa.struct([("a", leaf.arrow), ("b.c", other.arrow)]), st.fixed_dictionaries(fields))
    if shape == "map":
        key = draw(st.sampled_from(KEYS))
        items = st.dictionaries(key.values, st.none() | leaf.values, max_size=3)
        return Kind(pa.map_(key.arrow, leaf.arrow), items.map(lambda found: list(found.items())))
    return leaf


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, tuple[str, ...]]:
    """Rows, and the columns to partition by."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(1, 4))
    rows = {}
    for name in names:
        kind = draw(kinds())
        values = draw(st.lists(st.none() | kind.values, min_size=count, max_size=count))
        rows[name] = pa.array(values, kind.arrow)
    partition_by = tuple(draw(st.lists(st.sampled_from(names), max_size=1)))
    return pa.table(rows), partition_by


def same(value: Any) -> Any:
    """A value as it is compared."""
    if isinstance(value, dict):
        return {name: same(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [same(one) for one in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def rows_of(table: pa.Table, partition_by: tuple[str, ...]) -> list[str]:
    """Rows in an order of their own, with empty texts that name a partition as Hive has them: null."""
    found = [
        {name: None if name in partition_by and value == "" else same(value) for name, value in row.items()}
        for row in table.to_pylist()
    ]
    return sorted(repr(sorted(row.items())) for row in found)


def read(spark: SparkSession, folder: Path, format: str, schema: pa.Schema) -> pa.Table:
    reader = spark.read.schema(from_arrow_schema(schema)).option("mode", "FAILFAST")
    if format == "csv":
        reader = reader.options(**AS_DOCUMENTED)
    return reader.format(format).load(str(folder)).toArrow()


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_what_is_accepted_is_read_back_as_it_was(format: str, spark: SparkSession, tmp_path: Path) -> None:
    published: list[int] = []

    @settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
    @given(tables(), st.sampled_from(ZONES))
    def check(case: tuple[pa.Table, tuple[str, ...]], zone: str) -> None:
        rows, partition_by = in_utc(case[0]), case[1]
        if unwritable(rows.schema, format, partition_by) or unwritten(rows, format, partition_by):
            return
        if far_year(rows, rows.column_names):
            # Python has no such years, so they cannot be compared.
            return
        published.append(rows.num_rows)
        folder = tmp_path / f"{next(_numbers)}"
        for place, some in in_partitions(rows, partition_by):
            file = folder / place / f"part.{format}"
            file.parent.mkdir(parents=True)
            file.write_bytes(WRITERS[format](some))
        spark.conf.set("spark.sql.session.timeZone", zone)
        found = read(spark, folder, format, rows.schema).select(rows.column_names)
        assert rows_of(found, partition_by) == rows_of(rows, partition_by)

    try:
        check()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert len(published) > 5
