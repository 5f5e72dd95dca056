"""Rows survive their bytes, one by one and as columns alike, and only rows that fit their schema get that far."""

import datetime
import decimal
import struct
from collections import namedtuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from chandy.state.errors import DefinitionError, StateTypeError
from chandy.state.format.arrow import BYTES
from chandy.state.format.packing import Packing, expiries, expiry_of
from chandy.state.format.schema import arrow_struct
from chandy.state.format.values import StateName

from ...effort import examples
from ..schemas import LEAVES, arrow_ready, schemas_with_rows

NAME = StateName("delays", "totals")


def misfit(field):
    where = f"field {field!r} of " if field else ""
    return f"a value does not fit {where}state 'totals' of operator 'delays'"


TOTALS = (
    StructType().add("count", LongType(), nullable=False).add("total", DoubleType()).add("small", ByteType())
)

NULLS = st.lists(st.booleans(), min_size=5, max_size=5)
EXPIRIES = st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5)


def columns(schema, rows):
    """Rows, or None for a row that is not there, as Arrow columns."""
    values = [None if row is None else arrow_ready(row, schema) for row in rows]
    return pa.array(values, arrow_struct(schema))


@settings(deadline=None)
@given(schemas_with_rows(), st.none() | st.integers(-(2**63), 2**63 - 1))
def test_a_row_of_any_schema_survives_its_bytes(case, expiry):
    schema, rows = case
    packing = Packing([schema], NAME)
    for row in rows:
        data = packing.pack_row(row, expiry)
        unpacked = packing.unpack_row(data)
        assert unpacked == row
        assert type(unpacked) is tuple
        assert expiry_of(data) == expiry


@settings(deadline=None)
@given(schemas_with_rows(), st.none() | st.integers(0, 2**63 - 1))
def test_the_way_for_known_types_gives_the_same_bytes_as_the_way_that_checks_each_item(case, expiry):
    schema, rows = case
    packing = Packing([schema], NAME)
    for row in rows:
        first = Packing([schema], NAME).pack_row(row, expiry)
        assert packing.pack_row(row, expiry) == packing.pack_row(list(row), expiry) == first
        # A row of a class of its own is checked item by item.
        assert packing.pack_row(namedtuple("Own", schema.names)(*row), expiry) == first


@settings(deadline=None)
@given(schemas_with_rows(min_size=0), NULLS, EXPIRIES, st.integers(0, 2))
def test_columns_and_single_rows_have_the_same_bytes(case, absent, expiries_ms, offset):
    schema, rows = case
    packing = Packing([schema], NAME)
    some = [None if gone else row for row, gone in zip(rows, absent, strict=False)]
    times = [None] * 5 if expiries_ms is None else expiries_ms
    singly = [
        None if row is None else packing.pack_row(row, at) for row, at in zip(some, times, strict=False)
    ]
    # A slice of longer columns.
    longer = columns(schema, [None] * offset + some + [None])
    stretch = longer.slice(offset, len(some))
    column = None if expiries_ms is None else pa.array(times[: len(some)], pa.int64())
    packed = packing.pack(stretch, column)
    assert packed.type == BYTES
    assert packed.to_pylist() == singly
    assert expiries(packed).to_pylist() == [
        None if row is None else at for row, at in zip(some, times, strict=False)
    ]
    unpacked = packing.unpack(pa.array([b"?"] * offset + singly, BYTES).slice(offset))
    unpacked.validate(full=True)
    assert unpacked.type == arrow_struct(schema)
    assert unpacked.equals(columns(schema, some))


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf[0].simpleString())
@settings(deadline=None, max_examples=examples(10))
@given(st.data())
def test_a_slice_of_a_column_without_nulls_has_the_bytes_of_its_own_rows(leaf, data):
    dtype, values = leaf
    schema = StructType().add("x", dtype)
    rows = data.draw(st.lists(st.tuples(values), min_size=4, max_size=4))
    packing = Packing([schema], NAME)
    packed = packing.pack(columns(schema, rows).slice(1, 2))
    assert packed.to_pylist() == [packing.pack_row(row) for row in rows[1:3]]
    assert packing.unpack(packed.slice(1)).equals(columns(schema, rows[2:3]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(), st.floats(width=32)), min_size=1, max_size=5))
def test_nan_and_infinity_are_kept_to_the_bit(rows):
    schema = StructType().add("d", DoubleType()).add("f", FloatType())
    packing = Packing([schema], NAME)
    packed = packing.pack(columns(schema, rows))
    assert packed.to_pylist() == [packing.pack_row(row) for row in rows]
    assert packing.pack(packing.unpack(packed)).equals(packed)
    for data in packed.to_pylist():
        assert packing.pack_row(packing.unpack_row(data)) == data


def test_the_bytes_are_those_of_the_table_in_the_docstring():
    schema = (
        StructType().add("n", LongType()).add("s", StringType()).add("x", ShortType()).add("t", BinaryType())
    )
    packing = Packing([schema, schema], NAME)
    data = packing.pack_row((1, "ab", None, b"c"), 2)
    slots = "0100000000000000" + "02000000" + "0000" + "01000000"
    assert data.hex() == "81" + "0200000000000000" + "04" + slots + b"abc".hex()
    assert packing.pack_row((1, "ab", None, b"c")).hex() == "01" + "04" + slots + b"abc".hex()


def test_columns_of_the_same_kind_are_taken_and_others_refused():
    packing = Packing([TOTALS], NAME)
    wide = pa.array([{"count": 1, "total": 2.0, "small": 3}])
    assert wide.type.field("small").type == pa.int64()
    assert packing.pack(wide).to_pylist() == [packing.pack_row((1, 2.0, 3))]
    texts = Packing([StructType().add("s", StringType())], NAME)
    for other in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        column = pa.array(["a", None], pa.string()).cast(other)
        packed = texts.pack(pa.StructArray.from_arrays([column], ["any name"]))
        assert packed.to_pylist() == [texts.pack_row(("a",)), texts.pack_row((None,))]
    for row, field in (
        ({"count": 1, "total": 2, "small": 3}, "total"),
        ({"count": "1", "total": 2.0, "small": 3}, "count"),
        ({"count": 1, "total": 2.0, "small": 300}, "small"),
        ({"count": None, "total": 2.0, "small": 3}, "count"),
        ({"count": 1, "total": 2.0}, ""),
    ):
        with pytest.raises(StateTypeError) as refused:
            packing.pack(pa.array([row]))
        assert refused.value.what == misfit(field)


@pytest.mark.parametrize("cut", [slice(0, 0), slice(0, 1), slice(0, 8), slice(0, -1)])
def test_bytes_that_are_cut_short_are_refused(cut):
    schema = StructType().add("n", LongType()).add("s", StringType())
    for packing in (Packing([schema], NAME), Packing([StructType().add("n", LongType())], NAME)):
        data = packing.pack_row((1, "ab")[: len(packing.schema.fields)])[cut]
        for unpack in (
            packing.unpack_row,
            lambda data, packing=packing: packing.unpack(pa.array([data], BYTES)),
        ):
            with pytest.raises(StateTypeError, match="packed row"):
                unpack(data)


def test_bytes_of_a_version_that_is_not_known_are_refused():
    schema = StructType().add("n", LongType())
    newer = Packing([schema, schema], NAME).pack_row((1,))
    packing = Packing([schema], NAME)
    with pytest.raises(StateTypeError, match="version 1"):
        packing.unpack_row(newer)
    with pytest.raises(StateTypeError, match="version 1"):
        packing.unpack(pa.array([newer], BYTES))


def test_a_map_may_be_given_as_pairs_as_input_rows_have_it():
    packing = Packing([StructType().add("m", MapType(StringType(), LongType()))], NAME)
    assert packing.pack_row(([("a", 1)],)) == packing.pack_row(({"a": 1},))


def test_a_decimal_has_no_negative_zero():
    packing = Packing([StructType().add("d", DecimalType(5, 2))], NAME)
    assert packing.pack_row((decimal.Decimal("-0.00"),)) == packing.pack_row((decimal.Decimal(0),))


def test_what_pyspark_returns_for_each_type_is_what_comes_back():
    schema = (
        StructType()
        .add("st", StructType().add("p", IntegerType()).add("q", StringType()))
        .add("m", MapType(StringType(), IntegerType()))
        .add("a", ArrayType(IntegerType()))
        .add("f", FloatType())
        .add("dec", DecimalType(20, 3))
        .add("ts", TimestampType())
    )
    packing = Packing([schema], NAME)
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)
    given_value = ((1, "z"), {"k": 1}, (1, 2), 0.1, decimal.Decimal("1.5"), moment)
    assert repr(packing.unpack_row(packing.pack_row(given_value))) == repr(
        (Row(p=1, q="z"), {"k": 1}, [1, 2], 0.10000000149011612, decimal.Decimal("1.500"), moment)
    )


def test_an_aware_timestamp_is_kept_as_its_instant():
    packing = Packing([StructType().add("ts", TimestampType())], NAME)
    moment = datetime.datetime(2020, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
    (back,) = packing.unpack_row(packing.pack_row((moment,)))
    assert back.tzinfo is None
    assert back.timestamp() == moment.timestamp()


@pytest.mark.parametrize("value", [(1, 2.0, 3), [1, 2.0, 3], Row(count=1, total=2.0, small=3)])
def test_tuples_lists_and_rows_are_taken_by_position(value):
    packing = Packing([TOTALS], NAME)
    assert packing.unpack_row(packing.pack_row(value)) == (1, 2.0, 3)


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 3]),
        pd.Series([1, 3]),
        pd.Series([1, 3], index=["total", "count"]),
        pd.array([1, 3], "Int64"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_and_series_are_taken_as_tuples_as_in_pyspark(value):
    packing = Packing([StructType().add("count", LongType()).add("total", LongType())], NAME)
    for _ in range(2):
        assert packing.unpack_row(packing.pack_row(value)) == (1, 3)
    inside = Packing([StructType().add("a", ArrayType(LongType()))], NAME)
    assert inside.unpack_row(inside.pack_row((value,))) == ([1, 3],)


def test_a_row_of_one_string_may_be_given_as_the_string():
    packing = Packing([StructType().add("s", StringType())], NAME)
    for text in ("", "q", "two"):
        assert packing.pack_row(text) == packing.pack_row((text,))


def test_a_number_in_a_string_field_is_told_how_to_get_what_pyspark_makes_of_it():
    packing = Packing([StructType().add("s", StringType())], NAME)
    with pytest.raises(StateTypeError, match=r"expected string, found 1 \(int\); give str\(value\)"):
        packing.pack_row((1,))


def test_numpy_scalars_are_taken_as_the_numbers_they_are():
    packing = Packing([TOTALS], NAME)
    value = (np.int64(1), np.float64(2.5), np.int8(3))
    for _ in range(2):
        assert packing.pack_row(value) == packing.pack_row((1, 2.5, 3))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        ((1, 2, 3), "total", "double"),
        ((1.5, 2.0, 3), "count", "bigint"),
        ((True, 2.0, 3), "count", "bigint"),
        ((1, 2.0, 128), "small", "tinyint"),
        ((1 << 63, 2.0, 1), "count", "bigint"),
        ((None, 2.0, 3), "count", "bigint that is not null"),
        (("1", 2.0, 3), "count", "bigint"),
        ((1, 2.0), "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        (None, "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        ("abc", "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        ({"count": 1}, "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        (np.array([1.0, 2.0]), "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        (np.float64(1), "", "a tuple of 3 (count bigint, total double, small tinyint)"),
        (np.array([[1, 2, 3]] * 3), "count", "bigint"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field(value, field, expected, warm):
    packing = Packing([TOTALS], NAME)
    if warm:
        packing.pack_row((1, 2.0, 3))
    with pytest.raises(StateTypeError) as refused:
        packing.pack_row(value)
    assert (refused.value.what, refused.value.expected) == (misfit(field), expected)


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"n": 1}, "a struct without 't': {'n': 1} (dict)"),
        ({"n": 1, "t": 2, "z": 3}, "a struct with 'z': {'n': 1, 't': 2, 'z': 3} (dict)"),
    ],
)
def test_a_struct_that_is_given_by_name_has_exactly_its_fields(value, wrong):
    struct = StructType().add("n", LongType()).add("t", LongType())
    packing = Packing([StructType().add("x", ArrayType(struct))], NAME)
    with pytest.raises(StateTypeError) as refused:
        packing.pack_row(([{"n": 1, "t": 2}, value],))
    error = refused.value
    assert (error.what, error.expected, error.found) == (
        misfit("x[]"),
        "a value or None for each of n, t",
        wrong,
    )


@pytest.mark.parametrize(
    ("dtype", "value", "field"),
    [
        (StringType(), 5, "x"),
        (StringType(), "\ud800", "x"),
        (BinaryType(), "text", "x"),
        (DecimalType(5, 2), 1.5, "x"),
        (DecimalType(5, 2), decimal.Decimal(1000), "x"),
        (DecimalType(5, 2), decimal.Decimal("NaN"), "x"),
        (DateType(), datetime.datetime(2020, 1, 1), "x"),
        (TimestampType(), datetime.date(2020, 1, 1), "x"),
        (TimestampNTZType(), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), "x"),
        (ArrayType(LongType()), "text", "x"),
        (ArrayType(LongType()), [1, "2"], "x[]"),
        (ArrayType(LongType(), containsNull=False), [None], "x[]"),
        (MapType(StringType(), LongType()), {None: 1}, "x.key"),
        (MapType(StringType(), LongType()), {"a": "b"}, "x.value"),
        (StructType().add("in", LongType()), (1, 2), "x"),
        (StructType().add("in", LongType()), ("1",), "x.in"),
        (StructType().add("in", LongType()), {"out": 1}, "x"),
    ],
)
def test_a_misfit_inside_a_type_is_named_by_its_path(dtype, value, field):
    packing = Packing([StructType().add("x", dtype)], NAME)
    for _ in range(2):
        with pytest.raises(StateTypeError) as refused:
            packing.pack_row((value,))
        assert refused.value.what == misfit(field)


def test_a_string_that_is_not_utf8_is_refused_after_others_have_passed():
    packing = Packing([StructType().add("x", StringType())], NAME)
    packing.pack_row(("fine",))
    with pytest.raises(StateTypeError):
        packing.pack_row(("\ud800",))


@pytest.mark.parametrize("dtype", [VariantType(), MapType(ArrayType(LongType()), LongType())])
def test_a_type_that_a_state_cannot_hold_is_refused_when_it_is_declared(dtype):
    with pytest.raises(DefinitionError, match="state 'totals' of operator 'delays' has a type"):
        Packing([StructType().add("x", dtype)], NAME)


def test_a_float_keeps_the_precision_that_spark_keeps():
    packing = Packing([StructType().add("x", FloatType())], NAME)
    assert packing.unpack_row(packing.pack_row((0.1,))) == struct.unpack("f", struct.pack("f", 0.1))
    assert packing.unpack_row(packing.pack_row((1e300,))) == (float("inf"),)
