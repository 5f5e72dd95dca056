"""Map state: one map for each key. A large map is stored in parts by hash, which are read and written as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pyspark.sql.streaming.stateful_processor import MapState

from ..format import keyspace, parts
from ..format.packing import Packing, expiry_of
from ..format.parts import MapHeader
from ..format.rows import row_type
from ..format.values import StateName
from .variable import CurrentKey, is_live

Bucket = dict[bytes, bytes]
"""Packed values by packed keys."""

_OVERHEAD = 2 * parts.FRAME.size


class KeyedMapState(MapState):
    """A map for each key. A processor gets and gives copies: changing them later changes no state.

    With a time to live each entry expires separately, as in Spark. Two keys are the same if they pack to the same
    bytes. PySpark leaves the order of an iteration open; here entries are sorted by the bytes of their keys, so the
    order depends only on the entries. An iterator shows the map as it is when the first entry is taken.
    """

    def __init__(
        self,
        name: StateName,
        prefix: bytes,
        key_packing: Packing,
        packing: Packing,
        ttl_ms: int | None,
        current: CurrentKey,
    ) -> None:
        self.prefix = prefix
        self.ttl_ms = ttl_ms
        self._name = name
        self._key_packing = key_packing
        self._packing = packing
        self._row = row_type(packing.schema.names)
        self._current = current
        self._part_prefix = keyspace.part_prefix(name.state)
        self._inside = False
        self._held: bytes | None = None
        self._header: MapHeader | None = None
        self._changed = False
        self._buckets: dict[int, Bucket] = {}
        self._dirty: set[int] = set()
        self._dropped: set[int] = set()

    # --- for the engine -------------------------------------------------------------------------------------

    def enter(self, held: bytes | None) -> None:
        """Enter the current key, for which the shard has stored ``held``."""
        self._inside, self._held, self._header = True, held, None

    def leave(self) -> bytes | None:
        """Leave the key: put the parts of its map, and return the map's header."""
        header = self._header
        data = self._held if header is None or not self._changed else self._stored(header)
        self._inside = False
        return data

    def latest(self, data: bytes | None) -> int | None:
        """Return when the last entry expires, None if no entry expires."""
        return None if data is None else parts.latest(data)

    def clean(self) -> int | None:
        """Remove the entries that have expired."""
        header, now = self._open(), self._current.now
        expiries: list[int] = []
        for part in self._load_all():
            bucket = self._buckets[part]
            for key in [key for key, value in bucket.items() if not is_live(value, now)]:
                self._remove(part, key)
            expiries.extend(expiry for expiry in map(expiry_of, bucket.values()) if expiry is not None)
        latest = max(expiries, default=None)
        if header.latest != latest:
            # The entry with the latest expiry may have been removed or replaced before.
            header.latest, self._changed = latest, True
        return min(expiries, default=None)

    # --- for the processor ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether the map has an entry."""
        header = self._open("checking map state exists")
        if header.latest is None:
            return header.entries > 0
        return bool(self._live())

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 (PySpark's name)
        """Return the value of ``key`` as a Row, None if there is none.

        Raises:
            StateTypeError: the key does not fit the schema of the map's keys.
        """
        data = self._find(key, "getting value")
        if data is None:
            return None
        row: tuple[Any, ...] = tuple.__new__(self._row, self._packing.unpack_row(data))
        return row

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802
        """Return whether the map has an entry for ``key``.

        Raises:
            StateTypeError: the key does not fit the schema of the map's keys.
        """
        return self._find(key, "checking if map state contains key") is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        """Set the value of ``key``.

        Raises:
            StateTypeError: the key or the value does not fit the state's schema.
        """
        header = self._open("updating map state value")
        packed = self._key_packing.pack_row(key)
        expiry = None if self.ttl_ms is None else self._current.now + self.ttl_ms
        data = self._packing.pack_row(value, expiry)
        part = parts.bucket(packed, header.level)
        bucket = self._load(part)
        was = bucket.get(packed)
        if was == data:
            return
        bucket[packed] = data
        if was is None:
            header.entries += 1
            header.size += len(packed) + len(data) + _OVERHEAD
        else:
            header.size += len(data) - len(was)
        header.latest = parts.later(header.latest, expiry)
        self._dirty.add(part)
        self._changed = True

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Return the entries, as pairs of key and value."""
        unpack_key, unpack = self._key_packing.unpack_row, self._packing.unpack_row
        return ((unpack_key(key), unpack(value)) for key, value in self._iterate("getting map state"))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Return the keys."""
        unpack_key = self._key_packing.unpack_row
        return (unpack_key(key) for key, _ in self._iterate("getting map state"))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Return the values, in the order of their keys."""
        unpack = self._packing.unpack_row
        return (unpack(value) for _, value in self._iterate("getting map state"))

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        """Remove the entry for ``key``, if there is one.

        Raises:
            StateTypeError: the key does not fit the schema of the map's keys.
        """
        header = self._open("removing key from map state")
        packed = self._key_packing.pack_row(key)
        part = parts.bucket(packed, header.level)
        if packed in self._load(part):
            self._remove(part, packed)

    def clear(self) -> None:
        """Remove the map."""
        self._open("clearing map state")
        self._drop_parts()
        self._header, self._buckets, self._dirty, self._changed = MapHeader(), {0: {}}, set(), True

    # --- inside ---------------------------------------------------------------------------------------------

    def _open(self, doing: str = "getting state") -> MapHeader:
        if not self._inside:
            raise self._current.no_state(self._name.state, doing)
        if self._header is None:
            self._changed, self._buckets, self._dirty, self._dropped = False, {}, set(), set()
            header = self._header = MapHeader() if self._held is None else MapHeader.decode(self._held)
            if header.level == 0:
                self._buckets[0] = _entries(header.inline)
                header.entries, header.size = len(self._buckets[0]), len(header.inline)
        return self._header

    def _stored(self, header: MapHeader) -> bytes | None:
        """Put the parts that have changed; return the header."""
        if header.entries == 0:
            self._drop_parts()
        self._fit()
        if header.level == 0:
            header.inline = _framed(self._buckets.get(0, {}))
        else:
            for part in self._dirty:
                self._put(part, _framed(self._buckets[part]) or None)
        for part in self._dropped - (self._dirty if header.level else set()):
            self._put(part, None)
        return header.encode() if header.entries else None

    def _find(self, key: tuple[Any, ...], doing: str) -> bytes | None:
        header = self._open(doing)
        packed = self._key_packing.pack_row(key)
        data = self._load(parts.bucket(packed, header.level)).get(packed)
        return data if data is not None and is_live(data, self._current.now) else None

    def _iterate(self, doing: str) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over the entries, which reads them when the first is taken."""
        self._open(doing)
        return chain.from_iterable(live() for live in (self._live,))

    def _live(self) -> list[tuple[bytes, bytes]]:
        """Return the entries that have not expired, in the order of their keys."""
        self._open()
        now = self._current.now
        return sorted(
            (key, value)
            for part in self._load_all()
            for key, value in self._buckets[part].items()
            if is_live(value, now)
        )

    def _remove(self, part: int, key: bytes) -> None:
        header = self._open()
        header.entries -= 1
        header.size -= len(key) + len(self._buckets[part].pop(key)) + _OVERHEAD
        self._dirty.add(part)
        self._changed = True

    def _load(self, part: int) -> Bucket:
        if part not in self._buckets:
            self._fetch([part])
        return self._buckets[part]

    def _load_all(self) -> range:
        numbers = range(1 << self._open().level)
        missing = [part for part in numbers if part not in self._buckets]
        if missing:
            self._fetch(missing)
        return numbers

    def _fetch(self, numbers: list[int]) -> None:
        keys = [keyspace.part_key(self._part_prefix, part, self._current.key) for part in numbers]
        for part, data in zip(numbers, self._current.fetch(keys), strict=True):
            self._buckets[part] = _entries(data or b"")

    def _put(self, part: int, data: bytes | None) -> None:
        self._current.put(keyspace.part_key(self._part_prefix, part, self._current.key), data)

    def _drop_parts(self) -> None:
        """Mark the map's current parts for deletion."""
        header = self._open()
        if header.level:
            self._dropped.update(range(1 << header.level))

    def _fit(self) -> None:
        """Double or halve the number of parts until it fits the map's size.

        The number is doubled when the parts have more than a segment each on average, but halved only when they have
        less than an eighth of it. So a map whose size goes up and down is not rewritten each time.
        """
        header = self._open()
        level = header.level
        while header.size > parts.SEGMENT << level:
            level += 1
        while level and header.size <= (parts.SEGMENT << level) // 8:
            level -= 1
        if level == header.level:
            return
        entries = [item for part in self._load_all() for item in self._buckets[part].items()]
        self._drop_parts()
        self._buckets = {part: {} for part in range(1 << level)}
        for key, value in entries:
            self._buckets[parts.bucket(key, level)][key] = value
        header.level, self._dirty = level, set(self._buckets)


def _entries(data: bytes) -> Bucket:
    items = parts.split(data)
    return dict(zip(items[::2], items[1::2], strict=True))


def _framed(bucket: Bucket) -> bytes:
    # Sorted, so that the same entries always have the same bytes.
    return parts.join(item for entry in sorted(bucket.items()) for item in entry)
