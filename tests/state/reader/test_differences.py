"""Two checkpoints are compared key by key, and only shards that differ are downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructType, TimestampType

from chandy.state.errors import NoSuchStateError
from chandy.state.format import parts
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    part_key,
    part_prefix,
    timed_key,
    value_prefix,
)
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.host.changes import POSITION_KEY
from chandy.state.reader import comparing
from chandy.state.reader.comparing import Change
from chandy.state.reader.differences import Difference, OperatorDifferences, compare
from chandy.state.reader.stored import TIMERS
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord
from chandy.storage.errors import ObjectMissingError

from .checkpoints import Checkpoints

KEY = StructType().add("k", StringType())
NUMBER = StructType().add("n", LongType())
VALUE = {"s": StateRecord((to_json(NUMBER),))}
ALL = 1000


def key(name: str | None) -> bytes:
    return KeyCodec(KEY).encode((name,))


def packed(n: float | None, schema: StructType = NUMBER, expiry: int | None = None) -> bytes:
    return Packing([schema], StateName("op", "s")).pack_row((n,), expiry)


def values(**of: int) -> dict[bytes, bytes]:
    """What a shard holds of the value state ``s``."""
    return {value_prefix("s") + key(name): packed(n) for name, n in of.items()}


@pytest.fixture
def made(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path)


def commit(made: Checkpoints, id: int, *shards: Any, states: Any = None, uid: str = "op") -> Located:
    return made.commit(id, shards, VALUE if states is None else states, to_json(KEY), uid)


def only(old: Located, new: Located, **options: Any) -> OperatorDifferences:
    (found,) = compare(old, new, **{"limit": ALL} | options)
    json.dumps([attrs.asdict(one) for state in found.states for one in state.shown])
    return found


def shown(found: OperatorDifferences) -> list[tuple[str, dict[str, Any], Any, Any]]:
    state = found.states[0]
    counted = [sum(one.change is change for one in state.shown) for change in Change]
    assert counted == [state.added, state.removed, state.changed]
    return [(one.change.value, one.key | one.place, one.old, one.new) for one in state.shown]


def test_keys_are_added_removed_and_changed(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1, b=2, d=4, e=5) | {POSITION_KEY: b"3"})
    new = commit(made, 2, values(b=2, c=3, d=40) | {POSITION_KEY: b"4"})
    found = only(old, new)
    assert (found.uid, found.query, found.change, found.shards, found.read) == ("op", "q", None, (1, 1), 2)
    assert shown(found) == [
        ("removed", {"k": "a"}, {"n": 1}, None),
        ("added", {"k": "c"}, None, {"n": 3}),
        ("changed", {"k": "d"}, {"n": 4}, {"n": 40}),
        ("removed", {"k": "e"}, {"n": 5}, None),
    ]


def test_a_checkpoint_does_not_differ_from_one_that_holds_the_same_in_other_files(made: Checkpoints) -> None:
    old, new = (commit(made, id, values(a=1, b=2)) for id in (1, 2))
    found = only(old, new)
    assert (shown(found), found.read) == ([], 2)


def test_only_shards_with_other_files_are_downloaded(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1), values(b=1), None, values(c=1), None)
    one, two, _, four, _ = old.manifest.operators[0].shards
    assert one and four
    # The files that describe a database are others in each snapshot.
    snapshot = made.store_shards([{}])[0]
    assert snapshot
    again = attrs.evolve(one, files=tuple(f for f in one.files if f.name.endswith(".sst")) + snapshot.files)
    new = commit(made, 2, again, values(b=2), None, four, values(e=1))
    for file in (*one.files, *four.files):
        if not any(
            file.key == other.key
            for kept in new.manifest.operators[0].shards[1:2]
            if kept
            for other in kept.files
        ):
            made.store.delete(file.key)
    found = only(old, new)
    assert found.read == 3
    assert shown(found) == [
        ("changed", {"k": "b"}, {"n": 1}, {"n": 2}),
        ("added", {"k": "e"}, None, {"n": 1}),
    ]
    # What is gone is missed as soon as it is needed.
    other = commit(made, 3, values(a=2), two, None, four, None)
    with pytest.raises(ObjectMissingError):
        only(old, other)


def test_numbers_of_shards_may_differ(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1, d=4), values(b=2), values(c=3, e=5))
    new = commit(made, 2, values(b=2, e=50), values(a=1, c=3, f=6))
    found = only(old, new)
    assert found.shards == (3, 2)
    assert shown(found) == [
        ("removed", {"k": "d"}, {"n": 4}, None),
        ("changed", {"k": "e"}, {"n": 5}, {"n": 50}),
        ("added", {"k": "f"}, None, {"n": 6}),
    ]


def test_an_expiry_is_part_of_a_value(made: Checkpoints) -> None:
    place = value_prefix("s") + key("a")
    found = only(
        commit(made, 1, {place: packed(1, expiry=1_000)}), commit(made, 2, {place: packed(1, expiry=2_500)})
    )
    assert shown(found) == [
        (
            "changed",
            {"k": "a"},
            {"n": 1, "expires_at": "1970-01-01T00:00:01+00:00"},
            {"n": 1, "expires_at": "1970-01-01T00:00:02.500000+00:00"},
        )
    ]


def test_maps_are_compared_entry_by_entry_however_they_are_stored(made: Checkpoints) -> None:
    states = {"s": StateRecord((to_json(NUMBER),), StateKind.MAP, to_json(NUMBER))}
    place = value_prefix("s") + key("a")

    def small(entries: dict[int, int]) -> dict[bytes, bytes]:
        framed = parts.join(packed(n) for entry in sorted(entries.items()) for n in entry)
        return {place: parts.MapHeader(inline=framed).encode()}

    def large(entries: dict[int, int], level: int = 1) -> dict[bytes, bytes]:
        # The header is the same whatever the entries are.
        held = {place: parts.MapHeader(level, 3, 99).encode()}
        for part in range(1 << level):
            own = {n: value for n, value in entries.items() if parts.bucket(packed(n), level) == part}
            if own:
                framed = parts.join(packed(n) for entry in sorted(own.items()) for n in entry)
                held[part_key(part_prefix("s"), part, key("a"))] = framed
        return held

    before, after = {1: 10, 2: 20, 3: 30}, {2: 20, 3: 31, 4: 40}
    expected = [
        ("removed", {"k": "a", "n": 1}, {"n": 10}, None),
        ("changed", {"k": "a", "n": 3}, {"n": 30}, {"n": 31}),
        ("added", {"k": "a", "n": 4}, None, {"n": 40}),
    ]
    forms = [(small, small), (small, large), (large, large), (large, lambda of: large(of, 2))]
    for number, (one, other) in enumerate(forms):
        old = commit(made, 2 * number + 1, one(before), states=states)
        new = commit(made, 2 * number + 2, other(after), states=states)
        found = only(old, new)
        assert [(change, where["n"], was, now) for change, where, was, now in shown(found)] == [
            (change, where["n"], was, now) for change, where, was, now in expected
        ]
    assert found.states[0].kind == "map"


def test_lists_are_compared_by_position(made: Checkpoints) -> None:
    states = {"s": StateRecord((to_json(NUMBER),), StateKind.LIST)}
    place = value_prefix("s") + key("a")

    def held(*elements: int) -> dict[bytes, bytes]:
        return {place: parts.ListHeader(tail=parts.join(map(packed, elements))).encode()}

    old, new = commit(made, 1, held(1, 2), states=states), commit(made, 2, held(1, 3, 4), states=states)
    assert shown(only(old, new)) == [
        ("changed", {"k": "a", "position": 1}, {"n": 2}, {"n": 3}),
        ("added", {"k": "a", "position": 2}, None, {"n": 4}),
    ]


def test_timers_are_added_and_removed(made: Checkpoints) -> None:
    def held(*timers: tuple[bytes, int, str]) -> dict[bytes, bytes]:
        return {timed_key(mode, time, key(name)): b"" for mode, time, name in timers}

    old = commit(made, 1, held((PROCESSING_TIMERS, 1_000, "a"), (EVENT_TIMERS, -1_000, "a")), states={})
    new = commit(made, 2, held((PROCESSING_TIMERS, 1_000, "a"), (PROCESSING_TIMERS, 2_000, "a")), states={})
    found = only(old, new, state=TIMERS)
    assert found.states[0].kind == "timers"
    assert shown(found) == [
        ("added", {"k": "a", "mode": "processing", "timer": "1970-01-01T00:00:02+00:00"}, None, {}),
        ("removed", {"k": "a", "mode": "event", "timer": "1969-12-31T23:59:59+00:00"}, {}, None),
    ]


def test_a_value_that_is_written_again_with_a_newer_schema_is_the_same(made: Checkpoints) -> None:
    wider = StructType().add("n", DoubleType()).add("more", StringType())
    number = StructType().add("n", IntegerType())
    both = Packing([number, wider], StateName("op", "s"))
    place = value_prefix("s")
    old_record = StateRecord((to_json(number),))
    new_record = StateRecord((to_json(number), to_json(wider)))
    old = {place + key(name): packed(n, number) for name, n in zip("abc", (1, 2, 3), strict=True)}
    new = {
        place + key("a"): packed(1, number),
        place + key("b"): both.pack_row((2.0, None)),
        place + key("c"): both.pack_row((3.0, "x")),
    }
    one, other = (
        commit(made, 1, old, states={"s": old_record}),
        commit(made, 2, new, states={"s": new_record}),
    )
    assert shown(only(one, other)) == [
        ("changed", {"k": "c"}, {"n": 3.0, "more": None}, {"n": 3.0, "more": "x"})
    ]
    # Also backwards.
    assert shown(only(other, one)) == [
        ("changed", {"k": "c"}, {"n": 3.0, "more": "x"}, {"n": 3.0, "more": None})
    ]


def test_schemas_that_have_nothing_in_common_are_compared_by_what_they_say(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1, b=2))
    text = StructType().add("n", StringType())
    held = {
        value_prefix("s") + key(name): Packing([text], StateName("op", "s")).pack_row((value,))
        for name, value in (("a", "1"), ("b", "x"))
    }
    new = commit(made, 2, held, states={"s": StateRecord((to_json(text),))})
    assert shown(only(old, new)) == [
        ("changed", {"k": "a"}, {"n": 1}, {"n": "1"}),
        ("changed", {"k": "b"}, {"n": 2}, {"n": "x"}),
    ]
    long = StructType().add("n", LongType(), nullable=False)
    same = {value_prefix("s") + key("a"): packed(1, long), value_prefix("s") + key("b"): packed(2, long)}
    other = commit(made, 3, same, states={"s": StateRecord((to_json(long),))})
    assert shown(only(old, other)) == []


def test_of_another_kind_all_is_removed_and_added(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1))
    kept = {value_prefix("s") + key("a"): parts.ListHeader(tail=parts.join([packed(1)])).encode()}
    new = commit(made, 2, kept, states={"s": StateRecord((to_json(NUMBER),), StateKind.LIST)})
    assert shown(only(old, new)) == [
        ("removed", {"k": "a"}, {"n": 1}, None),
        ("added", {"k": "a", "position": 0}, None, {"n": 1}),
    ]


def test_a_state_that_only_one_checkpoint_has_is_added_even_if_the_files_are_the_same(
    made: Checkpoints,
) -> None:
    old = commit(made, 1, values(a=1), states={})
    new = made.commit_records(2, (attrs.evolve(old.manifest.operators[0], states=VALUE),))
    assert shown(only(old, new)) == [("added", {"k": "a"}, None, {"n": 1})]
    assert shown(only(new, old)) == [("removed", {"k": "a"}, {"n": 1}, None)]


def test_an_operator_that_only_one_checkpoint_has_is_told(made: Checkpoints) -> None:
    old, new = commit(made, 1, values(a=1), None, uid="one"), commit(made, 2, values(b=2), uid="two")
    one, two = compare(old, new)
    assert (one.uid, one.change, one.shards) == ("one", Change.REMOVED, (2, 0))
    assert shown(one) == [("removed", {"k": "a"}, {"n": 1}, None)]
    assert (two.uid, two.change, two.shards) == ("two", Change.ADDED, (0, 1))
    assert shown(two) == [("added", {"k": "b"}, None, {"n": 2})]


def test_keys_with_other_columns_are_other_keys(made: Checkpoints) -> None:
    old = commit(made, 1, values(a=1))
    number = StructType().add("k", LongType())
    held = {value_prefix("s") + KeyCodec(number).encode((1,)): packed(1)}
    found = only(old, made.commit(2, [held], VALUE, to_json(number)))
    assert found.change is Change.CHANGED
    assert shown(found) == [("removed", {"k": "a"}, {"n": 1}, None), ("added", {"k": 1}, None, {"n": 1})]


def test_all_are_counted_and_the_first_are_shown(made: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "_PIECE", 7)
    many = [values(**{f"{shard}{n:02}": n for n in range(30)}) for shard in "ab"]
    found = only(commit(made, 1, None, None), commit(made, 2, *many), limit=35)
    (state, timers) = found.states
    assert (state.added, state.total, timers.total) == (60, 60, 0)
    assert [one.key["k"] for one in state.shown] == [f"a{n:02}" for n in range(30)] + [
        f"b{n:02}" for n in range(5)
    ]
    assert only(commit(made, 3, None, None), commit(made, 4, *many), limit=0).states[0].shown == []


def test_one_operator_and_one_state_can_be_chosen(made: Checkpoints) -> None:
    record = StateRecord((to_json(NUMBER),))
    shards = made.store_shards([values(a=1)])

    def located(id: int, **states: dict[str, StateRecord]) -> Located:
        operators = [OperatorRecord(uid, "q", to_json(KEY), own, shards) for uid, own in states.items()]
        return made.commit_records(id, tuple(operators))

    old = located(1, one={"s": record, "t": record}, two={"s": record})
    new = located(2, one={"s": record}, two={"s": record}, three={})
    names = {found.uid: [state.name for state in found.states] for found in compare(old, new)}
    assert names == {"one": ["s", "t", TIMERS], "two": ["s", TIMERS], "three": [TIMERS]}
    assert [found.uid for found in compare(old, new, state="t")] == ["one"]
    assert [found.uid for found in compare(old, new, operator="two", state="s")] == ["two"]
    with pytest.raises(NoSuchStateError, match="'one', 'two', 'three'"):
        list(compare(old, new, operator="four"))
    with pytest.raises(NoSuchStateError, match=r"'s', '\$timers'"):
        list(compare(old, new, operator="two", state="t"))


def test_every_value_fits_into_json(made: Checkpoints) -> None:
    schema = StructType().add("n", DoubleType()).add("t", TimestampType())
    packing = Packing([schema], StateName("op", "s"))
    far = pa.array([2**62], pa.int64()).view(pa.timestamp("us", "UTC"))
    row = pa.StructArray.from_arrays([pa.array([float("nan")]), far], names=["n", "t"])
    held = {value_prefix("s") + key("a"): packing.pack(row, pa.array([2**62]))[0].as_py()}
    found = only(commit(made, 1, {}), commit(made, 2, held, states={"s": StateRecord((to_json(schema),))}))
    assert found.states[0].shown == [
        Difference(
            Change.ADDED,
            {"k": "a"},
            {},
            None,
            {"n": "nan", "t": 2**62, "expires_at": f"{2**62} ms since 1970"},
        )
    ]


def test_an_item_that_differs_only_in_ignored_fields_is_no_difference(made: Checkpoints) -> None:
    times = StructType().add("n", LongType()).add("updated", LongType())
    states = {name: StateRecord((to_json(times),)) for name in ("s", "t")}

    def at(updated: int, n: int) -> dict[bytes, bytes]:
        value = Packing([times], StateName("op", "s")).pack_row
        same, other = value((1, updated), None), value((n, updated), None)
        return {
            value_prefix("s") + key("a"): same,
            value_prefix("s") + key("b"): other,
            value_prefix("t") + key("a"): same,
        }

    old, new = commit(made, 1, at(1, 7), states=states), commit(made, 2, at(2, 8), states=states)
    found = only(
        old, new, ignored=lambda operator, state: {"updated"} if (operator, state) == ("op", "s") else ()
    )
    assert shown(found) == [("changed", {"k": "b"}, {"n": 7, "updated": 1}, {"n": 8, "updated": 2})]
    assert [state.total for state in found.states] == [1, 1, 0]
