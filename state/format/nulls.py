"""Finds nulls in Arrow columns where Spark's types do not allow them, also inside of arrays, maps and structs."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


@attrs.frozen
class ForbiddenNulls:
    """A part of a column that has nulls and must not."""

    path: str
    expected: str
    count: int

    @property
    def found(self) -> str:
        """What was found, for errors."""
        return f"{self.count} nulls"


def forbidden_nulls(
    column: pa.Array | pa.ChunkedArray, dtype: DataType, nullable: bool, path: str
) -> ForbiddenNulls | None:
    """Return the first part of a column that has nulls and must not; None if there is none.

    Args:
        column: of the Arrow type of ``dtype``.
        dtype: the type of its values.
        nullable: whether a value may be null.
        path: of the column, for the result.
    """
    if column.null_count and not nullable:
        return ForbiddenNulls(path, f"{dtype.simpleString()} that is not null", column.null_count)
    if not _forbids(dtype):
        return None
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = (part for chunk in chunks for part in _parts(chunk, dtype, path))
    return next(filter(None, (forbidden_nulls(*part) for part in parts)), None)


def _forbids(dtype: DataType) -> bool:
    """Return whether a part inside of values of a type must not be null, other than the keys of a map."""
    if isinstance(dtype, StructType):
        return any(not field.nullable or _forbids(field.dataType) for field in dtype.fields)
    if isinstance(dtype, ArrayType):
        return not dtype.containsNull or _forbids(dtype.elementType)
    if isinstance(dtype, MapType):
        # Arrow has no map with a null for a key.
        return not dtype.valueContainsNull or _forbids(dtype.keyType) or _forbids(dtype.valueType)
    return False


def _parts(column: pa.Array, dtype: DataType, path: str) -> Iterator[tuple[pa.Array, DataType, bool, str]]:
    """Yield the parts of the values that are not null."""
    if isinstance(dtype, ArrayType):
        yield column.flatten(), dtype.elementType, dtype.containsNull, f"{path}[]"
    elif isinstance(dtype, MapType):
        entries = as_list(column).flatten()
        yield entries.field(0), dtype.keyType, False, f"{path}.key"
        yield entries.field(1), dtype.valueType, dtype.valueContainsNull, f"{path}.value"
    elif isinstance(dtype, StructType):
        present = column.drop_null() if column.null_count else column
        for at, field in enumerate(dtype.fields):
            yield present.field(at), field.dataType, field.nullable, f"{path}.{field.name}"


def as_list(column: pa.MapArray) -> pa.ListArray:
    """Return a column of maps as lists of structs of key and value."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    dtype = pa.list_(entries.type)
    return pa.Array.from_buffers(
        dtype, len(column), column.buffers()[:2], offset=column.offset, children=[entries]
    )
