"""Spark schemas of states and of operators' output, as StructType, DDL, JSON and Arrow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException
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

from ..errors import DefinitionError
from ..pyspark_versions import arrow_type

Parse = Callable[[str], DataType]
"""Parses DDL text. Spark's own parser is ``DataType.fromDDL``, which needs the driver's JVM."""


def to_json(schema: StructType) -> str:
    """Return a schema as Spark's JSON; equal schemas give equal texts."""
    return schema.json()


def from_json(text: str) -> StructType:
    """Return the schema that ``to_json`` wrote."""
    return StructType.fromJson(json.loads(text))


def arrow_struct(schema: StructType, timezone: str = "UTC") -> pa.StructType:
    """Return the Arrow type of rows of a schema, with timestamps in the time zone, and char and varchar as strings."""
    return arrow_type(plain_strings(schema), timezone)


def arrow_schema(schema: StructType, timezone: str = "UTC") -> pa.Schema:
    """Return the Arrow schema of rows, with the types that ``arrow_struct`` has."""
    return pa.schema(list(arrow_struct(schema, timezone)))


def plain_strings(dtype: DataType) -> DataType:
    """Return a type with char and varchar replaced by string, because PySpark has no Arrow type for them."""
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


MADE_OF: Final = "chandy.made_of"
"""The key of a field's metadata that says what its values are made of, where two kinds have values of one type."""


def bare(dtype: DataType) -> DataType:
    """Return a type in which everything is nullable and nothing has metadata, to compare the types of values only."""
    if isinstance(dtype, ArrayType):
        return ArrayType(bare(dtype.elementType))
    if isinstance(dtype, MapType):
        return MapType(bare(dtype.keyType), bare(dtype.valueType))
    if isinstance(dtype, StructType):
        return StructType([StructField(field.name, bare(field.dataType)) for field in dtype.fields])
    return dtype


@attrs.define
class Schemas:
    """Resolves schemas that a user wrote as a StructType or as DDL, and remembers the schema of each DDL text.

    Only the driver can parse DDL. So the driver resolves every text once, and sends ``known`` to the tasks.
    """

    parse: Parse | None = DataType.fromDDL
    """Parses DDL; None in a task."""
    known: dict[str, str] = attrs.field(factory=dict)
    """The schema of each DDL text, as JSON."""

    def resolve(self, schema: StructType | str, what: str) -> StructType:
        """Return ``schema`` as a StructType with at least one field and no name twice.

        Args:
            schema: a StructType, or DDL such as ``"count long, total double"``.
            what: what the schema is of, for the error.

        Raises:
            DefinitionError: the schema cannot be used.
        """
        resolved = self._read(schema, what) if isinstance(schema, str) else schema
        if not isinstance(resolved, StructType):
            raise _unusable(what, "a struct, as StructType or as DDL with column names", repr(schema))
        if not resolved.fields:
            raise _unusable(what, "at least one field", repr(schema))
        twice = sorted({name for name in resolved.names if resolved.names.count(name) > 1})
        if twice:
            names = ", ".join(map(repr, twice))
            raise _unusable(what, "no name twice", f"more than one field named {names} in {schema!r}")
        return resolved

    def _read(self, text: str, what: str) -> DataType:
        if text in self.known:
            return from_json(self.known[text])
        if self.parse is None:
            raise _unusable(
                what,
                "DDL that init has also used on the driver",
                f"{text!r}, which was not seen on the driver",
                "let init declare the same states each time it runs",
            )
        try:
            parsed = self.parse(text)
        except (PySparkException, AssertionError) as error:
            reason = str(error).strip().partition("\n")[0] or "no SparkContext is active"
            found = f"{text!r}, which Spark cannot read as DDL ({reason})"
            raise _unusable(what, "DDL with column names", found) from error
        if isinstance(parsed, StructType):
            self.known[text] = to_json(parsed)
        return parsed


def _unusable(what: str, expected: str, found: str, advice: str = "") -> DefinitionError:
    return DefinitionError(f"the schema of {what} cannot be used", expected, found, advice)
