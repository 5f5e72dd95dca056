"""List state: one list for each key. A long list is stored in parts, and appending writes only the last part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import ListState

from ..format import keyspace, parts
from ..format.packing import Packing, expiry_of
from ..format.parts import ListHeader
from ..format.values import StateName
from .variable import CurrentKey, is_live

_AHEAD: Final = 16
"""The number of parts to fetch at a time when it is not known how many are needed."""


class KeyedListState(ListState):
    """A list for each key. A processor gets and gives copies: changing them later changes no state.

    With a time to live each element expires separately, as in Spark. An iterator shows the list as it is when the first
    element is taken, even if it changes later (found by experiment on PySpark 4.3).
    """

    def __init__(
        self, name: StateName, prefix: bytes, packing: Packing, ttl_ms: int | None, current: CurrentKey
    ) -> None:
        self.prefix = prefix
        self.ttl_ms = ttl_ms
        self._name = name
        self._packing = packing
        self._current = current
        self._part_prefix = keyspace.part_prefix(name.state)
        self._inside = False
        self._held: bytes | None = None
        self._header: ListHeader | None = None
        self._changed = False
        self._parts: dict[int, bytes | None] = {}

    # --- for the engine -------------------------------------------------------------------------------------

    def enter(self, held: bytes | None) -> None:
        """Enter the current key, for which the shard has stored ``held``."""
        self._inside, self._held, self._header = True, held, None

    def leave(self) -> bytes | None:
        """Leave the key: put the parts of its list, and return the list's header."""
        self._inside = False
        header = self._header
        if header is None or not self._changed:
            return self._held
        for part, data in self._parts.items():
            self._current.put(keyspace.part_key(self._part_prefix, part, self._current.key), data)
        return header.encode() if header.tail else None

    def latest(self, data: bytes | None) -> int | None:
        """Return when the last element expires, None if no element expires."""
        return None if data is None else parts.latest(data)

    def clean(self) -> int | None:
        """Remove the parts in which all elements have expired, and the expired elements of the tail.

        A part with a live element stays as it is, because reads do not see its expired elements. Elements expire in
        their order, unless the time to live has become shorter: then the list is written again without those that have
        expired, once they are the greater part of it.
        """
        header, now = self._open(), self._current.now
        while header.first < header.stop:
            numbers = list(range(header.first, min(header.first + _AHEAD, header.stop)))
            for number, data in zip(numbers, self._fetch(numbers), strict=True):
                live = [item for item in parts.split(data) if is_live(item, now)]
                if live:
                    return self._clean_behind() if self._outlives_others(live[0]) else self._next(live)
                self._parts[number] = None
                header.first, self._changed = number + 1, True
        items = parts.split(header.tail)
        live = [item for item in items if is_live(item, now)]
        if len(live) < len(items):
            header.tail, self._changed = parts.join(live), True
        return self._next(live)

    def _outlives_others(self, item: bytes) -> bool:
        """Return whether an element lives longer than one that is appended now, and so perhaps than those behind it."""
        expiry = expiry_of(item)
        return expiry is None or self.ttl_ms is None or expiry > self._current.now + self.ttl_ms

    def _clean_behind(self) -> int | None:
        """Remove expired elements anywhere, if they have more bytes than the live ones; return when to check again."""
        header, now = self._open(), self._current.now
        items = [item for piece in self._pieces() for item in parts.split(piece)]
        live = [item for item in items if is_live(item, now)]
        if 2 * sum(map(len, live)) < sum(map(len, items)):
            for part in range(header.first, header.stop):
                self._parts[part] = None
            header.first, header.tail, self._changed = header.stop, b"", True
            self._fill(header, live)
            header.latest = max(
                (expiry for expiry in map(expiry_of, live) if expiry is not None), default=None
            )
        return min((expiry for expiry in map(expiry_of, live) if expiry is not None), default=None)

    # --- for the processor ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether the list has an element."""
        header = self._open("checking value state exists")
        if header.latest is None or not header.tail or header.latest > self._current.now:
            return bool(header.tail)
        return bool(self._elements())

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Return the elements, in order."""
        self._open("getting list state")
        return map(self._packing.unpack_row, chain.from_iterable(look() for look in (self._elements,)))

    def put(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N803 (PySpark's name)
        """Replace the list.

        Raises:
            StateTypeError: an element does not fit the state's schema, or ``newState`` is empty.
        """
        packed = self._packed(newState, "updating value state")
        self.clear()
        self._append(packed)

    def appendValue(self, newState: tuple[Any, ...]) -> None:  # noqa: N802, N803
        """Append an element.

        Raises:
            StateTypeError: the element does not fit the state's schema.
        """
        self._open("updating value state")
        self._append([self._packing.pack_row(newState, self._expiry())])

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:  # noqa: N802, N803
        """Append elements: all, or none if one of them does not fit.

        Raises:
            StateTypeError: an element does not fit the state's schema, or ``newState`` is empty.
        """
        self._append(self._packed(newState, "updating value state"))

    def clear(self) -> None:
        """Remove the list."""
        header = self._open("clearing value state")
        for part in range(header.first, header.stop):
            self._parts[part] = None
        self._header, self._changed = ListHeader(), True

    # --- inside ---------------------------------------------------------------------------------------------

    def _open(self, doing: str = "getting state") -> ListHeader:
        if not self._inside:
            raise self._current.no_state(self._name.state, doing)
        if self._header is None:
            self._header = ListHeader() if self._held is None else ListHeader.decode(self._held)
            self._changed, self._parts = False, {}
        return self._header

    def _next(self, live: Iterable[bytes]) -> int | None:
        """Return when to check the list again, if these are its first elements that are left."""
        first = min((expiry for expiry in map(expiry_of, live) if expiry is not None), default=None)
        latest = self._open().latest
        # Elements from before there was a time to live never expire, but those behind them may.
        return latest if first is None and latest is not None and latest > self._current.now else first

    def _expiry(self) -> int | None:
        return None if self.ttl_ms is None else self._current.now + self.ttl_ms

    def _packed(self, values: Iterable[tuple[Any, ...]], doing: str) -> list[bytes]:
        self._open(doing)
        expiry = self._expiry()
        packed = [self._packing.pack_row(value, expiry) for value in values]
        if not packed:
            raise self._name.error("", "at least one element (clear empties a list)", "an empty list")
        return packed

    def _append(self, packed: list[bytes]) -> None:
        header = self._open()
        self._fill(header, packed)
        header.latest = parts.later(header.latest, self._expiry())
        self._changed = True

    def _fill(self, header: ListHeader, packed: Iterable[bytes]) -> None:
        for item in packed:
            if header.tail and len(header.tail) + len(item) + parts.FRAME.size > parts.SEGMENT:
                self._parts[header.stop] = header.tail
                header.stop, header.tail = header.stop + 1, b""
            header.tail += parts.FRAME.pack(len(item)) + item

    def _elements(self) -> list[bytes]:
        """Return the elements that have not expired, packed."""
        now = self._current.now
        every = chain.from_iterable(map(parts.split, self._pieces()))
        return [item for item in every if is_live(item, now)]

    def _pieces(self) -> list[bytes]:
        """Return all elements, those of each part and then those of the tail framed together."""
        header = self._open()
        return [*self._fetch(range(header.first, header.stop)), header.tail]

    def _fetch(self, numbers: Iterable[int]) -> list[bytes]:
        """Return parts of the list, from the shard unless they were changed while this key was processed."""
        wanted = list(numbers)
        missing = [part for part in wanted if part not in self._parts]
        key = self._current.key if missing else b""
        keys = [keyspace.part_key(self._part_prefix, part, key) for part in missing]
        found = dict(zip(missing, self._current.fetch(keys), strict=True)) if missing else {}
        return [self._parts[part] if part in self._parts else found[part] for part in wanted]  # type: ignore[misc]
