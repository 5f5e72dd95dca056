"""Packs and unpacks single rows, in the format of ``packing``."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgpack
from pyspark.sql.types import BinaryType, DataType, DecimalType, FloatType, NullType, Row, StructType

from .slots import DECIMAL_BYTES, EXPIRES, EXPIRY_BYTES, Slots, is_nested, is_text
from .values import PLAIN, Convert, StateName, decoder, encoder, sequence

_EXPIRY: Final = struct.Struct("<q")
_TYPES: dict[type[DataType], type] = {**PLAIN, FloatType: float}
"""Types whose Python values need no conversion, except from a string to bytes."""
_ROWS: Final = frozenset({tuple, list, Row})
_SIGNATURES: Final = 64
"""The most combinations of types that one packer remembers; above that, rows are checked item by item."""
_HEAD_EXPIRING: Final = struct.Struct("<Bq")


class RowPacker:
    """Packs and unpacks the rows of one schema, under one version number."""

    def __init__(self, schema: StructType, version: int, name: StateName) -> None:
        """Compile the packer.

        Raises:
            DefinitionError: a field has a type that a state cannot hold.
        """
        self._schema = schema
        self._name = name
        types = [field.dataType for field in schema.fields]
        slots = Slots.of(schema)
        self._version = version
        self._first = bytes([version])
        self._bitmap = slots.bitmap
        self._slots = struct.Struct("<" + slots.code)
        self._whole = struct.Struct(f"<{1 + slots.bitmap}x{slots.code}")
        self._head = struct.Struct(f"<B{slots.bitmap}x{slots.code}")
        self._head_expiring = struct.Struct(f"<Bq{slots.bitmap}x{slots.code}")
        self._clean = bytes([version]) + bytes(slots.bitmap)
        """The first bytes of a row that has neither an expiry nor nulls."""
        self._variable = slots.variable
        self._encoders = [
            encoder(name, field.name, field.dataType, field.nullable) for field in schema.fields
        ]
        self._to_bytes = {at: _to_bytes(types[at]) for at in slots.variable}
        self._zeros = [bytes(DECIMAL_BYTES) if _is_bytes(dtype) else 0 for dtype in types]
        self._decoders = [
            (at, decode) for at, dtype in enumerate(types) if (decode := _decoder(dtype)) is not None
        ]
        self._primary = [_TYPES.get(type(dtype)) for dtype in types]
        self._signatures: dict[tuple[type, ...], int] = {}
        self._fixed = not slots.variable
        self._plain = self._fixed and not self._decoders
        if all(self._primary):
            self._signatures[tuple(filter(None, self._primary))] = 0

    def pack(self, row: Any, expiry_ms: int | None) -> bytes:
        """Return the bytes of a row: a tuple, Row, list, array or Series with one item a field, in schema order.

        A row of one string may also be given as the string.

        Raises:
            StateTypeError: the row has another shape, or an item has another type than its field.
        """
        if type(row) in _ROWS:
            nulls = self._signatures.get(tuple(map(type, row)))
            if nulls is not None:
                # struct finds out whether numbers fit their fields; if not, the checked way says which does not.
                try:
                    if nulls or not self._fixed:
                        return self._pack_known(row, nulls, expiry_ms)
                    if expiry_ms is None:
                        return self._head.pack(self._version, *row)
                    return self._head_expiring.pack(self._version | EXPIRES, expiry_ms, *row)
                except (struct.error, OverflowError, UnicodeEncodeError):
                    pass
        return self._pack_checked(row, expiry_ms)

    def unpack(self, data: bytes) -> tuple[Any, ...]:
        """Return the row with these bytes.

        Raises:
            StateTypeError: the bytes are no row of this schema.
        """
        try:
            if self._plain and data.startswith(self._clean):
                return self._whole.unpack(data)
            return self._unpack_any(data)
        except (struct.error, ValueError, IndexError, msgpack.UnpackException) as error:
            raise self._name.value_error(
                "", f"a packed row of {self._schema.simpleString()}", data
            ) from error

    def _pack_known(self, row: Sequence[Any], nulls: int, expiry_ms: int | None) -> bytes:
        """Pack a row whose items have types that need no check; ``nulls`` has a bit for each item that is null."""
        items: list[Any] = [0 if item is None else item for item in row] if nulls else list(row)
        tail: list[bytes] = []
        for at in self._variable:
            item = items[at]
            if item.__class__ is str:
                item = item.encode()
            elif item.__class__ is int:
                continue
            items[at] = len(item)
            tail.append(item)
        return self._join(items, tail, nulls, expiry_ms)

    def _pack_checked(self, given: Any, expiry_ms: int | None) -> bytes:
        row = self._items(given)
        items = [encode(item) for encode, item in zip(self._encoders, row, strict=True)]
        nulls = 0
        tail = []
        for at, item in enumerate(items):
            if item is None:
                nulls |= 1 << at
                items[at] = self._zeros[at]
            elif at in self._to_bytes:
                data = self._to_bytes[at](item)
                items[at] = len(data)
                tail.append(data)
        packed = self._join(items, tail, nulls, expiry_ms)
        self._remember(tuple(map(type, row)), nulls)
        return packed

    def _items(self, row: Any) -> Sequence[Any]:
        fields = self._schema.fields
        # PySpark takes a string as the sequence of its characters, which works for one character in one field.
        if isinstance(row, str) and len(fields) == 1 and is_text(fields[0].dataType):
            return (row,)
        with contextlib.suppress(TypeError):
            items = sequence(row)
            if len(items) == len(fields):
                return items
        shape = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in fields)
        raise self._name.value_error("", f"a tuple of {len(fields)} ({shape})", row)

    def _join(self, items: list[Any], tail: list[bytes], nulls: int, expiry_ms: int | None) -> bytes:
        head = self._first if expiry_ms is None else _HEAD_EXPIRING.pack(self._version | EXPIRES, expiry_ms)
        return b"".join((head, nulls.to_bytes(self._bitmap, "little"), self._slots.pack(*items), *tail))

    def _remember(self, signature: tuple[type, ...], nulls: int) -> None:
        """Pack later rows with items of these types without checking each item, if that gives the same bytes."""
        simple = all(
            primary is not None and found in (primary, type(None))
            for found, primary in zip(signature, self._primary, strict=True)
        )
        if simple and len(self._signatures) < _SIGNATURES:
            self._signatures[signature] = nulls

    def _unpack_any(self, data: bytes) -> tuple[Any, ...]:
        start = 1 + EXPIRY_BYTES if data[0] & EXPIRES else 1
        at = start + self._bitmap
        nulls = int.from_bytes(data[start:at], "little")
        items = list(self._slots.unpack_from(data, at))
        at += self._slots.size
        for position in self._variable:
            end = at + items[position]
            items[position] = data[at:end]
            at = end
        if at != len(data):
            raise ValueError(at)
        if nulls:
            items = [None if nulls >> position & 1 else item for position, item in enumerate(items)]
        for position, decode in self._decoders:
            item = items[position]
            if item is not None:
                items[position] = decode(item)
        return tuple(items)


def expiry_of(data: bytes) -> int | None:
    """Return when a packed row expires, in milliseconds since 1970; None if it does not."""
    if data[0] & EXPIRES:
        expiry: int = _EXPIRY.unpack_from(data, 1)[0]
        return expiry
    return None


def _is_bytes(dtype: DataType) -> bool:
    return isinstance(dtype, DecimalType | NullType)


def _to_bytes(dtype: DataType) -> Callable[[Any], bytes]:
    """Return a function that converts a stored value without a fixed width to bytes."""
    if is_nested(dtype):
        pack: Callable[[Any], bytes] = msgpack.Packer().pack
        return pack
    if isinstance(dtype, BinaryType):
        return bytes
    return str.encode


def _decoder(dtype: DataType) -> Convert | None:
    """Return a function that converts a slot's number, or the bytes behind the slots, to a Python value."""
    decode = decoder(dtype)
    if is_nested(dtype):
        assert decode is not None
        return lambda data: decode(msgpack.unpackb(data))
    if is_text(dtype):
        return bytes.decode
    return decode
