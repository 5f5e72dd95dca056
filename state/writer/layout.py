"""Lays out a whole list or map of one key in its header and parts, as operators store it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from ..format import keyspace, parts
from ..format.packing import expiry_of


@attrs.frozen
class Layout:
    """What a shard stores of one key of a list or map state."""

    header: bytes
    parts: Mapping[int, bytes]
    """The further parts by their numbers."""


def list_layout(items: Iterable[bytes]) -> Layout:
    """Lay out a list of at least one element.

    Args:
        items: its packed elements, in order.
    """
    header, further = parts.ListHeader(), {}
    for item in items:
        if header.tail and len(header.tail) + len(item) + parts.FRAME.size > parts.SEGMENT:
            further[header.stop] = header.tail
            header.stop, header.tail = header.stop + 1, b""
        header.tail += parts.join([item])
        header.latest = parts.later(header.latest, expiry_of(item))
    return Layout(header.encode(), further)


def map_layout(entries: Mapping[bytes, bytes]) -> Layout:
    """Lay out a map of at least one entry.

    Args:
        entries: its packed values by its packed keys.
    """
    framed = {key: parts.join([key, entries[key]]) for key in sorted(entries)}
    header = parts.MapHeader(entries=len(entries), size=sum(map(len, framed.values())))
    for value in entries.values():
        header.latest = parts.later(header.latest, expiry_of(value))
    while header.size > parts.SEGMENT << header.level:
        header.level += 1
    if header.level == 0:
        header.inline = b"".join(framed.values())
        return Layout(header.encode(), {})
    further: dict[int, list[bytes]] = {}
    for key, item in framed.items():
        further.setdefault(parts.bucket(key, header.level), []).append(item)
    return Layout(header.encode(), {part: b"".join(items) for part, items in further.items()})


def list_parts(header: bytes) -> range:
    """Return the numbers of a list's further parts, given its header."""
    found = parts.ListHeader.decode(header)
    return range(found.first, found.stop)


def map_parts(header: bytes) -> range:
    """Return the numbers that a map's further parts can have, given its header."""
    level = parts.MapHeader.decode(header).level
    return range(1 << level) if level else range(0)


def part_keys(name: str, key: bytes, numbers: Iterable[int]) -> list[bytes]:
    """Return the keys under which a shard has further parts of a key's list or map."""
    prefix = keyspace.part_prefix(name)
    return [keyspace.part_key(prefix, number, key) for number in numbers]
