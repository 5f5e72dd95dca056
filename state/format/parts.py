"""The layout of one key's list or map: in one value while it is small, otherwise in further parts.

The value of a list or map variable is a header. It begins with a byte of flags. If ``EXPIRES`` is set, the greatest
expiry of the items follows (8 bytes). All numbers are little-endian. All items are framed: 4 bytes of length, then
the bytes.

| | header goes on with |
|---|---|
| list | if ``LARGE``: number of the first part, number behind the last (4 bytes each). Then the last elements |
| map | if ``LARGE``: level (1 byte), entries and bytes of all entries (8 bytes each). Else all entries |

The parts of a list hold its earlier elements, in order; a full part is never written again. A map of level ``n`` has
its entries, each a key and a value, in ``2 ** n`` parts by the lowest ``n`` bits of the key's CRC-32.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import attrs

from ...storage.checkpoints.manifest import StateKind
from . import keyspace

SEGMENT = 4096
"""Bytes of the items in a header or part above which a list begins another part, or a map doubles its parts."""

LARGE: Final = 1
EXPIRES: Final = 2

FRAME: Final = struct.Struct("<I")
_LIST: Final = struct.Struct("<II")
_MAP: Final = struct.Struct("<BQQ")
_EXPIRY: Final = struct.Struct("<q")


def split(data: bytes) -> list[bytes]:
    """Return the items of framed bytes."""
    items, at, end = [], 0, len(data)
    unpack = FRAME.unpack_from
    while at < end:
        start = at + 4
        at = start + unpack(data, at)[0]
        items.append(data[start:at])
    return items


def join(items: Iterable[bytes]) -> bytes:
    """Return items as framed bytes."""
    pack = FRAME.pack
    return b"".join(piece for item in items for piece in (pack(len(item)), item))


def bucket(key: bytes, level: int) -> int:
    """Return the number of the part that has the entry of a map's key, among ``2 ** level`` parts."""
    return zlib.crc32(key) & ((1 << level) - 1)


def later(one: int | None, other: int | None) -> int | None:
    """Return the later of two times, either of which may be missing."""
    if one is None or other is None:
        return one if other is None else other
    return max(one, other)


@attrs.define
class ListHeader:
    """The header of a list."""

    first: int = 0
    stop: int = 0
    """The parts from ``first`` up to, not including, ``stop`` come before the tail."""
    latest: int | None = None
    """The greatest expiry of the elements; None if none of them expires."""
    tail: bytes = b""
    """The last elements, framed; empty only if the list is empty."""

    def encode(self) -> bytes:
        """Return the header as bytes."""
        large = self.first < self.stop
        parts = _LIST.pack(self.first, self.stop) if large else b""
        return _start(large, self.latest) + parts + self.tail

    @classmethod
    def decode(cls, data: bytes) -> ListHeader:
        """Return the header with these bytes."""
        large, latest, at = _read_start(data)
        first, stop = _LIST.unpack_from(data, at) if large else (0, 0)
        return cls(first, stop, latest, data[at + _LIST.size * large :])


@attrs.define
class MapHeader:
    """The header of a map."""

    level: int = 0
    """0: all entries are in the value itself."""
    entries: int = 0
    """The number of entries; stored only if they are in further parts."""
    size: int = 0
    """Bytes of all entries, framed; stored only if they are in further parts."""
    latest: int | None = None
    """The greatest expiry of all entries that were ever written into the map; None if none had an expiry."""
    inline: bytes = b""
    """All entries, framed, if level is 0."""

    def encode(self) -> bytes:
        """Return the header as bytes."""
        large = self.level > 0
        rest = _MAP.pack(self.level, self.entries, self.size) if large else self.inline
        return _start(large, self.latest) + rest

    @classmethod
    def decode(cls, data: bytes) -> MapHeader:
        """Return the header with these bytes."""
        large, latest, at = _read_start(data)
        if large:
            level, entries, size = _MAP.unpack_from(data, at)
            return cls(level, entries, size, latest)
        return cls(latest=latest, inline=data[at:])


def latest(data: bytes) -> int | None:
    """Return the greatest expiry in the header of a list or map."""
    return _read_start(data)[1]


def part_keys(kind: StateKind, where: bytes, header: bytes) -> list[bytes]:
    """Return the keys of the parts that a list or map has besides its header; a value has none.

    Args:
        kind: of the state.
        where: the key of the header.
    """
    if kind is StateKind.VALUE:
        return []
    if kind is StateKind.LIST:
        items = ListHeader.decode(header)
        numbers = range(items.first, items.stop)
    else:
        level = MapHeader.decode(header).level
        numbers = range(1 << level if level else 0)
    name = keyspace.variable_of(where)
    return [
        keyspace.part_key(keyspace.IN_PART + name, number, where.removeprefix(name)) for number in numbers
    ]


def _start(large: bool, expiry: int | None) -> bytes:
    flags = LARGE * large | EXPIRES * (expiry is not None)
    return bytes([flags]) + (b"" if expiry is None else _EXPIRY.pack(expiry))


def _read_start(data: bytes) -> tuple[bool, int | None, int]:
    """Return whether there are further parts, the greatest expiry, and where the rest of the header begins."""
    flags = data[0]
    if flags & EXPIRES:
        return bool(flags & LARGE), _EXPIRY.unpack_from(data, 1)[0], 1 + _EXPIRY.size
    return bool(flags & LARGE), None, 1
