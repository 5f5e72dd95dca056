"""Rows as a test writes them, as a table of Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from ..errors import invalid_argument
from ..format.evolution import shown
from ..format.schema import arrow_schema

Given = Iterable[Sequence[Any] | Mapping[str, Any]]
"""Each row is a tuple in the order of the columns, or a dict by their names; what a dict lacks is null."""


def tuples_of(rows: Given, schema: StructType) -> list[tuple[Any, ...]]:
    """Return rows as tuples.

    Raises:
        DefinitionError: a row has more or fewer values than the schema has columns.
    """
    names = schema.names
    tuples = [tuple(map(row.get, names)) if isinstance(row, Mapping) else tuple(row) for row in rows]
    for row in tuples:
        if len(row) != len(names):
            raise invalid_argument("rows", f"rows of {len(names)} values: {', '.join(names)}", repr(row))
    return tuples


def table_of(tuples: Sequence[tuple[Any, ...]], schema: StructType) -> pa.Table:
    """Return tuples as a table, with timestamps in UTC.

    Raises:
        DefinitionError: a value does not fit the type of its column.
    """
    fields = arrow_schema(schema, "UTC")
    columns = list(zip(*tuples, strict=True)) or [() for _ in fields]
    try:
        arrays = [pa.array(values, one.type) for values, one in zip(columns, fields, strict=True)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise invalid_argument("rows", f"values of {shown(schema)}", str(error)) from error
    return pa.table(arrays, fields)
