"""Rows as the files of a directory: their bytes, and the folders of their partitions."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The name of the folder for rows whose partition column is null or empty."""

_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")


def parquet(rows: pa.Table) -> bytes:
    """Return rows as a Parquet file."""
    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(rows, stream, compression="zstd")
    return stream.getvalue()


def json_lines(rows: pa.Table) -> bytes:
    """Return rows as JSON, one object a line. Nulls are left out, as Spark does."""
    return b"".join(
        json.dumps(_without_nulls(row), ensure_ascii=False, default=_json_value).encode() + b"\n"
        for batch in rows.to_batches()
        for row in batch.to_pylist()
    )


def csv(rows: pa.Table) -> bytes:
    """Return rows as CSV with a header. Quotes in a value are doubled. An empty text is quoted, and a null is not."""
    from pyarrow import csv as arrow_csv

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
    import pyarrow.types as types

    found = [f"no column {name!r} to partition by" for name in partition_by if name not in schema.names]
    if schema.names and not set(schema.names) - set(partition_by):
        found.append("no column besides those to partition by")
    for field in schema:
        if field.name in partition_by and not _can_partition(field.type):
            found.append(f"column {field.name!r}, which is {field.type}, to partition by")
        elif format == "csv" and (types.is_nested(field.type) or _is_bytes(field.type)):
            found.append(f"column {field.name!r}, which is {field.type}, in CSV")
    return found


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

    return bool(
        types.is_integer(type_)
        or types.is_boolean(type_)
        or types.is_date(type_)
        or types.is_string(type_)
        or types.is_large_string(type_)
    )


def _is_bytes(type_: pa.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(type_) or types.is_large_binary(type_))


def _without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _json_value(value: object) -> object:
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"JSON has no {type(value).__name__}")
