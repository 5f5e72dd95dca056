"""Rows in Avro: what a reader decodes is what was encoded, also beside columns that came later."""

from __future__ import annotations

import datetime
import io
import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_reader
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    Row,
    StringType,
    StructField,
    StructType,
    TimestampType,
    TimeType,
    VarcharType,
)

from chandy import ReplicaError
from chandy.coordinator.errors import SetupError
from chandy.coordinator.replication.avro import AvroWriter, namespace, schema_of

from ...effort import examples
from ...state.schemas import names_of, typed

ID = 0x01020304


def has_no_avro(dtype: DataType) -> bool:
    match dtype:
        case StructType():
            return any(has_no_avro(field.dataType) for field in dtype)
        case ArrayType():
            return isinstance(dtype.elementType, NullType) or has_no_avro(dtype.elementType)
        case MapType():
            kinds = isinstance(dtype.keyType, StringType) and not isinstance(dtype.valueType, NullType)
            return not kinds or has_no_avro(dtype.valueType)
    return isinstance(dtype, DayTimeIntervalType | TimeType)


def in_arrow(dtype: DataType) -> pa.DataType:
    """The type in which Spark gives a column to Python; it has texts alone in place of char and varchar."""
    match dtype:
        case StructType():
            return pa.struct([pa.field(one.name, in_arrow(one.dataType), one.nullable) for one in dtype])
        case ArrayType():
            return pa.list_(in_arrow(dtype.elementType))
        case MapType():
            return pa.map_(in_arrow(dtype.keyType), in_arrow(dtype.valueType))
        case CharType() | VarcharType():
            return pa.string()
    return to_arrow_type(dtype, timezone="UTC")


def for_arrow(value: Any) -> Any:
    match value:
        case Row():
            return {name: for_arrow(item) for name, item in value.asDict().items()}
        case list():
            return [for_arrow(item) for item in value]
        case dict():
            return [(key, for_arrow(item)) for key, item in value.items()]
    return value


def decoded(value: Any, dtype: DataType) -> Any:
    """A value as a reader of Avro has it."""
    match dtype:
        case _ if value is None:
            return None
        case StructType():
            return {one.name: decoded(value[one.name], one.dataType) for one in dtype}
        case ArrayType():
            return [decoded(item, dtype.elementType) for item in value]
        case MapType():
            return {key: decoded(item, dtype.valueType) for key, item in value.items()}
        case TimestampType():
            return value.replace(tzinfo=datetime.UTC)
    return value


def read(message: bytes, schema: str, wanted: str | None = None) -> Any:
    assert message[:5] == b"\0\1\2\3\4"
    reader = None if wanted is None else parse_schema(json.loads(wanted))
    return schemaless_reader(io.BytesIO(message[5:]), parse_schema(json.loads(schema)), reader)


@st.composite
def columns(draw: st.DrawFn) -> tuple[StructType, list[Any]]:
    """A struct, and rows of it, of which some are null."""
    kinds = draw(st.lists(typed(), min_size=1, max_size=3))
    names = draw(names_of(len(kinds)))
    struct = StructType([StructField(name, dtype) for name, (dtype, _) in zip(names, kinds, strict=True)])
    row = Row(*struct.names)
    values = st.tuples(*(st.none() | one for _, one in kinds)).map(lambda items: row(*items))
    return struct, draw(st.lists(st.none() | values, max_size=4))


@settings(max_examples=examples(30))
@given(columns())
def test_readers_have_what_was_written_or_the_type_is_refused(column: tuple[StructType, list[Any]]) -> None:
    struct, rows = column
    if has_no_avro(struct):
        with pytest.raises(ReplicaError, match="types that Avro has"):
            schema_of(struct, "a.Value")
        return
    schema = schema_of(struct, "a.Value")
    given_rows = pa.array([for_arrow(row) for row in rows], in_arrow(struct))
    messages = AvroWriter(schema, ID).encode(given_rows).to_pylist()
    found = [None if message is None else read(message, schema) for message in messages]
    assert found == [decoded(row, struct) for row in rows]
    # A consumer that knows a column more gets null for it, as from a table with a new column.
    more = schema_of(StructType([*struct, StructField("more", LongType())]), "a.Value")
    for message, one in zip(messages, found, strict=True):
        assert message is None or read(message, schema, more) == {**one, "more": None}


def test_columns_whose_paths_look_alike_have_records_of_their_own() -> None:
    inner = StructType([StructField("x", LongType())])
    struct = StructType([StructField("a", StructType([StructField("b", inner)])), StructField("a_b", inner)])
    schema = schema_of(struct, "Value")
    row = {"a": {"b": {"x": 1}}, "a_b": {"x": 2}}
    (message,) = AvroWriter(schema, ID).encode(pa.array([row], in_arrow(struct))).to_pylist()
    assert read(message, schema) == row
    # A column that comes later does not change the names of those before it.
    before = json.loads(schema_of(StructType(struct.fields[:1]), "Value"))
    assert json.loads(schema)["fields"][:1] == before["fields"]


def test_moments_that_python_does_not_have_are_written() -> None:
    struct = StructType([StructField("t", TimestampType()), StructField("ts", ArrayType(TimestampType()))])
    schema = schema_of(struct, "Value")
    moments = [-(2**62), 2**62]
    rows = pa.array([{"t": moment, "ts": [moment]} for moment in moments], in_arrow(struct))
    messages = AvroWriter(schema, ID).encode(rows).to_pylist()
    plain = schema.replace('"logicalType"', '"logical"')
    assert [read(message, plain) for message in messages] == [{"t": one, "ts": [one]} for one in moments]


def test_a_null_struct_has_no_fields_that_could_be_missing() -> None:
    inner = StructType([StructField("a", LongType(), nullable=False)])
    struct = StructType([StructField("inner", inner, nullable=False), StructField("b", LongType())])
    schema = schema_of(struct, "Value")
    # As Spark has them: what is below a null is null.
    below = [pa.array([None, {"a": 1}], in_arrow(inner)), pa.array([None, 2])]
    rows = pa.StructArray.from_arrays(below, fields=[*in_arrow(struct)], mask=pa.array([True, False]))
    empty, filled = AvroWriter(schema, ID).encode(rows).to_pylist()
    assert (empty, read(filled, schema)) == (None, {"inner": {"a": 1}, "b": 2})


def test_where_the_library_is_missing_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(SetupError, match=r"pip install 'chandy\[avro\]'"):
        AvroWriter(schema_of(StructType([]), "Value"), ID).encode(pa.array([{}]))


@pytest.mark.parametrize("name", ["größe", "a b", "1st", "", "a.b"])
def test_a_column_without_a_name_in_avro_is_refused_by_name(name: str) -> None:
    inner = StructType([StructField(name, LongType())])
    for struct in (inner, StructType([StructField("s", inner)])):
        with pytest.raises(ReplicaError) as raised:
            schema_of(struct, "a.Value")
        assert repr(name) in str(raised.value)
        assert "leave out the registry" in str(raised.value)


def test_the_names_of_a_pipeline_are_a_namespace_whatever_they_have() -> None:
    assert namespace("sales-eu", "1st", "größe") == "sales_eu._1st.gr__e"
    struct = StructType([StructField("a", StructType([StructField("b", LongType())]))])
    record = parse_schema(json.loads(schema_of(struct, f"{namespace('a', 'b')}.Value")))
    assert record["name"] == "a.b.Value"
    assert record["fields"][0]["type"][1]["name"] == "a.b.Value_a"
