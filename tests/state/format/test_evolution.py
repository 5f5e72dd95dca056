"""A state's schema may change where every stored value has exactly one new value."""

import decimal

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from chandy.state.errors import StateSchemaError
from chandy.state.format.arrow import BYTES
from chandy.state.format.evolution import MAX_VERSIONS, evolve
from chandy.state.format.packing import Packing
from chandy.state.format.schema import arrow_struct, to_json
from chandy.state.format.values import StateName
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

from ..schemas import arrow_ready, schemas_with_rows

NAME = StateName("delays", "totals")
WIDER: list[tuple[types.DataType, types.DataType]] = [
    (types.ByteType(), types.ShortType()),
    (types.ByteType(), types.DoubleType()),
    (types.ShortType(), types.LongType()),
    (types.IntegerType(), types.LongType()),
    (types.IntegerType(), types.DoubleType()),
    (types.FloatType(), types.DoubleType()),
    (types.DecimalType(20, 3), types.DecimalType(38, 3)),
    (types.CharType(5), types.StringType()),
    (types.VarcharType(5), types.VarcharType(6)),
    (types.NullType(), types.ArrayType(types.LongType())),
]
REFUSED: list[tuple[types.DataType, types.DataType]] = [
    (types.LongType(), types.IntegerType()),
    (types.LongType(), types.DoubleType()),
    (types.DoubleType(), types.FloatType()),
    (types.ShortType(), types.FloatType()),
    (types.BooleanType(), types.ByteType()),
    (types.DecimalType(20, 3), types.DecimalType(19, 3)),
    (types.DecimalType(20, 3), types.DecimalType(30, 4)),
    (types.StringType(), types.VarcharType(9)),
    (types.VarcharType(6), types.VarcharType(5)),
    (types.DateType(), types.TimestampNTZType()),
    (types.TimestampType(), types.TimestampNTZType()),
    (types.LongType(), types.StringType()),
    (types.StructType().add("a", types.LongType()), types.LongType()),
    (types.ArrayType(types.LongType()), types.LongType()),
    (types.LongType(), types.NullType()),
]


def record(schema, **more):
    return StateRecord((to_json(schema),), **more)


def one(dtype, nullable=True):
    return types.StructType().add("x", dtype, nullable)


def wrapped(dtype):
    """The type by itself and inside of others."""
    return [
        one(dtype),
        one(types.ArrayType(dtype)),
        one(types.MapType(types.StringType(), dtype)),
        one(types.StructType().add("y", types.ArrayType(types.StructType().add("z", dtype)))),
    ]


@pytest.mark.parametrize(("was", "now"), WIDER, ids=str)
def test_a_wider_type_is_taken_at_every_depth(was, now):
    for old, new in zip(wrapped(was), wrapped(now), strict=True):
        assert evolve(record(old), record(new), "o", "s").versions == (to_json(old), to_json(new))


@pytest.mark.parametrize(("was", "now"), REFUSED, ids=str)
def test_another_type_is_refused_at_every_depth(was, now):
    for old, new in zip(wrapped(was), wrapped(now), strict=True):
        with pytest.raises(StateSchemaError, match="field 'x") as refused:
            evolve(record(old), record(new), "o", "s")
        assert refused.value.what.startswith("state 's' of operator 'o' ")
        # Both schemas are named.
        for schema in (old, new):
            assert schema.fields[0].dataType.simpleString() in str(refused.value)


@pytest.mark.parametrize(
    ("was", "now", "field"),
    [
        (one(types.LongType()), one(types.LongType(), nullable=False), "x"),
        (one(types.LongType()), one(types.LongType()).add("new", types.LongType(), nullable=False), "new"),
        (one(types.LongType()).add("gone", types.LongType()), one(types.LongType()), "gone"),
        (
            one(types.StructType().add("a", types.LongType()).add("b", types.LongType())),
            one(types.StructType().add("a", types.LongType())),
            "x.b",
        ),
        (
            one(types.ArrayType(types.LongType())),
            one(types.ArrayType(types.LongType(), containsNull=False)),
            "x[]",
        ),
        (one(types.NullType()), one(types.LongType(), nullable=False), "x"),
    ],
)
def test_what_would_lose_or_lack_values_is_refused_by_field(was, now, field):
    with pytest.raises(StateSchemaError) as refused:
        evolve(record(was), record(now), "o", "s")
    assert f"field {field!r}" in refused.value.what


def test_kind_and_map_keys_do_not_change_and_a_time_to_live_does():
    schema = one(types.LongType())
    was = record(schema, kind=StateKind.MAP, map_key=to_json(one(types.StringType())))
    for now in (
        record(schema),
        attrs.evolve(was, map_key=to_json(one(types.LongType()))),
        attrs.evolve(was, kind=StateKind.LIST, map_key=None),
    ):
        with pytest.raises(StateSchemaError):
            evolve(was, now, "o", "s")
    expiring = attrs.evolve(was, ttl_ms=5)
    assert evolve(was, expiring, "o", "s") == expiring
    assert evolve(expiring, was, "o", "s") == was


def test_a_state_that_is_new_or_the_same_is_as_it_is_declared():
    first, second = one(types.ByteType()), one(types.LongType())
    assert evolve(None, record(first), "o", "s") == record(first)
    both = evolve(record(first), record(second), "o", "s")
    assert evolve(both, record(second), "o", "s") == both
    with pytest.raises(StateSchemaError):
        evolve(both, record(first), "o", "s")


def test_more_schemas_than_a_byte_can_number_are_refused():
    def fields(count):
        return types.StructType([types.StructField(f"f{at}", types.LongType()) for at in range(count)])

    known = record(fields(1))
    for count in range(2, MAX_VERSIONS + 1):
        known = evolve(known, record(fields(count)), "o", "s")
    packing = Packing([fields(count) for count in range(1, MAX_VERSIONS + 1)], NAME)
    row = tuple(range(MAX_VERSIONS))
    assert packing.unpack_row(packing.pack_row(row, 5)) == row
    with pytest.raises(StateSchemaError, match="128"):
        evolve(known, record(fields(MAX_VERSIONS + 1)), "o", "s")


@st.composite
def changes(draw, dtype, value):
    """What a type may become, and a value of it as a value of that."""
    options = [new for old, new in WIDER if type(old) is type(dtype) and old == dtype]
    if options and draw(st.booleans()):
        new = draw(st.sampled_from(options))
        convert = float if isinstance(new, types.DoubleType) else lambda v: v
        return new, None if value is None else convert(value)
    if isinstance(dtype, types.StructType):
        fields, values = [], []
        for at, field in enumerate(dtype.fields):
            new, item = draw(changes(field.dataType, None if value is None else value[at]))
            fields.append(types.StructField(field.name, new))
            values.append(item)
        for at in range(draw(st.integers(0, 2))):
            place = draw(st.integers(0, len(fields)))
            fields.insert(
                place,
                types.StructField(f"new{at}", draw(st.sampled_from([types.LongType(), types.StringType()]))),
            )
            values.insert(place, None)
        names = [field.name for field in fields]
        return types.StructType(fields), None if value is None else types.Row(*names)(*values)
    return dtype, value


def kinds(value):
    """The types in a value: an int equals the float that it has become."""
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return [kinds(item) for item in value] if isinstance(value, list | tuple) else type(value)


@settings(deadline=None)
@given(schemas_with_rows(), st.data())
def test_rows_of_an_older_schema_are_read_as_rows_of_the_newer_singly_and_as_columns(case, data):
    was, rows = case
    row = rows[0]
    now, expected = data.draw(changes(was, types.Row(*was.names)(*row)))
    known = evolve(record(was), record(now), "o", "s")
    versions = [was, now][-len(known.versions) :]
    stored = Packing([was], NAME).pack_row(row)
    new = Packing(versions, NAME).pack_row(tuple(expected))
    packing = Packing(versions, NAME)
    assert packing.unpack_row(stored) == packing.unpack_row(new) == tuple(expected)
    assert kinds(packing.unpack_row(stored)) == kinds(tuple(expected))
    unpacked = packing.unpack(pa.array([stored, None, new, stored], BYTES))
    unpacked.validate(full=True)
    arrow = arrow_ready(expected, now)
    assert unpacked.equals(pa.array([arrow, None, arrow, arrow], arrow_struct(now)))


def test_nested_values_of_several_versions_come_back_as_those_of_the_last():
    first = one(types.ArrayType(types.StructType().add("a", types.ByteType())))
    second = one(
        types.ArrayType(types.StructType().add("b", types.StringType()).add("a", types.IntegerType()))
    )
    third = one(
        types.ArrayType(types.StructType().add("b", types.StringType()).add("a", types.DoubleType()))
    ).add("y", types.DecimalType(9, 2))
    versions = [first, second, third]
    stored = [
        Packing([first], NAME).pack_row(([(1,), None],)),
        Packing([first, second], NAME).pack_row(([("u", 2)],), 7),
        Packing(versions, NAME).pack_row(([("v", 3.0)], decimal.Decimal("1.50"))),
    ]
    packing = Packing(versions, NAME)
    expected = [
        ([types.Row(b=None, a=1.0), None], None),
        ([types.Row(b="u", a=2.0)], None),
        ([types.Row(b="v", a=3.0)], decimal.Decimal("1.50")),
    ]
    assert [packing.unpack_row(data) for data in stored] == expected
    assert packing.unpack(pa.array(stored, BYTES)).to_pylist() == [
        {"x": [{"b": None, "a": 1.0}, None], "y": None},
        {"x": [{"b": "u", "a": 2.0}], "y": None},
        {"x": [{"b": "v", "a": 3.0}], "y": decimal.Decimal("1.50")},
    ]
