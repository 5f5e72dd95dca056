"""Spark schemas of states and of operators' output: from a StructType or DDL text, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
)

from ..errors import SchemaError

Parse = Callable[[str], DataType]
"""Reads DDL text. Spark's own parser is ``DataType.fromDDL``; it needs the driver's JVM."""


def to_json(schema: StructType) -> str:
    """Return a schema as Spark's JSON, always the same text for the same schema."""
    return schema.json()


def from_json(text: str) -> StructType:
    """Return the schema that ``to_json`` wrote."""
    return StructType.fromJson(json.loads(text))


def arrow_struct(schema: StructType, timezone: str = "UTC") -> pa.StructType:
    """Return the Arrow type of rows of a schema; timestamps are in the time zone, char and varchar are strings."""
    return to_arrow_type(plain_strings(schema), timezone=timezone)


def arrow_schema(schema: StructType, timezone: str = "UTC") -> pa.Schema:
    """Return the Arrow schema of rows, with the types of ``arrow_struct``."""
    return pa.schema(list(arrow_struct(schema, timezone)))


def plain_strings(dtype: DataType) -> DataType:
    """Return a type with strings in place of char and varchar, for which PySpark has no Arrow type."""
    if isinstance(dtype, CharType | VarcharType):
        return StringType()
    if isinstance(dtype, ArrayType):
        return ArrayType(plain_strings(dtype.elementType), dtype.containsNull)
    if isinstance(dtype, MapType):
        key, value = plain_strings(dtype.keyType), plain_strings(dtype.valueType)
        return MapType(key, value, dtype.valueContainsNull)
    if isinstance(dtype, StructType):
        return StructType(
            [StructField(field.name, plain_strings(field.dataType), field.nullable) for field in dtype.fields]
        )
    return dtype


def bare(dtype: DataType) -> DataType:
    """Return a type as if everything in it could be null, and without metadata: what is left is of the values."""
    if isinstance(dtype, ArrayType):
        return ArrayType(bare(dtype.elementType))
    if isinstance(dtype, MapType):
        return MapType(bare(dtype.keyType), bare(dtype.valueType))
    if isinstance(dtype, StructType):
        return StructType([StructField(field.name, bare(field.dataType)) for field in dtype.fields])
    return dtype


@attrs.define
class Schemas:
    """Resolves schemas that a user wrote as a StructType or as DDL, and remembers what each DDL text meant.

    Only the driver can read DDL. So the driver resolves every text once, and ``known`` travels to the tasks,
    which have no parser.
    """

    parse: Parse | None = DataType.fromDDL
    """Reads DDL; None where no parser can be reached."""
    known: dict[str, str] = attrs.field(factory=dict)
    """Schema as JSON by DDL text."""

    def resolve(self, schema: StructType | str, what: str) -> StructType:
        """Return ``schema`` as a StructType with at least one field and no name twice.

        Args:
            schema: a StructType, or DDL such as ``"count long, total double"``.
            what: whose schema it is, for the error.

        Raises:
            SchemaError: it is no such schema.
        """
        resolved = self._read(schema, what) if isinstance(schema, str) else schema
        if not isinstance(resolved, StructType):
            raise SchemaError(
                what, repr(schema), "it has to be a struct, as StructType or as DDL with column names"
            )
        if not resolved.fields:
            raise SchemaError(what, repr(schema), "it needs at least one field")
        twice = sorted({name for name in resolved.names if resolved.names.count(name) > 1})
        if twice:
            raise SchemaError(
                what, repr(schema), f"it has more than one field named {', '.join(map(repr, twice))}"
            )
        return resolved

    def _read(self, text: str, what: str) -> DataType:
        if text in self.known:
            return from_json(self.known[text])
        if self.parse is None:
            detail = (
                "this DDL was not seen on the driver; init has to declare the same states whenever it runs"
            )
            raise SchemaError(what, repr(text), detail)
        try:
            parsed = self.parse(text)
        except (PySparkException, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0] or "no SparkContext is active"
            raise SchemaError(what, repr(text), f"Spark cannot read it as DDL ({reason})") from error
        if isinstance(parsed, StructType):
            self.known[text] = to_json(parsed)
        return parsed
