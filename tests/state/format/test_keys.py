"""Keys have one canonical byte string each."""

import datetime
import decimal
import time
from operator import add
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from chandy.state.errors import DefinitionError, StateTypeError
from chandy.state.format.keys import KeyCodec
from chandy.state.pyspark_versions import arrow_type

from ...effort import trying

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
_leaves: list[tuple[types.DataType, st.SearchStrategy]] = [
    (types.BooleanType(), st.booleans()),
    (types.ByteType(), st.integers(-(2**7), 2**7 - 1)),
    (types.LongType(), st.integers(-(2**63), 2**63 - 1)),
    (types.FloatType(), st.floats(width=32)),
    (types.DoubleType(), st.floats() | st.sampled_from([0.0, -0.0, float("nan")])),
    (types.StringType(), _text),
    (types.BinaryType(), st.binary(max_size=3)),
    (types.DecimalType(38, 18), st.decimals(-(10**19), 10**19, places=18)),
    (types.DecimalType(5, 2), st.decimals(-999, 999, places=2)),
    (types.DateType(), st.dates()),
    (types.TimestampType(), st.datetimes(timezones=st.just(datetime.UTC))),
    (types.TimestampNTZType(), st.datetimes()),
    (types.DayTimeIntervalType(), st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))),
    (types.NullType(), st.none()),
]


@st.composite
def typed(draw, depth=2):
    """A type that Spark groups by, and a strategy for its values as Arrow gives them."""
    kind = draw(st.integers(0, 4 if depth else 2))
    if kind <= 2:
        return draw(st.sampled_from(_leaves))
    if kind == 3:
        element, values = draw(typed(depth=depth - 1))
        return types.ArrayType(element), st.lists(st.none() | values, max_size=2)
    fields = draw(st.lists(typed(depth=depth - 1), min_size=1, max_size=2))
    schema = types.StructType([types.StructField(f"f{at}", dtype) for at, (dtype, _) in enumerate(fields)])
    return schema, st.fixed_dictionaries(
        {f"f{at}": st.none() | values for at, (_, values) in enumerate(fields)}
    )


@st.composite
def schemas_with_keys(draw):
    fields = draw(st.lists(typed(), min_size=1, max_size=3))
    schema = types.StructType([types.StructField(f"c{at}", dtype) for at, (dtype, _) in enumerate(fields)])
    keys = st.tuples(*(st.none() | values for _, values in fields))
    drawn = draw(st.lists(keys, min_size=1, max_size=6))
    # Equal keys are rare among drawn ones.
    return schema, [*drawn, draw(st.sampled_from(drawn))]


def identity(value):
    """What tells a value from others in GROUP BY, as a hashable that is not made with the code under test."""
    if isinstance(value, float):
        return "nan" if value != value else ("float", value)
    if isinstance(value, dict):
        return ("struct", *((name, identity(item)) for name, item in sorted(value.items())))
    if isinstance(value, list | tuple):
        return ("array", *map(identity, value))
    return (type(value).__name__, value)


@settings(deadline=None)
@given(schemas_with_keys())
def test_two_keys_have_the_same_bytes_exactly_if_they_are_equal(case):
    schema, keys = case
    codec = KeyCodec(schema)
    pairs = {(identity(key), codec.encode(key)) for key in keys}
    assert len(pairs) == len({key for key, _ in pairs}) == len({data for _, data in pairs})


@settings(deadline=None)
@given(schemas_with_keys())
def test_columns_and_single_keys_have_the_same_bytes(case):
    schema, keys = case
    codec = KeyCodec(schema)
    columns = [
        pa.array(column, arrow_type(field.dataType, "UTC"))
        for field, column in zip(schema.fields, zip(*keys, strict=True), strict=True)
    ]
    assert codec.encode_columns(columns).to_pylist() == [codec.encode(key) for key in keys]


@settings(deadline=None)
@given(schemas_with_keys())
def test_bytes_decode_to_the_key(case):
    schema, keys = case
    codec = KeyCodec(schema)
    for key in keys:
        decoded = codec.decode(codec.encode(key))
        assert identity(decoded) == identity(key)
        assert codec.encode(decoded) == codec.encode(key)


@settings(deadline=None)
@given(st.lists(st.tuples(_text, _text), min_size=2, max_size=2, unique=True))
def test_where_one_column_ends_and_the_next_begins_tells_keys_apart(keys):
    codec = KeyCodec(types.StructType().add("a", types.StringType()).add("b", types.StringType()))
    assert codec.encode(keys[0]) != codec.encode(keys[1])


def test_the_two_zeros_are_one_key_and_all_nans_are_one_key():
    codec = KeyCodec(types.StructType().add("x", types.DoubleType()))
    bits = pa.array([0, -(2**63), 0x7FF8000000000000, 0x7FF8000000000001, -1], pa.int64())
    zero, minus_zero, *nans = codec.encode_columns([bits.view(pa.float64())]).to_pylist()
    assert zero == minus_zero
    assert len({*nans, codec.encode((float("nan"),))}) == 1


def test_a_timestamp_is_the_same_key_in_every_time_zone_and_two_keys_in_an_hour_that_comes_twice():
    codec = KeyCodec(types.StructType().add("ts", types.TimestampType()))
    berlin = ZoneInfo("Europe/Berlin")
    twice = datetime.datetime(2020, 10, 25, 2, 30, tzinfo=berlin)
    first, second = twice, twice.replace(fold=1)
    assert codec.encode((first,)) == codec.encode((first.astimezone(datetime.UTC),))
    assert codec.encode((first,)) != codec.encode((second,))
    column = pa.array([first, second], pa.timestamp("us", "Europe/Berlin"))
    assert codec.encode_columns([column]).to_pylist() == [codec.encode((first,)), codec.encode((second,))]


@pytest.fixture
def local(monkeypatch):
    """Sets the local time zone."""

    def become(zone):
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield become
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "end"),
    [("America/New_York", 1699164000), ("Europe/Berlin", 1603587600), ("Australia/Lord_Howe", 1680359400)],
)
@trying(15)
@given(st.data())
def test_a_local_time_is_its_instant_whatever_was_encoded_before(local, zone, end, data):
    local(zone)
    codec = KeyCodec(types.StructType().add("ts", types.TimestampType()))
    # Within two hours of the end of summer time, or half a year away.
    near = st.integers(-7200_000_000, 7200_000_000)
    micros = st.builds(add, st.sampled_from([0, 0, 15_552_000_000_000]), near)
    for at in data.draw(st.lists(micros, min_size=1, max_size=6)):
        moment = EPOCH + datetime.timedelta(seconds=end, microseconds=at)
        # As PySpark's ``collect`` does it.
        naive = datetime.datetime.fromtimestamp(end + at // 1_000_000).replace(microsecond=at % 1_000_000)
        assert codec.decode(codec.encode((naive,))) == (moment,)


def test_the_first_and_the_last_local_time_can_be_encoded(local):
    codec = KeyCodec(types.StructType().add("ts", types.TimestampType()))
    for zone in ("Asia/Tokyo", "America/New_York"):
        local(zone)
        keys = {codec.encode((naive,)) for naive in (datetime.datetime.min, datetime.datetime.max)}
        assert len(keys) == 2


def test_a_decimal_of_38_digits_keeps_them_all():
    codec = KeyCodec(types.StructType().add("x", types.DecimalType(38, 10)))
    low, high = (decimal.Decimal(f"{'9' * 28}.999999999{last}") for last in "89")
    assert codec.encode((low,)) != codec.encode((high,))
    assert codec.decode(codec.encode((high,))) == (high,)


def test_a_key_may_be_given_as_pyspark_shows_it():
    schema = (
        types.StructType()
        .add("x", types.DoubleType())
        .add("d", types.DecimalType(5, 2))
        .add("ts", types.TimestampType())
        .add("s", types.StructType().add("y", types.FloatType()).add("z", types.StringType()))
    )
    codec = KeyCodec(schema)
    aware = datetime.datetime(2020, 7, 1, 12, tzinfo=datetime.UTC)
    expected = codec.encode((2.0, decimal.Decimal("1.50"), aware, {"y": 0.0, "z": "a"}))
    naive = aware.astimezone().replace(tzinfo=None)
    assert codec.encode((2, decimal.Decimal("1.5"), naive, types.Row(y=-0.0, z="a"))) == expected
    assert codec.encode([2, decimal.Decimal("1.5"), naive, (0.0, "a")]) == expected
    assert codec.encode((2, 1, naive, (0.0, "a"))) == codec.encode(
        (2.0, decimal.Decimal(1), aware, (0.0, "a"))
    )


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("ab", ""),
        (("a",), ""),
        (("a", "1", decimal.Decimal(1)), "b"),
        (("a", (1 << 53) + 1, decimal.Decimal(1)), "b"),
        (("a", 1.5, decimal.Decimal("1.005")), "c"),
        (("a", 1.5, decimal.Decimal("NaN")), "c"),
        ((b"a", 1.5, decimal.Decimal(1)), "a"),
    ],
)
def test_a_key_that_its_columns_cannot_have_is_refused_by_column(key, column):
    codec = KeyCodec(
        types.StructType()
        .add("a", types.StringType())
        .add("b", types.DoubleType())
        .add("c", types.DecimalType(5, 2))
    )
    with pytest.raises(StateTypeError) as refused:
        codec.encode(key)
    assert refused.value.what.endswith(f" key column {column!r}" if column else " the key")


@settings(deadline=None)
@given(schemas_with_keys())
def test_keys_come_back_as_columns_too(case):
    schema, keys = case
    codec = KeyCodec(schema)
    table = codec.decode_columns(pa.array([codec.encode(key) for key in keys], pa.large_binary()))
    assert table.column_names == schema.names
    assert [identity(tuple(row.values())) for row in table.to_pylist()] == [identity(key) for key in keys]


def test_whether_a_column_can_have_nulls_does_not_change_its_keys():
    strict = KeyCodec(types.StructType().add("x", types.LongType(), nullable=False))
    for key in ((1,), (None,)):
        assert strict.encode(key) == KeyCodec(types.StructType().add("x", types.LongType())).encode(key)


@pytest.mark.parametrize(
    "dtype",
    [
        types.MapType(types.StringType(), types.LongType()),
        types.ArrayType(types.MapType(types.StringType(), types.LongType())),
        types.StructType().add("m", types.MapType(types.StringType(), types.LongType())),
        types.VariantType(),
        types.CalendarIntervalType(),
        types.YearMonthIntervalType(),
        types.StringType("UTF8_LCASE"),
    ],
)
def test_a_type_that_rows_cannot_be_grouped_by_is_refused(dtype):
    with pytest.raises(DefinitionError) as refused:
        KeyCodec(types.StructType().add("fine", types.IntegerType()).add("bad", dtype))
    assert "key column 'bad" in refused.value.what
