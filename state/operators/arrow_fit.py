"""Checks what an Arrow processor returned, and casts its columns to exactly the declared types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from ..errors import OutputTypeError
from ..format.nulls import forbidden_nulls
from ..format.schema import arrow_schema
from ..format.values import describe

Where = Callable[[str], str]
"""Returns what errors call a part, given its path."""

_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_decimal,
    lambda dtype: pa.types.is_string(dtype) or pa.types.is_large_string(dtype),
    lambda dtype: pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype),
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is None,
    lambda dtype: pa.types.is_timestamp(dtype) and dtype.tz is not None,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_duration,
)
"""Types of one family are cast to each other if no value changes."""


def fit_table(table: Any, operator: str, schema: StructType) -> pa.Table | None:
    """Return a processor's output with exactly the columns of the schema; None if there is no row.

    Raises:
        OutputTypeError: the output is no table, or its columns do not fit.
    """
    if table is None:
        return None
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise OutputTypeError(
            operator, "the output", "a pyarrow Table, a RecordBatch or None", describe(table)
        )
    names = table.schema.names
    if sorted(names) != sorted(schema.names):
        raise OutputTypeError(
            operator, "the output", f"the columns {', '.join(schema.names)}", ", ".join(names) or "no column"
        )
    types = arrow_schema(schema)
    columns = [
        _fitted(
            table.column(field.name),
            types.field(field.name).type,
            field,
            operator,
            "output column {!r}".format,
        )
        for field in schema.fields
    ]
    return pa.Table.from_arrays(columns, schema=types) if len(table) else None


def fit_states(
    states: Any, operator: str, schemas: Mapping[str, StructType], keys: int
) -> dict[str, pa.StructArray]:
    """Return a processor's new states, each with exactly the type of its schema.

    Raises:
        OutputTypeError: a state is unknown, or the number or the type of its values is wrong.
    """
    if not isinstance(states, Mapping):
        raise OutputTypeError(operator, "the new states", "a dict of struct arrays by name", describe(states))
    return {name: _state(name, values, operator, schemas, keys) for name, values in states.items()}


def _state(
    name: str, values: Any, operator: str, schemas: Mapping[str, StructType], keys: int
) -> pa.StructArray:
    schema, part = schemas.get(name), f"state {name!r}"
    if schema is None:
        known = ", ".join(map(repr, schemas)) or "no state at all"
        raise OutputTypeError(operator, part, f"one that is declared: {known}", "one that is not")
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        raise OutputTypeError(operator, part, "a pyarrow struct array", describe(values))
    if len(values) != keys:
        raise OutputTypeError(operator, part, f"a value for each of {keys} keys", f"{len(values)} values")
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    types = arrow_schema(schema)
    if not pa.types.is_struct(array.type):
        raise OutputTypeError(operator, part, pa.struct(list(types)), str(array.type))
    names = [array.type.field(position).name for position in range(array.type.num_fields)]
    if sorted(names) != sorted(schema.names):
        raise OutputTypeError(operator, part, f"the fields {', '.join(schema.names)}", ", ".join(names))
    present = array.is_valid() if array.null_count else None
    fields = []
    for field, expected in zip(schema.fields, types, strict=True):
        column = pc.struct_field(array, [names.index(field.name)])
        where = partial(_part_of, part)
        column = _cast(column, expected.type, operator, where(field.name))
        # A field of no value is null.
        counted = column if present is None or field.nullable else column.filter(present)
        _check_nulls(counted, field, operator, where)
        fields.append(column)
    return pa.StructArray.from_arrays(
        fields, fields=list(types), mask=None if present is None else pc.invert(present)
    )


def _part_of(state: str, path: str) -> str:
    return f"field {path!r} of {state}"


def _fitted(column: Any, expected: pa.DataType, field: StructField, operator: str, where: Where) -> Any:
    fitting = _cast(column, expected, operator, where(field.name))
    _check_nulls(fitting, field, operator, where)
    return fitting


def _check_nulls(column: Any, field: StructField, operator: str, where: Where) -> None:
    found = forbidden_nulls(column, field.dataType, field.nullable, field.name)
    if found is not None:
        raise OutputTypeError(operator, where(found.path), found.expected, found.found)


def _cast(column: Any, expected: pa.DataType, operator: str, part: str) -> Any:
    if column.type == expected:
        return column
    if not _related(column.type, expected):
        raise OutputTypeError(operator, part, str(expected), str(column.type))
    try:
        return column.cast(expected)
    except pa.ArrowInvalid as error:
        raise OutputTypeError(operator, part, str(expected), f"{column.type}: {error}") from error


def _related(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_null(found):
        return True
    if pa.types.is_floating(found) and pa.types.is_floating(expected):
        return bool(found.bit_width <= expected.bit_width)
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        return found.num_fields == expected.num_fields and all(
            mine.name == its.name and _related(mine.type, its.type)
            for mine, its in zip(found, expected, strict=True)
        )
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return pa.types.is_list(expected) and _related(found.value_type, expected.value_type)
    if pa.types.is_map(found) and pa.types.is_map(expected):
        return _related(found.key_type, expected.key_type) and _related(found.item_type, expected.item_type)
    return bool(found == expected or any(family(found) and family(expected) for family in _FAMILIES))
