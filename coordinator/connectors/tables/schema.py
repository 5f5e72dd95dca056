"""Rows and the table that they are for: what does not fit, and rows in the form of the table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final

from ...sinks.two_phase.errors import OutputError
from ...sinks.two_phase.limits import Limits, limits_values
from ...sinks.two_phase.staged import StagedRows

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN: Final = 200
"""Characters of a row that an error shows."""


def misfits(rows: pa.Schema, table: pa.Schema) -> list[str]:
    """Say why a table does not take rows; nothing if it does.

    A column may have a narrower type than the table's, such as int for bigint. Whether a column that the table wants
    filled has nulls is only known from the rows.

    Args:
        rows: the schema of the rows.
        table: the schema of the table.
    """
    return [*_misfits(rows, table)]


def _misfits(rows: pa.Schema, table: pa.Schema) -> Iterator[str]:
    known = {field.name: field for field in table}
    for field in rows:
        if field.name not in known:
            yield f"column {field.name!r} is not in the table"
        elif not _takes(known[field.name].type, field.type):
            yield f"column {field.name!r} is {field.type}, and {known[field.name].type} in the table"
    for name, field in known.items():
        if name not in rows.names and not field.nullable:
            yield f"column {name!r}, which must not be null, is missing"


def check_schema(rows: pa.Schema, table: pa.Schema, target: str) -> None:
    """Check that a table takes rows.

    Raises:
        OutputError: it does not.
    """
    if found := misfits(rows, table):
        columns = ", ".join(f"{field.name} {field.type}" for field in table)
        raise OutputError(
            f"{target} does not take these rows",
            f"the table's columns: {columns}",
            "; ".join(found),
            "select and cast the columns in the query, or change the table",
        )


def limits_of(table: pa.Schema) -> Limits:
    """Return what the columns of a table do not take: nulls, also nested ones, and lengths of bytes."""
    return Limits(columns=tuple(field for field in table if limits_values(field)))


def fit(rows: pa.Table, table: pa.Schema, target: str, *, fill: bool = True) -> pa.Table:
    """Return rows in the form of a table: its types, and its order of columns.

    Args:
        table: the schema of the table.
        target: what it is, for messages.
        fill: whether columns that only the table has are added, with nulls.

    Raises:
        OutputError: they do not fit, or a value does not.
    """
    import pyarrow as pa

    check_schema(rows.schema, table, target)
    fields, columns = list[pa.Field](), list[pa.ChunkedArray]()
    for field in table:
        if field.name not in rows.schema.names:
            if fill:
                fields.append(field)
                columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows.column(field.name)
        if column.null_count and not field.nullable:
            raise OutputError(
                f"{target} refuses rows",
                f"column {field.name!r} to be never null",
                rows_with_null(rows, field.name),
                "filter or fill them in the query, or let the table's column be null",
            )
        if found := Limits(columns=(field,)).broken_by(rows):
            raise OutputError(
                f"{target} refuses rows",
                f"values of column {field.name!r} that are {field.type}",
                found,
                "filter or fill them in the query, or change the table",
            )
        try:
            columns.append(pa.chunked_array([_cast(one, field.type) for one in column.chunks], field.type))
        except pa.ArrowException as error:
            raise OutputError(
                f"{target} refuses rows",
                f"values of column {field.name!r} that are {field.type}",
                str(error),
                "cast the column in the query, or change the table",
            ) from error
        fields.append(field)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values as another type. Arrow's own cast fails where a null has nothing in it, and something is needed."""
    import pyarrow as pa

    parts = [type_.field(at) for at in range(type_.num_fields)]
    if not any(map(limits_values, parts)):
        return values.cast(type_)
    if values.offset:
        values = values.filter(pa.repeat(True, len(values)))
    if pa.types.is_struct(type_):
        columns = [
            _cast(one, part.type) if part.nullable else _filled(_cast(one, part.type))
            for one, part in zip(values.flatten(), parts, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=parts, mask=values.is_null())
    nulls = values.is_null() if values.null_count else None
    if pa.types.is_map(type_):
        keys, items = _cast(values.keys, type_.key_type), _cast(values.items, type_.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=type_, mask=nulls)
    make = pa.LargeListArray if pa.types.is_large_list(type_) else pa.ListArray
    index = pa.int64() if make is pa.LargeListArray else pa.int32()
    elements = _cast(values.values, type_.value_type)
    return make.from_arrays(values.offsets.cast(index), elements, type=type_, mask=nulls)


def _filled(values: pa.Array) -> pa.Array:
    """Return values with any other one instead of null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    some = pa.array([_some(values.type)], values.type)
    number = pa.array(range(len(values)), pa.int64())
    return pa.concat_arrays([values, some]).take(pc.if_else(values.is_null(), len(values), number))


def _some(type_: pa.DataType) -> object:
    import pyarrow.types as types

    if types.is_struct(type_):
        return {part.name: _some(part.type) for part in type_}
    if _is_list(type_) or types.is_map(type_):
        return []
    if _is_text(type_):
        return ""
    if _is_bytes(type_):
        return bytes(type_.byte_width) if types.is_fixed_size_binary(type_) else b""
    return False if types.is_boolean(type_) else 0


def rows_with_null(rows: pa.Table, name: str) -> str:
    """Say how many rows have a null in a column that has some, and what the first of them is."""
    import pyarrow.compute as pc

    column = rows.column(name)
    (first,) = rows.slice(pc.index(column.is_null(), True).as_py(), 1).to_pylist()
    return f"{column.null_count} rows of {rows.num_rows} where it is, the first {str(first)[:_SHOWN]}"


@contextmanager
def reading(
    staged: StagedRows, table: pa.Schema, target: str, computed: Collection[str] = ()
) -> Iterator[pa.RecordBatchReader]:
    """Read staged rows in the form of a table, one staged file at a time.

    An error of the rows is raised as it is, whatever the one who reads makes of it.

    Args:
        staged: what is published.
        table: the schema of the table.
        target: what it is, for messages.
        computed: columns that are left out, and not null, if the rows do not have them.

    Raises:
        OutputError: rows do not fit.
        ChandyError: as ``StagedRows.tables``.
    """
    import pyarrow as pa

    failed: list[BaseException] = []
    tables = staged.tables()
    if computed:
        first = next(tables)
        tables = chain([first], tables)
        missing = set(computed).difference(first.column_names)
        table = pa.schema([field for field in table if field.name not in missing])

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for rows in tables:
                yield from fit(rows, table, target).to_batches()
        except Exception as error:
            failed.append(error)
            raise

    try:
        yield pa.RecordBatchReader.from_batches(table, batches())
    except Exception:
        if failed:
            raise failed[0] from None
        raise


def _takes(table: pa.DataType, rows: pa.DataType) -> bool:
    """Whether values of one type are values of another."""
    import pyarrow.types as types

    if table == rows:
        return True
    if types.is_integer(table):
        # Neither Spark nor the formats of tables have unsigned integers.
        return bool(types.is_signed_integer(rows) and rows.bit_width <= table.bit_width)
    if types.is_floating(table):
        return bool(types.is_floating(rows) and rows.bit_width <= table.bit_width)
    if types.is_decimal(table):
        return bool(
            types.is_decimal(rows) and rows.scale == table.scale and rows.precision <= table.precision
        )
    if types.is_timestamp(table):
        return bool(types.is_timestamp(rows) and (rows.tz is None) == (table.tz is None))
    for one in (_is_text, _is_bytes):
        if one(table):
            return one(rows)
    if _is_list(table):
        return _is_list(rows) and _takes(table.value_type, rows.value_type)
    if types.is_map(table):
        return bool(
            types.is_map(rows)
            and _takes(table.key_type, rows.key_type)
            and _takes(table.item_type, rows.item_type)
        )
    if types.is_struct(table):
        return bool(
            types.is_struct(rows)
            and [field.name for field in table] == [field.name for field in rows]
            and all(_takes(one.type, other.type) for one, other in zip(table, rows, strict=True))
        )
    return False


def _is_text(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(
        types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_binary_view(type_)
        or types.is_fixed_size_binary(type_)
    )


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))
