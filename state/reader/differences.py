"""Compares the state of operators in two checkpoints: what was added, removed and changed, key by key.

Both sides of a state are scanned in the order of their keys and merged. So memory holds the state of one key, and the
differences to show. A shard is downloaded only if its files differ.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from rocksdict import Rdict

from ...storage.checkpoints.files import FileCache, is_immutable
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import Handle, OperatorRecord, StateKind
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.scratch import scratch_directory
from ...storage.store import Store
from ..errors import NoSuchStateError
from ..format import keyspace, parts
from ..format.arrow import BYTES
from ..format.keys import KeyCodec
from ..format.packing import Packing, expiries
from ..format.schema import bare, from_json
from ..format.values import StateName
from .stored import MODES, TIMERS, StoredState, opened, scan

T = TypeVar("T")

_PIECE: Final = 1024
"""The number of items that are decoded at a time."""
_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
_VERSION: Final = 0x7F
"""The bits of a packed row's first byte that say which schema it has."""


class Change(enum.StrEnum):
    """How something differs between two checkpoints."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@attrs.frozen
class Difference:
    """One value of a key, element of a list, entry of a map or timer that differs. All values fit into JSON."""

    change: Change
    key: dict[str, Any]
    """The key columns."""
    place: dict[str, Any]
    """Which item of the key: the position in a list, the key in a map, mode and time of a timer; else empty."""
    old: dict[str, Any] | None
    """The fields that the item had, and when it was to expire, unless never; None if there was no such item."""
    new: dict[str, Any] | None
    """The same, as it is in the other checkpoint."""


@attrs.define
class StateDifferences:
    """The differences of one state. Items are counted: values, elements of lists, entries of maps, timers."""

    name: str
    kind: str
    """"value", "list", "map" or "timers"."""
    added: int = 0
    removed: int = 0
    changed: int = 0
    shown: list[Difference] = attrs.field(factory=list)
    """The first of them."""

    @property
    def total(self) -> int:
        """The number of differences."""
        return self.added + self.removed + self.changed

    def count(self, change: Change) -> None:
        """Count one more."""
        setattr(self, change.value, getattr(self, change.value) + 1)


@attrs.frozen
class OperatorDifferences:
    """The differences of one operator."""

    uid: str
    query: str
    change: Change | None
    """Added or removed if only one checkpoint has the operator, changed if its keys have other columns; else None."""
    shards: tuple[int, int]
    """The number of shards in the old and in the new checkpoint; 0 if it does not have the operator."""
    read: int
    """How many shards were read, in both checkpoints together. The others are the same, file by file."""
    states: tuple[StateDifferences, ...]


def compare(
    old: Located, new: Located, *, operator: str | None = None, state: str | None = None, limit: int = 20
) -> Iterator[OperatorDifferences]:
    """Compare the state of the operators in two checkpoints, one operator after the other.

    Items with an expiry count as long as they are stored. Lists are compared position by position. Values of an older
    schema are compared as the newest one reads them. If the columns of the keys, the kind of a state or the keys of a
    map differ, all items count as removed and as added.

    Args:
        old: a checkpoint or savepoint.
        new: another one, which may be in another store, and of another pipeline.
        operator: uid of the only operator to compare.
        state: name of the only state to compare; "$timers": timers.
        limit: the most differences to show of each state; all are counted.

    Raises:
        NoSuchStateError: neither checkpoint has such an operator or such a state.
        DamagedError, ObjectMissingError: a file of a shard cannot be read.
        StateTypeError: stored bytes do not fit the state's record.
    """
    before = {record.uid: record for record in old.manifest.operators}
    after = {record.uid: record for record in new.manifest.operators}
    uids = _chosen("operator", operator, [*before, *(uid for uid in after if uid not in before)])
    both = {uid: (before.get(uid), after.get(uid)) for uid in uids}
    names = {uid: _names(*records) for uid, records in both.items()}
    known = _chosen("state", state, list(dict.fromkeys(name for found in names.values() for name in found)))
    for uid, records in both.items():
        chosen = [name for name in names[uid] if name in known]
        if chosen:
            yield _Operator(uid, (old.store, new.store), records).compare(chosen, limit)


def _chosen(option: str, wanted: str | None, there: list[str]) -> list[str]:
    if wanted is None:
        return there
    if wanted not in there:
        names = ", ".join(map(repr, there))
        expected = f"one of {names}" if names else f"a checkpoint with an {option}"
        what = f"cannot compare {option} {wanted!r}, which neither checkpoint has"
        raise NoSuchStateError(what, expected, repr(wanted), f"choose one with --{option}")
    return [wanted]


def _names(*records: OperatorRecord | None) -> list[str]:
    return list(dict.fromkeys([name for record in records if record for name in record.states] + [TIMERS]))


# --- an operator --------------------------------------------------------------------------------------------

Shards = Sequence[Handle | None]


@attrs.frozen
class _Operator:
    """An operator in both checkpoints, or in one of them."""

    uid: str
    stores: tuple[Store, Store]
    records: tuple[OperatorRecord | None, OperatorRecord | None]

    def compare(self, names: Sequence[str], limit: int) -> OperatorDifferences:
        old, new = self.records
        states = [_State.of(self.uid, name, old, new) for name in names]
        found = [StateDifferences(state.name, state.kind) for state in states]
        may_skip = all(state.same_bytes for state in states)
        read = 0
        for pair in _pairs(old.shards if old else (), new.shards if new else ()):
            if may_skip and _same_files(*pair):
                continue
            read += sum(handle is not None for shards in pair for handle in shards)
            with scratch_directory("diff") as folder, ExitStack() as stack:
                # What both sides share is downloaded once.
                cache = FileCache(folder / "cache")
                sides = [
                    self._open(stack, store, shards, folder / side, cache)
                    for store, shards, side in zip(self.stores, pair, ("old", "new"), strict=True)
                ]
                for state, differences in zip(states, found, strict=True):
                    state.compare(sides[0], sides[1], differences, limit)
        some = old or new
        assert some is not None, "one of the checkpoints has the operator"
        return OperatorDifferences(
            uid=self.uid,
            query=(new or some).query,
            change=self._change(),
            shards=(len(old.shards) if old else 0, len(new.shards) if new else 0),
            read=read,
            states=tuple(found),
        )

    def _change(self) -> Change | None:
        old, new = self.records
        if old is None or new is None:
            return Change.ADDED if old is None else Change.REMOVED
        return None if _same_schema(old.key_schema, new.key_schema) else Change.CHANGED

    @staticmethod
    def _open(stack: ExitStack, store: Store, shards: Shards, folder: Path, cache: FileCache) -> list[Rdict]:
        databases = []
        for number, handle in enumerate(shards):
            if handle is not None:
                restore_files(store, handle, folder / str(number), cache)
                databases.append(stack.enter_context(opened(folder / str(number))))
        return databases


def _pairs(old: Shards, new: Shards) -> Iterator[tuple[Shards, Shards]]:
    """Yield shards that can have the same keys: one by one if there are as many of them, otherwise all together."""
    if len(old) == len(new):
        yield from (([one], [other]) for one, other in zip(old, new, strict=True))
    elif old and new:
        yield old, new
    else:
        yield from (([handle], ()) for handle in old)
        yield from (((), [handle]) for handle in new)


def _same_files(old: Shards, new: Shards) -> bool:
    """Return whether shards hold the same without looking into them.

    What a database holds is in its immutable files; the others, which describe it, differ in each snapshot.
    """
    return len(old) == len(new) == 1 and _content(old[0]) == _content(new[0])


def _content(handle: Handle | None) -> set[tuple[str, int]]:
    files = handle.files if handle else ()
    return {(file.sha256, file.size) for file in files if is_immutable(file.name)}


# --- a state ------------------------------------------------------------------------------------------------


@attrs.frozen
class _Item:
    """An item that may differ."""

    key: bytes
    place: int | bytes
    """As ``StoredState.items`` says; of a timer the bytes of its mode and time."""
    old: bytes | None
    new: bytes | None

    @property
    def change(self) -> Change:
        if self.old is None:
            return Change.ADDED
        return Change.REMOVED if self.new is None else Change.CHANGED


@attrs.frozen
class _State:
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
    def of(cls, uid: str, name: str, old: OperatorRecord | None, new: OperatorRecord | None) -> _State:
        states = tuple(_stored(uid, name, record) for record in (old, new))
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

    def compare(
        self, old: Sequence[Rdict], new: Sequence[Rdict], found: StateDifferences, limit: int
    ) -> None:
        """Add the differences between databases, which have the same shards."""
        shown: list[_Item] = []
        for piece in _pieces(self._candidates(old, new)):
            for item, differs in zip(piece, self._differ(piece), strict=True):
                if differs:
                    found.count(item.change)
                    if len(found.shown) + len(shown) < limit:
                        shown.append(item)
        found.shown += self._shown(shown)

    def _candidates(self, old: Sequence[Rdict], new: Sequence[Rdict]) -> Iterator[_Item]:
        if self.comparable:
            yield from self._aligned(self._entries(0, old), self._entries(1, new))
        else:
            yield from self._aligned(self._entries(0, old), iter(()))
            yield from self._aligned(iter(()), self._entries(1, new))

    def _entries(self, side: int, databases: Sequence[Rdict]) -> Iterator[_Entry]:
        if self.states[side] is None:
            return iter(())
        return heapq.merge(*(self._scan(db) for db in databases), key=_entry_key)

    def _scan(self, db: Rdict) -> Iterator[_Entry]:
        if self.name == TIMERS:
            for prefix in sorted(MODES):
                yield from ((key, b"", db) for key, _ in scan(db, prefix))
        else:
            prefix = keyspace.value_prefix(self.name)
            yield from ((key[len(prefix) :], data, db) for key, data in scan(db, prefix))

    def _aligned(self, old: Iterator[_Entry], new: Iterator[_Entry]) -> Iterator[_Item]:
        for key, one, other in _merged(old, new):
            if self.name == TIMERS:
                if one is None or other is None:
                    _, whose = keyspace.split_timed(key)
                    place = key[: len(key) - len(whose)]
                    yield _Item(whose, place, None if one is None else b"", None if other is None else b"")
            elif not (
                self.same_bytes and one and other and _is_whole(one[1], self.kind) and one[1] == other[1]
            ):
                yield from self._items(key, one, other)

    def _items(self, key: bytes, one: _Entry | None, other: _Entry | None) -> Iterator[_Item]:
        old, new = (
            {} if entry is None else self._held(side, entry) for side, entry in enumerate((one, other))
        )
        for place in sorted(old.keys() | new.keys()):
            was, now = old.get(place), new.get(place)
            if not self.same_bytes or was != now:
                yield _Item(key, place, was, now)

    def _held(self, side: int, entry: _Entry) -> dict[Any, bytes]:
        state = self.states[side]
        assert state is not None, "a side without the state has no entries"
        key, data, db = entry
        return dict(state.items_of(db, key, data))

    def _differ(self, items: Sequence[_Item]) -> list[bool]:
        """Return for each item whether it differs; the same value may be stored in two ways."""
        unclear = [not self.same_bytes or _is_rewritten(item) for item in items]
        if not any(unclear):
            return [True] * len(items)
        old, new = self._values(items, "old"), self._values(items, "new")
        return [not again or one != other for again, one, other in zip(unclear, old, new, strict=True)]

    # --- for people -----------------------------------------------------------------------------------------

    def _shown(self, items: Sequence[_Item]) -> list[Difference]:
        if not items:
            return []
        keys = [_decoded_key(self._side(item).key_schema, item.key) for item in items]
        old, new = self._values(items, "old"), self._values(items, "new")
        return [
            Difference(item.change, key, self._place(item), was, now)
            for item, key, was, now in zip(items, keys, old, new, strict=True)
        ]

    def _side(self, item: _Item) -> StoredState:
        state = self.states[1] if item.old is None else self.states[0]
        assert state is not None, "the side that an item is from has the state"
        return state

    def _place(self, item: _Item) -> dict[str, Any]:
        if self.name == TIMERS:
            assert isinstance(item.place, bytes)
            time, _ = keyspace.split_timed(item.place)
            return {"mode": MODES[item.place[:2]], "timer": _moment(time)}
        record = self._side(item).record
        assert record is not None, "only timers have no record"
        if record.map_key is not None:
            assert isinstance(item.place, bytes)
            packing = Packing([from_json(record.map_key)], StateName(self._side(item).operator, self.name))
            return _rows(packing, [item.place])[0] or {}
        return {"position": item.place} if record.kind is StateKind.LIST else {}

    def _values(self, items: Sequence[_Item], side: str) -> list[dict[str, Any] | None]:
        packed: list[bytes | None] = [getattr(item, side) for item in items]
        packing = self.packings[0 if side == "old" else 1]
        if packing is None:
            return [None if data is None else {} for data in packed]
        rows = _rows(packing, packed)
        times: list[int | None] = expiries(pa.array(packed, BYTES)).to_pylist()
        return [
            row if row is None or time is None else row | {_free("expires_at", row): _moment(time)}
            for row, time in zip(rows, times, strict=True)
        ]


_Entry = tuple[bytes, bytes, Rdict]
"""A key, what is stored of it, and the database that has it."""


def _entry_key(entry: _Entry) -> bytes:
    return entry[0]


def _merged(
    old: Iterator[_Entry], new: Iterator[_Entry]
) -> Iterator[tuple[bytes, _Entry | None, _Entry | None]]:
    """Yield the keys of both, in order, each with its entry on either side; both must be in order."""
    one, other = next(old, None), next(new, None)
    while one is not None or other is not None:
        key = min(entry[0] for entry in (one, other) if entry is not None)
        is_old, is_new = one is not None and one[0] == key, other is not None and other[0] == key
        yield key, one if is_old else None, other if is_new else None
        if is_old:
            one = next(old, None)
        if is_new:
            other = next(new, None)


def _is_whole(data: bytes, kind: str) -> bool:
    """Return whether all that a key holds is in its value; a large list or map has further parts."""
    return kind == StateKind.VALUE.value or not data[0] & parts.LARGE


def _is_rewritten(item: _Item) -> bool:
    """Return whether an item is in both checkpoints, with schemas that differ."""
    return bool(item.old and item.new and (item.old[0] ^ item.new[0]) & _VERSION)


def _same_schema(old: str, new: str) -> bool:
    return old == new or bare(from_json(old)) == bare(from_json(new))


def _stored(uid: str, name: str, operator: OperatorRecord | None) -> StoredState | None:
    """Return a state as a checkpoint has it; None if it does not."""
    if operator is None or (name != TIMERS and name not in operator.states):
        return None
    return StoredState(uid, name, operator.key_schema, operator.states.get(name))


def _is_comparable(old: StoredState | None, new: StoredState | None) -> bool:
    if old is None or new is None or not _same_schema(old.key_schema, new.key_schema):
        return False
    if old.record is None or new.record is None:
        return old.record is new.record
    return (old.record.kind, old.record.map_key) == (new.record.kind, new.record.map_key)


def _extends(old: list[str], new: list[str]) -> bool:
    """Return whether the schemas of one side are those of the other, and perhaps later ones."""
    common = min(len(old), len(new))
    return old[:common] == new[:common]


def _pieces(items: Iterator[T]) -> Iterator[list[T]]:
    while piece := list(islice(items, _PIECE)):
        yield piece


# --- values for people --------------------------------------------------------------------------------------


def _decoded_key(schema: str, key: bytes) -> dict[str, Any]:
    table = KeyCodec(from_json(schema)).decode_columns(pa.array([key], BYTES))
    return {name: _plain(_listed(table.column(name).chunk(0))[0]) for name in table.column_names}


def _rows(packing: Packing, packed: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    rows = packing.unpack(pa.array(packed, BYTES))
    columns = [map(_plain, _listed(column)) for column in rows.flatten()]
    names = packing.schema.names
    fields: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
    return [
        None if data is None else dict(zip(names, values, strict=True))
        for data, values in zip(packed, fields, strict=True)
    ]


def _listed(column: pa.Array) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        # A time outside of Python's calendar: the number that Arrow has for it.
        found = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64()).to_pylist()
    return found


def _free(name: str, taken: Iterable[str]) -> str:
    return f"state_{name}" if name in taken else name


def _moment(milliseconds: int) -> str:
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
