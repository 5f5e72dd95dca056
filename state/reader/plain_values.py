"""Stored keys and values as what JSON can hold, so that people can read and compare them."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from ..format.arrow import BYTES, listed
from ..format.keys import KeyCodec
from ..format.packing import Packing, expiries
from ..format.schema import from_json

_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)


def decoded_key(schema: str, key: bytes) -> dict[str, Any]:
    """Return the key columns of a key, given their schema as Spark's JSON and the key's canonical bytes."""
    table = KeyCodec(from_json(schema)).decode_columns(pa.array([key], BYTES))
    return {name: _plain(listed(table.column(name).chunk(0))[0]) for name in table.column_names}


def rows_of(packing: Packing, packed: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """Return the fields of packed values; None where there is no value."""
    rows = packing.unpack(pa.array(packed, BYTES))
    columns = [map(_plain, listed(column)) for column in rows.flatten()]
    names = packing.schema.names
    fields: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
    return [
        None if data is None else dict(zip(names, values, strict=True))
        for data, values in zip(packed, fields, strict=True)
    ]


def values_of(packing: Packing | None, packed: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    """Return the fields of stored items and when they are to expire, unless never; None where there is no item.

    Args:
        packing: what the items are packed with; None: they have no fields.
        packed: the items.
    """
    if packing is None:
        return [None if data is None else {} for data in packed]
    rows = rows_of(packing, packed)
    times: list[int | None] = expiries(pa.array(packed, BYTES)).to_pylist()
    return [
        row if row is None or time is None else row | {_free_name("expires_at", row): moment(time)}
        for row, time in zip(rows, times, strict=True)
    ]


def _free_name(name: str, taken: Iterable[str]) -> str:
    return f"state_{name}" if name in taken else name


def moment(milliseconds: int) -> str:
    """Return a time in milliseconds since 1970 as text."""
    try:
        return (_EPOCH + datetime.timedelta(milliseconds=milliseconds)).isoformat()
    except OverflowError:
        return f"{milliseconds} ms since 1970"


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it, without making two different ones the same."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        # JSON has neither NaN nor infinities, and NaN does not equal itself.
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    # A list, or a map as a list of pairs.
    return [_plain(item) for item in value]
