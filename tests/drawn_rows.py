"""Rows of any type that Spark has, also nested, with odd names and values, for tests of what writes rows."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Collection, Iterator
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa
from hypothesis import reject
from hypothesis import strategies as st

from chandy.coordinator.sinks.two_phase.errors import OutputError

UTC = datetime.UTC
NAMES = ["k", "Column", 'odd "%s" ,name', "select", "é", " blank "]


@attrs.frozen
class Kind:
    """A type of rows, with values."""

    arrow: pa.DataType
    values: st.SearchStrategy[Any]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["", " ", " a ", "a\nb", "\r\n", "\t", "\\N", 'q"\\,{}', "null", "NaN", "é\U0001f600", "#x", "a=b/c%"]
)
FAR_DAYS = st.sampled_from([-800_000, 4_000_000])
FAR_MOMENTS = st.sampled_from([-(10**17), 3 * 10**17])
"""Outside the years 1 to 9999."""
LEAVES = [
    *(
        Kind(arrow, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for bits, arrow in {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.items()
    ),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.float64(), st.floats()),
    Kind(
        pa.decimal128(10, 3),
        st.decimals("-9999999.999", "9999999.999", places=3) | st.just(Decimal("-0.750")),
    ),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.string(), TEXTS),
    Kind(pa.binary(), st.binary(max_size=5)),
    Kind(pa.date32(), st.dates() | FAR_DAYS),
    Kind(pa.timestamp("us"), st.datetimes() | FAR_MOMENTS),
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
    """Rows of any types, and the columns to partition by."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(1, 4))
    rows = {}
    for name in names:
        kind = draw(kinds())
        values = draw(st.lists(st.none() | kind.values, min_size=count, max_size=count))
        rows[name] = pa.array(values, kind.arrow)
    partition_by = tuple(draw(st.lists(st.sampled_from(names), max_size=1)))
    return pa.table(rows), partition_by


@contextlib.contextmanager
def refused_is_no_example() -> Iterator[None]:
    """Count no example where a sink refuses the rows in time, so that a test publishes as many as it says."""
    try:
        yield
    except OutputError:
        reject()


def same(value: Any) -> Any:
    """A value as it is compared."""
    if isinstance(value, dict):
        return {name: same(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [same(one) for one in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def rows_of(table: pa.Table, empty_is_null: Collection[str]) -> list[str]:
    """Rows in an order of their own. Columns in which a format has empty texts as nulls are told."""
    found = [
        {name: None if name in empty_is_null and value == "" else same(value) for name, value in row.items()}
        for row in table.to_pylist()
    ]
    return sorted(repr(sorted(row.items())) for row in found)
