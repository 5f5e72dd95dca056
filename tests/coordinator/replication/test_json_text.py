"""Rows in JSON: distinct values have distinct texts, readers get every value back, and no setting changes a text."""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pyspark.sql import types as T  # noqa: N812 (its usual name)

from chandy import ReplicaError
from chandy.coordinator.replication.json_text import EARLIER, EXACT, JsonWriter, version_of

from ...drawn_rows import Kind
from ...effort import examples

INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
# From year 1 to 9999 and a bit beyond.
NEAR = st.integers(-62_135_596_800_000_001, 253_402_300_800_000_000) | st.sampled_from(
    [1_577_836_800_123_456, 1_577_836_800_123_999, 0, -1]
)
UNCLEAN = st.sampled_from([b"\xff", b"\xfe", b"a\xc3", "\ufffd".encode(), b"\xed\xb3\xbf", b"\x1b\x7f"])
LEAVES = [
    Kind(pa.null(), st.none()),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.int64(), INT64),
    Kind(pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, 2e-3, 1e16])),
    Kind(pa.float32(), st.floats(width=32)),
    Kind(pa.decimal128(20, 7), st.decimals(-(10**12), 10**12, places=7)),
    Kind(pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    Kind(pa.large_string(), UNCLEAN),
    Kind(pa.binary(), st.binary(max_size=4)),
    Kind(pa.date32(), st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-800_000, 3_000_000)),
    Kind(pa.timestamp("us", "America/New_York"), INT64 | NEAR),
    Kind(pa.timestamp("us"), INT64 | NEAR),
    Kind(pa.time64("ns"), st.integers(0, 86_400_000_000 - 1).map(lambda micros: micros * 1000)),
    Kind(pa.duration("us"), INT64),
]


def nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def struct(first: Kind, second: Kind) -> Kind:
        fields = {"a": st.none() | first.values, 'b "é': st.none() | second.values}
        types = [("a", first.arrow), ('b "é', second.arrow)]
        return Kind(pa.struct(types), st.fixed_dictionaries(fields))

    def map_(key: Kind, item: Kind) -> Kind:
        entries = st.lists(st.tuples(key.values, st.none() | item.values), max_size=2)
        return Kind(pa.map_(key.arrow, item.arrow), entries)

    keys = st.sampled_from(LEAVES[1:])
    return (
        st.builds(struct, inner, inner)
        | inner.map(lambda kind: Kind(pa.list_(kind.arrow), st.lists(st.none() | kind.values, max_size=3)))
        | st.builds(map_, keys, inner)
    )


KINDS = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


def column_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """A column of values, of which texts may be no UTF-8."""
    return pa.array(values, storable(kind)).view(kind) if storable(kind) != kind else pa.array(values, kind)


def storable(kind: pa.DataType) -> pa.DataType:
    """A type in which bytes stand for unclean text."""
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, storable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(storable(kind.key_type), storable(kind.item_type))
    return pa.list_(storable(kind.value_type)) if pa.types.is_list(kind) else kind


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """The type of a struct's field, and values of it."""
    kind = draw(KINDS)
    return kind.arrow, draw(st.lists(st.none() | kind.values, min_size=1, max_size=4))


def stored(value: Any, kind: pa.DataType) -> Any:
    """A drawn value as it is compared."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return [stored(value[field.name], field.type) for field in kind]
    if pa.types.is_map(kind):
        return [[stored(key, kind.key_type), stored(item, kind.item_type)] for key, item in value]
    if pa.types.is_list(kind):
        return [stored(one, kind.value_type) for one in value]
    if pa.types.is_floating(kind):
        return repr(value)
    return value.encode() if pa.types.is_string(kind) else value


def read(found: Any, kind: pa.DataType) -> Any:
    """What a reader of JSON makes of a value, as it is compared."""
    if found is None:
        return None
    if pa.types.is_struct(kind):
        return [read(found[field.name], field.type) for field in kind]
    if pa.types.is_map(kind):
        if pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type):
            pairs = [(key, value) for key, value in found.items()]
        else:
            pairs = [(one["key"], one["value"]) for one in found]
        return [[read(key, kind.key_type), read(item, kind.item_type)] for key, item in pairs]
    if pa.types.is_list(kind):
        return [read(one, kind.value_type) for one in found]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return found.encode(errors="surrogateescape")
    if pa.types.is_binary(kind):
        return base64.b64decode(found)
    if pa.types.is_floating(kind):
        return repr(float(found))
    if pa.types.is_date(kind):
        return int(np.datetime64(found.removeprefix("+"), "D").astype(np.int64))
    if pa.types.is_timestamp(kind):
        assert found.endswith("Z") == (kind.tz is not None)
        return int(np.datetime64(found.removeprefix("+").removesuffix("Z"), "us").astype(np.int64))
    if pa.types.is_time(kind):
        return int(np.datetime64(f"1970-01-01T{found}", "ns").astype(np.int64))
    if pa.types.is_duration(kind):
        sign, seconds, micros = re.fullmatch(r"PT(-?)(\d+)\.(\d{6})S", found).groups()
        return (int(seconds) * 1_000_000 + int(micros)) * (-1 if sign else 1)
    return found


def unique_keys(value: Any, kind: pa.DataType) -> bool:
    """Whether maps have each key once, as Spark's do."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return all(unique_keys(value[field.name], field.type) for field in kind)
    if pa.types.is_list(kind):
        return all(unique_keys(one, kind.value_type) for one in value)
    if pa.types.is_map(kind):
        keys = [repr(stored(key, kind.key_type)) for key, _ in value]
        return len(set(keys)) == len(keys) and all(unique_keys(item, kind.item_type) for _, item in value)
    return True


@settings(max_examples=examples(60))
@given(columns(), st.integers(0, 2))
def test_readers_get_every_value_and_distinct_values_have_distinct_texts(
    column: tuple[pa.DataType, list[Any]], begin: int
) -> None:
    kind, drawn = column
    drawn = [one for one in drawn if unique_keys(one, kind)]
    values = column_of(kind, drawn)
    try:
        values.validate()
    except pa.ArrowInvalid:
        # PyArrow's ``view`` loses items of a null field, if the structs of a list are null.
        reject()
    rows = pa.StructArray.from_arrays([values], ["c"]).slice(begin)
    texts = JsonWriter().encode(rows).to_pylist()
    found = [json.loads(text, parse_float=number_of(kind)) for text in texts]
    assert [read(one["c"], kind) for one in found] == [stored(one, kind) for one in drawn[begin:]]
    distinct = {repr(stored(one, kind)) for one in drawn[begin:]}
    assert len(set(texts)) == len(distinct)


def number_of(kind: pa.DataType) -> Any:
    return Decimal if "decimal" in str(kind) else float


def test_texts_are_those_of_iso_and_of_json() -> None:
    def text(value: Any, kind: pa.DataType) -> str:
        (found,) = (
            JsonWriter().encode(pa.StructArray.from_arrays([column_of(kind, [value])], ["k"])).to_pylist()
        )
        return str(found)

    micros = 1_577_836_800_123_456
    for zone in ("UTC", "Europe/Berlin"):
        assert text(micros, pa.timestamp("us", zone)) == '{"k":"2020-01-01T00:00:00.123456Z"}'
    assert text(micros, pa.timestamp("us")) == '{"k":"2020-01-01T00:00:00.123456"}'
    assert text(4_000_000, pa.date32()) == '{"k":"+12921-08-18"}'
    assert text(-800_000, pa.date32()) == '{"k":"-0221-09-04"}'
    assert text(-90_000_001, pa.duration("us")) == '{"k":"PT-90.000001S"}'
    assert text([(b"\0", 1)], pa.map_(pa.binary(), pa.int64())) == '{"k":[{"key":"AA==","value":1}]}'
    assert text([("a", None)], pa.map_(pa.string(), pa.int64())) == '{"k":{"a":null}}'
    assert text(math.nan, pa.float64()) == '{"k":"NaN"}'
    assert text(b'\xff\x1b\n"', pa.large_string()) == r'{"k":"\uDCFF\u001B\n\""}'
    nothing = pa.StructArray.from_arrays([pa.array([1])], ["k"], mask=pa.array([True]))
    assert JsonWriter().encode(nothing).to_pylist() == [None]


def struct(*types: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(f"c{at}", one) for at, one in enumerate(types)])


@pytest.mark.parametrize(
    ("key", "value", "version"),
    [
        (T.StringType(), T.LongType(), EARLIER),
        (T.DecimalType(38, 10), T.ArrayType(T.DoubleType()), EARLIER),
        (T.DateType(), T.MapType(T.StringType(), T.BinaryType()), EARLIER),
        (T.DoubleType(), T.LongType(), EXACT),
        (T.TimestampType(), T.LongType(), EXACT),
        (T.LongType(), T.ArrayType(struct(T.TimestampNTZType())), EXACT),
        (T.LongType(), T.MapType(T.LongType(), T.LongType()), EXACT),
        (T.LongType(), T.TimeType(), EXACT),
    ],
)
def test_texts_that_earlier_versions_wrote_otherwise_are_told(
    key: T.DataType, value: T.DataType, version: int
) -> None:
    assert version_of(struct(key), struct(value)) == version


@pytest.mark.parametrize("type_", [T.VariantType(), T.YearMonthIntervalType(), T.CalendarIntervalType()])
def test_a_type_without_json_is_refused_by_name(type_: T.DataType) -> None:
    for wrong in (struct(type_), struct(T.ArrayType(struct(type_)))):
        with pytest.raises(ReplicaError, match=r"in value\.c0"):
            version_of(struct(T.LongType()), wrong)
    twice = T.StructType([*struct(T.LongType()), *struct(T.LongType())])
    with pytest.raises(ReplicaError, match="'c0' twice in key"):
        version_of(twice, struct())
