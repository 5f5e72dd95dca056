"""What processors wrote is read from a shard's files as they wrote it."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from chandy.state.errors import StateTypeError
from chandy.state.format import parts
from chandy.state.format.keys import KeyCodec
from chandy.state.format.keyspace import part_key, part_prefix, value_prefix
from chandy.state.format.packing import Packing
from chandy.state.format.schema import to_json
from chandy.state.format.values import StateName
from chandy.state.operators.time_mode import TimeMode
from chandy.state.reader import stored
from chandy.state.reader.stored import TIMERS, StoredState
from chandy.state.rpc.messages import BatchTimes
from chandy.storage.checkpoints.manifest import StateKind, StateRecord

from ..pipeline import KEY, OneOperator
from .held_state import NOW, NUMBER, TTL, StateHost, shard_files

EXPIRY = datetime.datetime.fromtimestamp((NOW + TTL) / 1000, datetime.UTC)


def rows_of(state: StoredState, directories: list[Path], key: bytes | None = None) -> list[dict[str, Any]]:
    found = []
    for directory in directories:
        for batch in state.batches(directory, key):
            assert 0 < batch.num_rows <= stored.ROWS
            found += batch.to_pylist()
    return found


@pytest.fixture(scope="module")
def kept(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[dict[str, StateRecord], list[Path], list[tuple[str | None, int]]]:
    pipeline = OneOperator(TimeMode.PROCESSING)
    # One key has a list and a map in many parts.
    rows = [("a" * (n % 3 + 1) if n % 9 else None, n) for n in range(20)] + [("large", n) for n in range(500)]
    spec = pipeline.spec(StateHost())
    pipeline.batch(spec, rows[::2], BatchTimes(timestamp_ms=NOW))
    pipeline.batch(spec, rows[1::2], BatchTimes(timestamp_ms=NOW))
    directories = shard_files(pipeline.shards.held, tmp_path_factory.mktemp("shards"))
    return spec.states, directories, rows[::2] + rows[1::2]


def stored_state(states: dict[str, StateRecord], name: str) -> StoredState:
    return StoredState("delays", name, to_json(KEY), states.get(name))


def by_key(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in rows), key=repr)


def test_a_value_state_has_a_row_a_key(kept: Any) -> None:
    states, directories, rows = kept
    found = rows_of(stored_state(states, "value"), directories)
    last = dict(rows)
    # The name of the key's column is taken.
    assert list(found[0]) == ["k", "value_k", "n", "expires_at"]
    assert by_key(found) == by_key(
        [{"k": k, "value_k": k, "n": n, "expires_at": None} for k, n in last.items()]
    )
    brief = rows_of(stored_state(states, "brief"), directories)
    assert by_key(brief) == by_key([{"k": k, "n": n, "expires_at": EXPIRY} for k, n in last.items()])


def test_a_list_state_has_a_row_an_element_in_order_whatever_its_parts(kept: Any) -> None:
    states, directories, rows = kept
    found = rows_of(stored_state(states, "list"), directories)
    assert list(found[0]) == ["k", "position", "n", "text", "expires_at"]
    for key in dict(rows):
        own = [row for row in found if row["k"] == key]
        assert [row["n"] for row in own] == [n for k, n in rows if k == key]
        assert [row["position"] for row in own] == list(range(len(own)))
    assert {row["text"] for row in found} == {"x" * 100}


def test_a_map_state_has_a_row_an_entry(kept: Any) -> None:
    states, directories, rows = kept
    found = rows_of(stored_state(states, "map"), directories)
    assert list(found[0]) == ["k", "n", "value_n", "text", "expires_at"]
    assert sorted(((row["k"], row["n"], row["value_n"]) for row in found), key=repr) == sorted(
        ((k, n, -n) for k, n in rows), key=repr
    )


def test_timers_have_a_row_each(kept: Any) -> None:
    states, directories, rows = kept
    found = rows_of(stored_state(states, TIMERS), directories)
    # Those that were due fired.
    expected = [
        (k, "processing", datetime.datetime.fromtimestamp(NOW / 1000 + n, datetime.UTC)) for k, n in rows if n
    ]
    assert by_key(found) == sorted(expected, key=repr)


@pytest.mark.parametrize("name", ["value", "brief", "list", "map", TIMERS])
def test_the_state_of_one_key_is_that_of_all_keys_without_the_others(kept: Any, name: str) -> None:
    states, directories, rows = kept
    state, codec = stored_state(states, name), KeyCodec(KEY)
    everything = rows_of(state, directories)
    for key in {*dict(rows), "a" * 9}:
        own = [row for row in everything if row["k"] == key]
        assert rows_of(state, directories, codec.encode((key,))) == own
        assert bool(own) == (key != "a" * 9)


def test_the_schema_that_is_told_is_that_of_the_batches(kept: Any) -> None:
    states, directories, _ = kept
    for name in (*states, TIMERS):
        state = stored_state(states, name)
        batch = next(state.batches(directories[1]))
        assert batch.schema.names == state.schema.names


def test_reading_changes_no_file(kept: Any) -> None:
    states, directories, _ = kept
    before = {path: path.read_bytes() for path in directories[1].iterdir() if path.name != "LOG"}
    assert rows_of(stored_state(states, "list"), directories[1:2])
    assert {path: path.read_bytes() for path in before} == before


def test_values_of_older_schemas_come_as_those_of_the_newest(tmp_path: Path) -> None:
    old, new = (
        StructType().add("n", IntegerType()),
        StructType().add("n", LongType()).add("more", StringType()),
    )
    key, name = KeyCodec(KEY).encode(("a",)), StateName("delays", "s")
    held = {(0, value_prefix("s") + key): Packing([old], name).pack_row((1,))}
    record = StateRecord((to_json(old), to_json(new)))
    state = StoredState("delays", "s", to_json(KEY), record)
    assert rows_of(state, shard_files(held, tmp_path)[:1]) == [
        {"k": "a", "n": 1, "more": None, "expires_at": None}
    ]


def test_a_state_whose_name_begins_another_is_kept_apart(tmp_path: Path) -> None:
    schema, key = StructType().add("n", LongType()), KeyCodec(KEY).encode(("a",))
    held = {}
    for number, name in enumerate(("s", "ss", "s" * 40, "")):
        packed = Packing([schema], StateName("delays", name)).pack_row((number,))
        held[0, value_prefix(name) + key] = packed
    directories = shard_files(held, tmp_path)
    for number, name in enumerate(("s", "ss", "s" * 40, "")):
        state = StoredState("delays", name, to_json(KEY), StateRecord((to_json(schema),)))
        assert [row["n"] for row in rows_of(state, directories)] == [number]


def test_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType().add("t", StringType())
    packing, codec = Packing([schema], StateName("delays", "s")), KeyCodec(KEY)
    held = {
        (0, value_prefix("s") + codec.encode((str(n),))): packing.pack_row(("x" * 1000,)) for n in range(25)
    }
    directory = shard_files(held, tmp_path)[0]
    state = StoredState("delays", "s", to_json(KEY), StateRecord((to_json(schema),)))
    monkeypatch.setattr(stored, "ROWS", 10)
    assert [batch.num_rows for batch in state.batches(directory)] == [10, 10, 5]
    monkeypatch.setattr(stored, "_BYTES", 4000)
    assert [batch.num_rows for batch in state.batches(directory)] == [4, 4, 4, 4, 4, 4, 1]


def test_columns_that_would_have_one_name_are_told_apart() -> None:
    key = StructType().add("position", LongType()).add("Expires_At", LongType()).add("n", LongType())
    value = StructType().add("n", LongType()).add("value_n", LongType()).add("position", LongType())
    record = StateRecord((to_json(value),), StateKind.LIST)
    assert StoredState("delays", "s", to_json(key), record).schema.names == [
        *("position", "Expires_At", "n"),
        "state_position",
        *("value_n", "value_value_n", "value_position"),
        "state_expires_at",
    ]


def test_a_moment_beyond_all_timestamps_is_the_last_of_them() -> None:
    ends = stored.timestamps(pa.array([2**63 - 1, None, -(2**63)], pa.int64()))
    assert ends.is_null().to_pylist() == [False, True, False]
    assert [moment.value for moment in (ends[0], ends[2])] == [
        (2**63 // 1000 - 1) * 1000,
        -(2**63 // 1000 - 1) * 1000,
    ]


def in_parts(kind: StateKind) -> tuple[StoredState, dict[tuple[int, bytes], bytes]]:
    """A list or a map of one key in four parts, and what the first shard holds of it."""
    key, packing = KeyCodec(KEY).encode(("a",)), Packing([NUMBER], StateName("delays", "s"))
    items = [parts.join([packing.pack_row((n,))] * (2 if kind is StateKind.MAP else 1)) for n in range(4)]
    header = parts.ListHeader(0, 4, None, items[0]) if kind is StateKind.LIST else parts.MapHeader(2, 4, 99)
    held = {(0, part_key(part_prefix("s"), at, key)): item for at, item in enumerate(items)}
    held[0, value_prefix("s") + key] = header.encode()
    record = StateRecord((to_json(NUMBER),), kind, to_json(NUMBER) if kind is StateKind.MAP else None)
    return StoredState("delays", "s", to_json(KEY), record), held


def without_part(held: dict[tuple[int, bytes], bytes], part: int) -> dict[tuple[int, bytes], bytes]:
    gone = part_key(part_prefix("s"), part, KeyCodec(KEY).encode(("a",)))
    return {where: data for where, data in held.items() if where != (0, gone)}


@pytest.mark.parametrize("part", range(4))
def test_a_list_that_lacks_a_part_is_not_read_as_a_shorter_one(tmp_path: Path, part: int) -> None:
    state, held = in_parts(StateKind.LIST)
    assert [row["n"] for row in rows_of(state, shard_files(held, tmp_path / "whole"))] == [0, 1, 2, 3, 0]
    directories = shard_files(without_part(held, part), tmp_path / "damaged")
    with pytest.raises(StateTypeError, match=rf"'s' of operator 'delays': .* part {part} .*\('a',\).* none"):
        rows_of(state, directories)


def test_a_part_of_a_map_that_has_no_entry_is_not_there(tmp_path: Path) -> None:
    state, held = in_parts(StateKind.MAP)
    directories = shard_files(without_part(held, 2), tmp_path)
    assert [row["n"] for row in rows_of(state, directories)] == [0, 1, 3]


class Unreadable:
    """A database, and an iterator over it, that can read one entry and not the next."""

    def __init__(self) -> None:
        self.left = 1

    def iter(self, options: object) -> Unreadable:
        return self

    def seek(self, key: bytes) -> None:
        pass

    def valid(self) -> bool:
        return self.left > 0

    def key(self) -> bytes:
        return value_prefix("s") + b"key"

    value = key

    def next(self) -> None:
        self.left -= 1

    def status(self) -> None:
        raise OSError("block checksum mismatch")


def test_an_entry_that_cannot_be_read_is_not_taken_for_the_end() -> None:
    entries = stored.scan(cast(Any, Unreadable()), value_prefix("s"))
    next(entries)
    with pytest.raises(OSError, match="checksum"):
        next(entries)
