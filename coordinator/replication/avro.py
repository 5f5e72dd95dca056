"""Rows in Apache Avro: the schema of a struct of Spark's, and the encoder of its values.

The types are those of Spark's own Avro writer (https://spark.apache.org/docs/latest/sql-data-sources-avro.html,
"Supported types for Spark SQL -> Avro conversion"); a decimal is ``bytes``. A field that may be null is null by
default, so that a registry accepts columns that are added (https://avro.apache.org/docs/1.12.0/specification/,
"Schema Resolution"). A message begins with a zero byte and the four bytes of its schema's id, the highest first
(https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html, "Wire format").
"""

from __future__ import annotations

import functools
import io
import json
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql import types as T  # noqa: N812 (its usual name)

from ..errors import ReplicaError
from ..extras import needs_extra

if TYPE_CHECKING:
    import pyarrow as pa

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_SIMPLE: Final[dict[type[T.DataType], str | dict[str, str]]] = {
    T.NullType: "null",
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.CharType: "string",
    T.VarcharType: "string",
    T.BinaryType: "bytes",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_MAGIC: Final = b"\0"


def namespace(*names: str) -> str:
    """Return names as a namespace; what Avro's names cannot have becomes ``_``."""
    parts = (_NO_NAME.sub("_", name) for name in names)
    return ".".join(part if _NAME.fullmatch(part) else f"_{part}" for part in parts)


def schema_of(struct: T.StructType, name: str) -> str:
    """Return the Avro schema of a struct, in JSON.

    Args:
        struct: the columns.
        name: of the record, with its namespace. A record in it is named after this one and its column, with ``_``
            between them. If an earlier record has that name, ``_2`` or a higher number follows.

    Raises:
        ReplicaError: Avro has no such name, or no such type.
    """
    return json.dumps(_Types({name}).record(struct, name))


@attrs.frozen
class AvroWriter:
    """Encodes the structs of a column as messages. It is sent to tasks."""

    schema: str
    """As ``schema_of`` returns it."""
    id: int
    """Of the schema in its registry."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of bytes; null stays null."""
        import pyarrow as pa

        write, schema = library().schemaless_writer, _parsed(self.schema)
        head = _MAGIC + self.id.to_bytes(4, "big")

        def encoded(row: dict[str, Any]) -> bytes:
            message = io.BytesIO()
            message.write(head)
            write(message, schema, row)
            return message.getvalue()

        rows = column.cast(_countable(column.type)).to_pylist(maps_as_pydicts="strict")
        return pa.array([None if row is None else encoded(row) for row in rows], pa.binary())


def library() -> ModuleType:
    """Return the library that encodes, which driver and executors need.

    Raises:
        SetupError: it is not installed.
    """
    needed = "the package fastavro on the driver and on the executors"
    with needs_extra("avro", what="rows cannot be encoded in Avro", needed=needed):
        import fastavro
    module: ModuleType = fastavro
    return module


@functools.cache
def _parsed(schema: str) -> Any:
    return library().parse_schema(json.loads(schema))


def _countable(type_: pa.DataType) -> pa.DataType:
    """Return a type with days and microseconds in place of dates and timestamps: Python's have fewer years.

    All its fields may be null, as they are in Arrow where the whole struct is.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_map(type_):
        return pa.map_(_countable(type_.key_type), _countable(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(_countable(type_.value_type))
    if pa.types.is_large_list(type_):
        return pa.large_list(_countable(type_.value_type))
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _countable(field.type)) for field in type_])
    return type_


@attrs.define
class _Types:
    """The types of one schema."""

    _records: set[str]
    """Names that records have: each names one."""

    def record(self, struct: T.StructType, name: str) -> dict[str, Any]:
        """Return the type of a struct whose record has a name of its own."""
        return {"type": "record", "name": name, "fields": [self._field(field, name) for field in struct]}

    def _field(self, field: T.StructField, record: str) -> dict[str, Any]:
        if not _NAME.fullmatch(field.name):
            raise _refused(
                f"column names of letters, digits and '_', as Avro's are, in {record}",
                repr(field.name),
                "rename it",
            )
        type_ = self._nullable(field.dataType, f"{record}_{field.name}", may_be_null=field.nullable)
        # Types that may be null are unions, which are lists.
        default = {"default": None} if isinstance(type_, list) else {}
        return {"name": field.name, "type": type_, **default}

    def _nullable(self, type_: T.DataType, name: str, *, may_be_null: bool) -> Any:
        avro = self._type(type_, name)
        return ["null", avro] if may_be_null and avro != "null" else avro

    def _type(self, type_: T.DataType, name: str) -> Any:
        match type_:
            case T.StructType():
                return self.record(type_, self._free(name))
            # Arrow loses elements that can be nothing but null when it casts.
            case T.ArrayType() if not isinstance(type_.elementType, T.NullType):
                items = self._nullable(type_.elementType, name, may_be_null=type_.containsNull)
                return {"type": "array", "items": items}
            case T.MapType() if isinstance(type_.keyType, T.StringType) and not isinstance(
                type_.valueType, T.NullType
            ):
                values = self._nullable(type_.valueType, name, may_be_null=type_.valueContainsNull)
                return {"type": "map", "values": values}
            case T.DecimalType(precision=precision, scale=scale):
                return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        if (simple := _SIMPLE.get(type(type_))) is None:
            raise _refused("types that Avro has", f"{type_.simpleString()} in {name}", "cast it")
        return simple

    def _free(self, name: str) -> str:
        """Take a name for a record. The paths ``a.b_c`` and ``a_b.c`` have one name."""
        free, number = name, 1
        while free in self._records:
            number += 1
            free = f"{name}_{number}"
        self._records.add(free)
        return free


def _refused(expected: str, found: str, advice: str) -> ReplicaError:
    advice = f"{advice}, or leave out the registry: JSON has all names and types"
    return ReplicaError("a state cannot be replicated in Avro", expected, found, advice)
