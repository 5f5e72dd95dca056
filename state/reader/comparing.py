"""Compares one state in two checkpoints, item by item: what was added, removed and changed.

Both sides are scanned in the order of their keys and merged, so that memory holds the state of one key. Items stay as
they are stored: ``differences`` decodes them for people, ``changes`` for programs.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import attrs
from rocksdict import Rdict

from ...storage.checkpoints.files import FileCache, is_immutable
from ...storage.checkpoints.manifest import Handle, OperatorRecord, StateKind
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ...storage.store import Store
from ..format import keyspace, parts
from ..format.packing import Packing
from ..format.schema import bare, from_json
from ..format.values import StateName
from .plain_values import values_of
from .stored import MODES, TIMERS, StoredState, opened, scan

T = TypeVar("T")

Shards = Sequence[Handle | None]

_TIMED: Final = {TIMERS: sorted(MODES), keyspace.LETTERS: [keyspace.DEAD_LETTERS]}
"""What is stored by time, each with the prefixes of its entries. Each entry is an item."""
_PIECE: Final = 1024
"""The number of items that are decoded at a time."""
_VERSION: Final = 0x7F
"""The bits of a packed row's first byte that say which schema it has."""


class Change(enum.StrEnum):
    """How something differs between two checkpoints."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


# --- shards -------------------------------------------------------------------------------------------------


def shard_pairs(old: Shards, new: Shards) -> Iterator[tuple[Shards, Shards]]:
    """Yield shards that can have the same keys: one by one if there are as many of them, otherwise all together."""
    if len(old) == len(new):
        yield from (([one], [other]) for one, other in zip(old, new, strict=True))
    elif old and new:
        yield old, new
    else:
        yield from (([handle], ()) for handle in old)
        yield from (((), [handle]) for handle in new)


def same_files(old: Shards, new: Shards) -> bool:
    """Return whether shards hold the same without looking into them.

    What a database holds is in its immutable files; the others, which describe it, differ in each snapshot.
    """
    return len(old) == len(new) == 1 and _content(old[0]) == _content(new[0])


def _content(handle: Handle | None) -> set[tuple[str, int]]:
    files = handle.files if handle else ()
    return {(file.sha256, file.size) for file in files if is_immutable(file.name)}


@contextmanager
def opened_pair(
    stores: tuple[Store, Store], pair: tuple[Shards, Shards], cache: FileCache | None = None
) -> Iterator[tuple[list[Rdict], list[Rdict]]]:
    """Download shards of both checkpoints and open them for reading. What both sides share is downloaded once.

    Args:
        stores: of the old and of the new checkpoint.
        pair: their shards.
        cache: keeps what is downloaded; None: it is kept as long as the shards are open.

    Raises:
        DamagedError, ObjectMissingError: a file cannot be read.
    """
    with scratch_directory("diff") as folder, ExitStack() as stack:
        shared = cache or FileCache(folder / "cache")
        old, new = (
            _opened(stack, store, shards, folder / side, shared)
            for store, shards, side in zip(stores, pair, ("old", "new"), strict=True)
        )
        yield old, new


def _opened(stack: ExitStack, store: Store, shards: Shards, folder: Path, cache: FileCache) -> list[Rdict]:
    databases = []
    for number, handle in enumerate(shards):
        if handle is not None:
            restore_files(store, handle, folder / str(number), cache)
            databases.append(stack.enter_context(opened(folder / str(number))))
    return databases


# --- a state ------------------------------------------------------------------------------------------------


@attrs.frozen
class Item:
    """An item that may differ."""

    key: bytes
    place: int | bytes
    """As ``StoredState.items`` says; of a timer the bytes of its mode and time, of a letter all but its key."""
    old: bytes | None
    """The packed value, None if there was no such item; of a timer, which has no value, no bytes."""
    new: bytes | None
    """The same, as it is in the other checkpoint."""

    @property
    def change(self) -> Change:
        """How the item differs."""
        if self.old is None:
            return Change.ADDED
        return Change.REMOVED if self.new is None else Change.CHANGED


@attrs.frozen
class StateComparison:
    """One state in both checkpoints, or in one of them."""

    name: str
    kind: str
    states: tuple[StoredState | None, StoredState | None]
    packings: tuple[Packing | None, Packing | None]
    """What decodes the items of each side; None for timers and for a side without the state."""
    comparable: bool
    """Whether the same keys and places have the same bytes on both sides."""
    same_bytes: bool
    """Whether the same bytes mean the same on both sides."""

    @classmethod
    def of(
        cls, uid: str, name: str, old: OperatorRecord | None, new: OperatorRecord | None
    ) -> StateComparison:
        """Return the comparison of a state.

        Args:
            uid: of the operator.
            name: of the state; ``TIMERS``: the timers; ``keyspace.LETTERS``: the dead letters.
            old, new: what the checkpoints say of the operator; None if they do not have it.
        """
        states = tuple(_stored(name, record) for record in (old, new))
        comparable = _is_comparable(*states)
        versions = [list(state.record.versions) if state and state.record else [] for state in states]
        same_bytes = comparable and _extends(*versions)
        if same_bytes:
            # The values of both sides as the newest schema reads them.
            versions = [max(versions, key=len)] * 2
        packings = [
            Packing([from_json(version) for version in one], StateName(uid, name)) if one else None
            for one in versions
        ]
        kinds = [state.record.kind.value for state in states if state and state.record]
        return cls(
            name=name,
            kind=kinds[-1] if kinds else "timers",
            states=(states[0], states[1]),
            packings=(packings[0], packings[1]),
            comparable=comparable,
            same_bytes=same_bytes,
        )

    def differing(self, old: Sequence[Rdict], new: Sequence[Rdict]) -> Iterator[Item]:
        """Yield what differs between databases, in the order of keys and places.

        Args:
            old: the shards of the old checkpoint that can have the same keys as those in ``new``.
            new: the shards of the new checkpoint.

        Raises:
            StateTypeError: stored bytes do not fit the state's record.
        """
        for piece in pieces(self._candidates(old, new)):
            yield from (item for item, differs in zip(piece, self._differ(piece), strict=True) if differs)

    def _candidates(self, old: Sequence[Rdict], new: Sequence[Rdict]) -> Iterator[Item]:
        if self.comparable:
            yield from self._aligned(self._entries(0, old), self._entries(1, new))
        else:
            yield from self._aligned(self._entries(0, old), iter(()))
            yield from self._aligned(iter(()), self._entries(1, new))

    def _entries(self, side: int, databases: Sequence[Rdict]) -> Iterator[_Entry]:
        if self.states[side] is None:
            return iter(())
        if len(databases) == 1:
            return self._scan(databases[0])
        return heapq.merge(*(self._scan(db) for db in databases), key=_entry_key)

    def _scan(self, db: Rdict) -> Iterator[_Entry]:
        if self.name in _TIMED:
            for prefix in _TIMED[self.name]:
                yield from ((key, data, db) for key, data in scan(db, prefix))
        else:
            prefix = keyspace.value_prefix(self.name)
            yield from ((key[len(prefix) :], data, db) for key, data in scan(db, prefix))

    def _aligned(self, old: Iterator[_Entry], new: Iterator[_Entry]) -> Iterator[Item]:
        for key, one, other in _merged(old, new):
            if self.name in _TIMED:
                _, whose = keyspace.owner_of(key)
                item = Item(whose, key[: len(key) - len(whose)], one and one[1], other and other[1])
                if item.old != item.new:
                    yield item
            elif not (
                self.same_bytes and one and other and _is_whole(one[1], self.kind) and one[1] == other[1]
            ):
                yield from self._items(key, one, other)

    def _items(self, key: bytes, one: _Entry | None, other: _Entry | None) -> Iterator[Item]:
        old, new = (
            {} if entry is None else self._held(side, entry) for side, entry in enumerate((one, other))
        )
        for place in sorted(old.keys() | new.keys()):
            was, now = old.get(place), new.get(place)
            if not self.same_bytes or was != now:
                yield Item(key, place, was, now)

    def _held(self, side: int, entry: _Entry) -> dict[Any, bytes]:
        state = self.states[side]
        assert state is not None, "a side without the state has no entries"
        key, data, db = entry
        return dict(state.items_of(db, key, data))

    def _differ(self, items: Sequence[Item]) -> list[bool]:
        """Return for each item whether it differs; the same value may be stored in two ways."""
        unclear = [not self.same_bytes or _is_rewritten(item) for item in items]
        if not any(unclear):
            return [True] * len(items)
        old, new = self.values(items, "old"), self.values(items, "new")
        return [not again or one != other for again, one, other in zip(unclear, old, new, strict=True)]

    def values(self, items: Sequence[Item], side: Literal["old", "new"]) -> list[dict[str, Any] | None]:
        """Return the values that items have on a side, as ``plain_values.values_of`` has them."""
        return values_of(self.packings[0 if side == "old" else 1], [getattr(item, side) for item in items])

    def side_of(self, item: Item) -> StoredState:
        """Return the state on a side that has the item."""
        state = self.states[1] if item.old is None else self.states[0]
        assert state is not None, "the side that an item is from has the state"
        return state


_Entry = tuple[bytes, bytes, Rdict]
"""A key, what is stored of it, and the database that has it."""


def _entry_key(entry: _Entry) -> bytes:
    return entry[0]


def _merged(
    old: Iterator[_Entry], new: Iterator[_Entry]
) -> Iterator[tuple[bytes, _Entry | None, _Entry | None]]:
    """Yield the keys of both, in order, each with its entry on either side; both must be in order."""
    one, other = next(old, None), next(new, None)
    while one is not None and other is not None:
        if one[0] == other[0]:
            yield one[0], one, other
            one, other = next(old, None), next(new, None)
        elif one[0] < other[0]:
            yield one[0], one, None
            one = next(old, None)
        else:
            yield other[0], None, other
            other = next(new, None)
    while one is not None:
        yield one[0], one, None
        one = next(old, None)
    while other is not None:
        yield other[0], None, other
        other = next(new, None)


def _is_whole(data: bytes, kind: str) -> bool:
    """Return whether all that a key holds is in its value; a large list or map has further parts."""
    return kind == StateKind.VALUE.value or not data[0] & parts.LARGE


def _is_rewritten(item: Item) -> bool:
    """Return whether an item is in both checkpoints, with schemas that differ."""
    return bool(item.old and item.new and (item.old[0] ^ item.new[0]) & _VERSION)


def same_schema(old: str, new: str) -> bool:
    """Return whether two schemas in Spark's JSON have the same columns."""
    return old == new or bare(from_json(old)) == bare(from_json(new))


def _stored(name: str, operator: OperatorRecord | None) -> StoredState | None:
    """Return a state as a checkpoint has it; None if it does not."""
    if operator is None or (name not in _TIMED and name not in operator.states):
        return None
    return StoredState.of(operator, name)


def _is_comparable(old: StoredState | None, new: StoredState | None) -> bool:
    if old is None or new is None or not same_schema(old.key_schema, new.key_schema):
        return False
    if old.record is None or new.record is None:
        return old.record is new.record
    return (old.record.kind, old.record.map_key) == (new.record.kind, new.record.map_key)


def _extends(old: list[str], new: list[str]) -> bool:
    """Return whether the schemas of one side are those of the other, and perhaps later ones."""
    common = min(len(old), len(new))
    return old[:common] == new[:common]


def pieces(items: Iterator[T]) -> Iterator[list[T]]:
    """Yield items in lists of as many as are decoded at a time."""
    while piece := list(islice(items, _PIECE)):
        yield piece
