"""Compares the state of operators in two checkpoints, for people: what was added, removed and changed, key by key.

A shard is downloaded only if its files differ. Memory holds the state of one key, and the differences to show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs

from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import OperatorRecord, StateKind
from ...storage.store import Store
from ..errors import NoSuchStateError
from ..format import keyspace
from ..format.packing import Packing
from ..format.schema import from_json
from ..format.values import StateName
from .comparing import (
    Change,
    Item,
    StateComparison,
    opened_pair,
    pieces,
    same_files,
    same_schema,
    shard_pairs,
)
from .plain_values import decoded_key, moment, rows_of
from .stored import MODES, TIMERS


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


Ignored = Callable[[str, str], Collection[str]]
"""Returns the fields of a state that may differ, by the operator's uid and the state's name."""


def _nothing(operator: str, state: str) -> Collection[str]:
    return ()


def compare(
    old: Located,
    new: Located,
    *,
    operator: str | None = None,
    state: str | None = None,
    limit: int = 20,
    ignored: Ignored = _nothing,
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
        ignored: returns fields that may differ. An item that differs in nothing else is no difference.

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
            yield _Operator(uid, (old.store, new.store), records, ignored).compare(chosen, limit)


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


@attrs.frozen
class _Operator:
    """An operator in both checkpoints, or in one of them."""

    uid: str
    stores: tuple[Store, Store]
    records: tuple[OperatorRecord | None, OperatorRecord | None]
    ignored: Ignored

    def compare(self, names: Sequence[str], limit: int) -> OperatorDifferences:
        old, new = self.records
        states = [StateComparison.of(self.uid, name, old, new) for name in names]
        found = [StateDifferences(state.name, state.kind) for state in states]
        may_skip = all(state.same_bytes for state in states)
        read = 0
        for pair in shard_pairs(old.shards if old else (), new.shards if new else ()):
            if may_skip and same_files(*pair):
                continue
            read += sum(handle is not None for shards in pair for handle in shards)
            with opened_pair(self.stores, pair) as (before, after):
                for state, differences in zip(states, found, strict=True):
                    items = state.differing(before, after)
                    if ignored := self.ignored(self.uid, state.name):
                        items = _without(ignored, state, items)
                    _add(differences, state, items, limit)
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
        return None if same_schema(old.key_schema, new.key_schema) else Change.CHANGED


def _without(ignored: Collection[str], state: StateComparison, items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items that differ in other fields than these, too."""

    def rest(values: dict[str, Any] | None) -> dict[str, Any] | None:
        return values and {name: value for name, value in values.items() if name not in ignored}

    for piece in pieces(items):
        old, new = state.values(piece, "old"), state.values(piece, "new")
        yield from (
            item
            for item, was, now in zip(piece, old, new, strict=True)
            if item.change is not Change.CHANGED or rest(was) != rest(now)
        )


def _add(found: StateDifferences, state: StateComparison, items: Iterator[Item], limit: int) -> None:
    """Add differences of a state."""
    shown: list[Item] = []
    for item in items:
        found.count(item.change)
        if len(found.shown) + len(shown) < limit:
            shown.append(item)
    found.shown += _shown(state, shown)


def _shown(state: StateComparison, items: Sequence[Item]) -> list[Difference]:
    if not items:
        return []
    keys = [decoded_key(state.side_of(item).key_schema, item.key) for item in items]
    old, new = state.values(items, "old"), state.values(items, "new")
    return [
        Difference(item.change, key, _place(state, item), was, now)
        for item, key, was, now in zip(items, keys, old, new, strict=True)
    ]


def _place(state: StateComparison, item: Item) -> dict[str, Any]:
    if state.name == TIMERS:
        assert isinstance(item.place, bytes)
        time, _ = keyspace.split_timed(item.place)
        return {"mode": MODES[item.place[:2]], "timer": moment(time)}
    side = state.side_of(item)
    assert side.record is not None, "only timers have no record"
    if side.record.map_key is not None:
        assert isinstance(item.place, bytes)
        packing = Packing([from_json(side.record.map_key)], StateName(side.operator, state.name))
        return rows_of(packing, [item.place])[0] or {}
    return {"position": item.place} if side.record.kind is StateKind.LIST else {}
