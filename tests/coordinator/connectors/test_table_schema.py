"""Rows and the tables that take them, by values alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from chandy.coordinator.connectors.tables.schema import fit, misfits
from chandy.coordinator.sinks.two_phase.errors import OutputError

TABLE = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        pa.field("v", pa.large_string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
    ]
)


def test_rows_take_the_order_and_the_types_of_the_table() -> None:
    rows = pa.table({"v": ["a", None], "k": pa.array([1, 2], pa.int16())})
    assert misfits(rows.schema, TABLE) == []
    found = fit(rows, TABLE, "the table")
    assert found.schema == TABLE
    assert found.to_pylist() == [{"k": 1, "v": "a", "at": None}, {"k": 2, "v": None, "at": None}]
    assert fit(rows, TABLE, "the table", fill=False).schema.names == ["k", "v"]


@pytest.mark.parametrize(
    ("rows", "table", "fits"),
    [
        (pa.int32(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint8(), pa.int64(), False),
        (pa.float32(), pa.float64(), True),
        (pa.int32(), pa.float64(), False),
        (pa.string(), pa.large_string(), True),
        (pa.string(), pa.binary(), False),
        (pa.binary(), pa.large_binary(), True),
        (pa.decimal128(5, 2), pa.decimal128(10, 2), True),
        (pa.decimal128(10, 3), pa.decimal128(10, 2), False),
        (pa.timestamp("ns", tz="Europe/Berlin"), pa.timestamp("us", tz="UTC"), True),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), False),
        (pa.list_(pa.int32()), pa.large_list(pa.int64()), True),
        (pa.list_(pa.string()), pa.list_(pa.int64()), False),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64()), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), True),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), False),
    ],
)
def test_a_narrower_type_fits(rows: pa.DataType, table: pa.DataType, fits: bool) -> None:
    assert (misfits(pa.schema([("c", rows)]), pa.schema([("c", table)])) == []) is fits


def test_a_column_that_must_be_filled_is_named_with_a_row_where_it_is_not() -> None:
    first, second = pa.table({"k": [1], "v": ["a"]}), pa.table({"k": [None, None], "v": ["b", "c" * 9_000]})
    rows = pa.concat_tables([first, second.cast(first.schema)])
    where = r"2 rows of 3 where it is, the first {'k': None, 'v': 'b'}"
    with pytest.raises(OutputError, match=rf"the table refuses rows.*column 'k'.*{where}"):
        fit(rows, TABLE, "the table")
    with pytest.raises(OutputError) as caught:
        fit(rows.slice(2), TABLE, "the table")
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("nest", ["struct", "list", "map"])
def test_nothing_is_needed_in_what_is_null_itself(nest: str) -> None:
    def nested(number: pa.DataType, bytes_: pa.DataType, nullable: bool) -> pa.DataType:
        inner = pa.struct([pa.field("n", number, nullable), pa.field("b", bytes_, nullable)])
        elements = pa.list_(pa.field("element", number, nullable))
        outer = pa.struct([pa.field("s", inner, nullable), pa.field("l", elements, nullable)])
        return {"struct": outer, "list": pa.list_(outer), "map": pa.map_(pa.string(), outer)}[nest]

    one, other = {"s": {"n": 1, "b": b"ab"}, "l": [2]}, {"s": {"n": 3, "b": b"cd"}, "l": []}
    values = {
        "struct": [None, one, None, other],
        "list": [[None, one], None, [other], []],
        "map": [[("a", one), ("b", None)], None, []],
    }[nest]
    rows = pa.table({"c": pa.array(values, nested(pa.int32(), pa.binary(), True))})
    wanted = nested(pa.int64(), pa.binary(2), False)
    for some in (rows, rows.slice(1)):
        found = fit(some, pa.schema([("c", wanted)]), "the table")
        found.validate(full=True)
        assert found.schema.field("c").type == wanted
        assert found.to_pylist() == some.to_pylist()


def test_a_value_that_the_type_cannot_have_is_named() -> None:
    rows = pa.table({"k": [1], "at": pa.array([1], pa.timestamp("ns", tz="UTC"))})
    with pytest.raises(OutputError, match="values of column 'at'"):
        fit(rows, TABLE, "the table")
