"""State values survive their bytes, and only values that fit their schema get that far."""

import datetime
import decimal
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from chandy.state.errors import StateTypeError, UnsupportedStateError
from chandy.state.values import StateName, ValueCodec

NAME = StateName("delays", "totals")
TOTALS = (
    StructType().add("count", LongType(), nullable=False).add("total", DoubleType()).add("small", ByteType())
)

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
# Far from the ends of Python's calendar and from hours that a time zone skips or has twice.
_moments = st.datetimes(datetime.datetime(1980, 1, 1), datetime.datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(hour=12)
)
_leaves: list[tuple[DataType, st.SearchStrategy]] = [
    (BooleanType(), st.booleans()),
    (ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (ShortType(), st.integers(-(2**15), 2**15 - 1)),
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (FloatType(), st.floats(width=32, allow_nan=False)),
    (DoubleType(), st.floats(allow_nan=False)),
    (StringType(), _text),
    (BinaryType(), st.binary(max_size=5)),
    (DecimalType(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (DecimalType(38, 0), st.decimals(-(10**37), 10**37, places=0)),
    (DateType(), st.dates()),
    (TimestampType(), _moments),
    (TimestampNTZType(), st.datetimes()),
    (DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))),
]


@st.composite
def typed(draw, depth=2):
    """A Spark type and a strategy for its values, as PySpark returns them from a state."""
    kind = draw(st.integers(0, 5 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from(_leaves))
    if kind == 3:
        element, values = draw(typed(depth=depth - 1))
        return ArrayType(element), st.lists(st.none() | values, max_size=3)
    if kind == 4:
        key, keys = draw(st.sampled_from(_leaves))
        value, values = draw(typed(depth=depth - 1))
        return MapType(key, value), st.dictionaries(keys, st.none() | values, max_size=3)
    fields = draw(st.lists(typed(depth=depth - 1), min_size=1, max_size=3))
    names = [f"f{position}" for position in range(len(fields))]
    schema = StructType([StructField(name, dtype) for name, (dtype, _) in zip(names, fields, strict=True)])
    row = Row(*names)
    return schema, st.tuples(*(st.none() | values for _, values in fields)).map(lambda items: row(*items))


@st.composite
def schemas_with_values(draw):
    fields = draw(st.lists(typed(), min_size=1, max_size=4))
    schema = StructType([StructField(f"c{at}", dtype) for at, (dtype, _) in enumerate(fields)])
    values = st.tuples(*(st.none() | value for _, value in fields))
    return schema, draw(st.lists(values, min_size=1, max_size=4))


@settings(deadline=None)
@given(schemas_with_values())
def test_a_value_of_any_schema_survives_its_bytes(case):
    schema, values = case
    codec = ValueCodec(schema, NAME)
    for value in values:
        decoded = codec.decode(codec.encode(value))
        assert decoded == value
        assert type(decoded) is tuple


@settings(deadline=None)
@given(schemas_with_values())
def test_the_way_for_known_types_gives_the_same_bytes_as_the_way_that_checks_each_field(case):
    schema, values = case
    codec = ValueCodec(schema, NAME)
    for value in values:
        first = codec.encode(value)
        assert codec.encode(value) == first == ValueCodec(schema, NAME).encode(value)


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
    codec = ValueCodec(schema, NAME)
    moment = datetime.datetime(2020, 1, 2, 3, 4, 5, 6)
    given_value = ((1, "z"), {"k": 1}, (1, 2), 0.1, decimal.Decimal("1.5"), moment)
    assert repr(codec.decode(codec.encode(given_value))) == repr(
        (Row(p=1, q="z"), {"k": 1}, [1, 2], 0.10000000149011612, decimal.Decimal("1.500"), moment)
    )


def test_an_aware_timestamp_is_kept_as_its_instant():
    codec = ValueCodec(StructType().add("ts", TimestampType()), NAME)
    moment = datetime.datetime(2020, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5)))
    (back,) = codec.decode(codec.encode((moment,)))
    assert back.tzinfo is None
    assert back.timestamp() == moment.timestamp()


@pytest.mark.parametrize("value", [(1, 2.0, 3), [1, 2.0, 3], Row(count=1, total=2.0, small=3)])
def test_tuples_lists_and_rows_are_taken_by_position(value):
    codec = ValueCodec(TOTALS, NAME)
    assert codec.decode(codec.encode(value)) == (1, 2.0, 3)


def test_numpy_scalars_are_taken_as_the_numbers_they_are():
    codec = ValueCodec(TOTALS, NAME)
    value = (np.int64(1), np.float64(2.5), np.int8(3))
    for _ in range(2):
        assert codec.encode(value) == codec.encode((1, 2.5, 3))


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
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_field(value, field, expected, warm):
    codec = ValueCodec(TOTALS, NAME)
    if warm:
        codec.encode((1, 2.0, 3))
    with pytest.raises(StateTypeError) as refused:
        codec.encode(value)
    error = refused.value
    assert (error.operator, error.state, error.field, error.expected) == ("delays", "totals", field, expected)
    assert "state 'totals' of operator 'delays'" in str(error)


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
    codec = ValueCodec(StructType().add("x", dtype), NAME)
    for _ in range(2):
        with pytest.raises(StateTypeError) as refused:
            codec.encode((value,))
        assert refused.value.field == field


def test_a_string_that_is_not_utf8_is_refused_after_others_have_passed():
    codec = ValueCodec(StructType().add("x", StringType()), NAME)
    codec.encode(("fine",))
    with pytest.raises(StateTypeError):
        codec.encode(("\ud800",))


def test_bytes_of_another_schema_are_refused():
    two = ValueCodec(StructType().add("a", LongType()).add("b", LongType()), NAME)
    one = ValueCodec(StructType().add("a", LongType()), NAME)
    with pytest.raises(StateTypeError, match="another schema"):
        two.decode(one.encode((1,)))


@pytest.mark.parametrize("dtype", [VariantType(), MapType(ArrayType(LongType()), LongType())])
def test_a_type_that_a_state_cannot_hold_is_refused_when_it_is_declared(dtype):
    with pytest.raises(UnsupportedStateError):
        ValueCodec(StructType().add("x", dtype), NAME)


def test_a_float_keeps_the_precision_that_spark_keeps():
    codec = ValueCodec(StructType().add("x", FloatType()), NAME)
    assert codec.decode(codec.encode((0.1,))) == struct.unpack("f", struct.pack("f", 0.1))
    assert codec.decode(codec.encode((1e300,))) == (float("inf"),)
