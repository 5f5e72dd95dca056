"""Rows as the files of a directory: their bytes, and the folders of their partitions."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ..values import far_year

if TYPE_CHECKING:
    import pyarrow as pa

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder for rows whose partition column is null or empty."""

_LONGEST_NAME: Final = 255
"""Bytes that the name of a folder may have on common file systems."""
_SHOWN: Final = {"parquet": "Parquet", "json": "JSON", "csv": "CSV"}
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")


def parquet(rows: pa.Table) -> bytes:
    """Return rows as a Parquet file."""
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(rows, stream, compression="zstd")
    return stream.getvalue()


def json_lines(rows: pa.Table) -> bytes:
    """Return rows as JSON, one object a line, as Spark writes it: without nulls in objects, with maps as objects."""
    types = {field.name: field.type for field in rows.schema}
    return b"".join(
        json.dumps(_json_object(row, types), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        for batch in rows.to_batches()
        for row in batch.to_pylist()
    )


def csv(rows: pa.Table) -> bytes:
    """Return rows as CSV with a header. Quotes in a value are doubled. An empty text is quoted, and a null is not.

    What is not a finite number is written as Spark writes and reads it: ``NaN``, ``Infinity``, ``-Infinity``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    for at, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            rows = rows.set_column(at, field.name, _named_infinities(rows.column(at)))
    if rows.num_columns == 1 and rows.column(0).null_count:
        # A null alone would be an empty line, which readers skip. A quoted nothing is a null of all types but text.
        rows = rows.set_column(
            0, rows.column_names[0], pc.fill_null(pc.cast(rows.column(0), pa.string()), "")
        )
    stream = io.BytesIO()
    arrow_csv.write_csv(rows, stream)
    return stream.getvalue()


WRITERS: Final[Mapping[str, Callable[[pa.Table], bytes]]] = {
    "parquet": parquet,
    "json": json_lines,
    "csv": csv,
}
"""What makes a file of rows, by the name of the format, which also is the suffix of the file."""


def unwritable(schema: pa.Schema, format: str, partition_by: tuple[str, ...]) -> list[str]:
    """Say why rows cannot be files of a format; nothing if they can."""

    found = [f"no column {name!r} to partition by" for name in partition_by if name not in schema.names]
    if schema.names and not set(schema.names) - set(partition_by):
        found.append("no column besides those to partition by")
    for field in schema:
        if field.name in partition_by and not _can_partition(field.type):
            found.append(f"column {field.name!r}, which is {field.type}, to partition by")
        elif not _can_hold(format, field.type):
            found.append(f"column {field.name!r}, which is {field.type}, in {_SHOWN[format]}")
    return found


def unwritten(rows: pa.Table, format: str, partition_by: tuple[str, ...]) -> str | None:
    """Say which values cannot be written though their column's type can; None if there are none.

    JSON, CSV and names of folders have dates as text, for the years 1 to 9999.
    """
    written_as_text = [name for name in rows.column_names if format != "parquet" or name in partition_by]
    return (
        too_long(rows, partition_by, partition_folder)
        or far_year(rows, written_as_text)
        or (_null_line(rows, partition_by) if format == "csv" else None)
    )


def _null_line(rows: pa.Table, partition_by: tuple[str, ...]) -> str | None:
    """Say which null would be a line that readers skip, or take for an empty text."""
    line = rows.drop_columns(list(partition_by))
    if line.num_columns == 1 and _is_text(line.column(0).type) and line.column(0).null_count:
        return f"a null in column {line.column_names[0]!r}, which is text and the only one of a line of CSV"
    return None


def too_long(
    rows: pa.Table, partition_by: tuple[str, ...], folder_of: Callable[[str, str], str]
) -> str | None:
    """Say which text would name a partition's folder by more bytes than file systems have; None if there is none.

    Args:
        rows: what is to be written.
        partition_by: the columns that name folders.
        folder_of: returns the name of a folder for a column and its value.
    """
    for name in partition_by:
        column = rows.column(name)
        if not _is_text(column.type):
            continue
        for value in column.unique().to_pylist():
            if value is not None and len(folder_of(name, value).encode()) > _LONGEST_NAME:
                return f"a text of {len(value)} characters in column {name!r}, which names the folder of its partition"
    return None


def _can_hold(format: str, type_: pa.DataType) -> bool:
    """Return whether a format can hold values of a type, so that Spark reads the same ones."""
    import pyarrow.types as types

    if types.is_duration(type_) or types.is_interval(type_):
        return False
    if format == "csv":
        return not (types.is_nested(type_) or _is_bytes(type_) or types.is_time(type_))
    if types.is_time(type_):
        return format == "parquet"
    if types.is_map(type_) and format == "json" and not _is_text(type_.key_type):
        # Names in an object are text, and Spark reads them back as nothing else.
        return False
    if types.is_map(type_):
        return _can_hold(format, type_.key_type) and _can_hold(format, type_.item_type)
    if types.is_struct(type_):
        return all(_can_hold(format, field.type) for field in type_)
    if types.is_list(type_) or types.is_large_list(type_):
        return _can_hold(format, type_.value_type)
    return True


def in_partitions(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the folder of each partition, as Hive and Spark name it, and its rows without the partition columns."""
    if not partition_by:
        yield "", rows
        return
    import pyarrow as pa

    folder = "_chandy_folder"
    names = [
        "/".join(partition_folder(name, value) for name, value in zip(partition_by, values, strict=True))
        for values in zip(*(rows.column(name).to_pylist() for name in partition_by), strict=True)
    ]
    wanted = rows.drop_columns(list(partition_by))
    number = pa.array(range(rows.num_rows), pa.int64())
    grouped = pa.table({folder: names, "row": number}).group_by(folder).aggregate([("row", "list")])
    for name, chosen in sorted(
        zip(grouped.column(folder).to_pylist(), grouped.column("row_list").to_pylist(), strict=True)
    ):
        yield f"{name}/", wanted.take(sorted(chosen))


def partition_folder(name: str, value: object) -> str:
    """Return the name of a partition's folder."""
    if value is None or value == "":
        text = NULL_PARTITION
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = _escaped(str(value))
    return f"{_escaped(name)}={text}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _can_partition(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(type_) or types.is_boolean(type_) or types.is_date(type_) or _is_text(type_))


def _is_text(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(type_) or types.is_large_string(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(type_) or types.is_large_binary(type_))


def _named_infinities(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of numbers as text if some are not finite; otherwise as it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pc.all(pc.is_finite(column), min_count=0).as_py():
        return column
    text = pc.cast(column, pa.string())
    for odd, name in ((math.inf, "Infinity"), (-math.inf, "-Infinity")):
        text = pc.if_else(pc.equal(column, odd), name, text)
    return pc.if_else(pc.is_nan(column), "NaN", text)


def _json_object(row: Mapping[str, Any], types: Mapping[str, pa.DataType]) -> dict[str, Any]:
    return {name: _json_value(value, types[name]) for name, value in row.items() if value is not None}


def _json_value(value: Any, type_: pa.DataType) -> object:
    import pyarrow as pa

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value).replace("nan", "NaN").replace("inf", "Infinity")
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if pa.types.is_map(type_):
        return {key: _json_value(item, type_.item_type) for key, item in value}
    if pa.types.is_struct(type_):
        return _json_object(value, {field.name: field.type for field in type_})
    return [_json_value(item, type_.value_type) for item in value]
