"""What is read of shards and written again has the same bytes; what cannot be written is told, not written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructType
from rocksdict import Rdict

from chandy.state.errors import StateTypeError
from chandy.state.format import keyspace
from chandy.state.format.keys import KeyCodec
from chandy.state.format.schema import arrow_schema, to_json
from chandy.state.host.changes import POSITION_KEY
from chandy.state.operators.time_mode import TimeMode
from chandy.state.reader.stored import TIMERS, StoredState, opened
from chandy.state.rpc.messages import BatchTimes
from chandy.state.writer import entries, shard_files
from chandy.state.writer.encoding import Encoder
from chandy.state.writer.shard_files import ShardFiles, WrittenState
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.manifest import Handle, StateKind, StateRecord
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.snapshots import StoredSnapshot
from chandy.storage.codec import from_json

from ..pipeline import KEY, SHARDS, OneOperator, shard_of
from ..reader.checkpoints import Checkpoints

NOW = 1_700_000_000_123
TTL = 64_000
NUMBER = StructType().add("n", LongType())
NUMBER_AND_TEXT = StructType().add("n", LongType()).add("text", StringType())
Held = dict[bytes, bytes]


class KeepsNumbers(StatefulProcessor):
    """Keeps the numbers of a key in every kind of state."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", NUMBER)
        self.brief = handle.getValueState("brief", NUMBER, TTL)
        self.list = handle.getListState("list", NUMBER_AND_TEXT, TTL)
        self.map = handle.getMapState("map", NUMBER, NUMBER_AND_TEXT, TTL)

    def handleInputRows(self, key: Any, rows: Iterable[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            self.value.update((row.n,))
            self.brief.update((row.n,))
            self.list.appendValue((row.n, "x" * 100))
            self.map.updateValue((row.n,), (-row.n, "y" * 100))
            self.handle.registerTimer(NOW + 1000 * row.n + 1)
        return iter(())


@attrs.frozen
class Stored:
    """An operator's shards as processors have left them."""

    made: Checkpoints
    states: dict[str, StateRecord]
    shards: tuple[Handle | None, ...]
    held: list[Held]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    pipeline = OneOperator(TimeMode.PROCESSING)
    # One key has a list and a map in many parts.
    rows = [("a" * (n % 3 + 1) if n % 9 else None, n) for n in range(20)] + [("large", n) for n in range(300)]
    spec = pipeline.spec(KeepsNumbers())
    pipeline.batch(spec, rows, BatchTimes(timestamp_ms=NOW))
    held: list[Held] = [{POSITION_KEY: b"7"} for _ in range(SHARDS)]
    for (shard, key), data in pipeline.shards.held.items():
        held[shard][key] = data
    made = Checkpoints(tmp_path)
    return Stored(made, spec.states, made.store_shards(held), held)


def read(stored: Stored, name: str) -> list[pa.RecordBatch]:
    """The rows of a state, with the shard ahead of them."""
    state = StoredState("delays", name, to_json(KEY), stored.states.get(name))
    found = []
    for shard, handle in enumerate(stored.shards):
        folder = stored.made.folder / f"read-{name}-{shard}"
        assert handle
        restore_files(stored.made.store, handle, folder)
        for batch in state.batches(folder):
            columns = [pa.array([shard] * len(batch), pa.int32()), *batch.columns]
            found.append(pa.RecordBatch.from_arrays(columns, names=["shard", *batch.schema.names]))
    return found


def encoder(stored: Stored, number: int, name: str, null_keys: bool = True) -> Encoder:
    return Encoder(number, "delays", name, to_json(KEY), stored.states.get(name), null_keys)


def rows(name: str, states: dict[str, StateRecord], *given: tuple[Any, ...]) -> pa.RecordBatch:
    """Rows of a state, with the shard of their key ahead of them."""
    schema = arrow_schema(StoredState("delays", name, to_json(KEY), states.get(name)).schema)
    columns = zip(*given, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    shards = pa.array([shard_of(row[0]) for row in given], pa.int32())
    return pa.RecordBatch.from_arrays([shards, *arrays], names=["shard", *schema.names])


def in_order(batches: Iterable[pa.RecordBatch], shards: int = SHARDS) -> Iterator[pa.RecordBatch]:
    """As Spark sorts what it sends to the tasks that write, with the mark of each shard."""
    marks = entries.batch([list(range(shards)), [entries.MARK] * shards, *[[b""] * shards] * 3])
    table = pa.Table.from_batches([marks, *batches])
    names = entries.SCHEMA.names[:4]
    return iter(table.sort_by([(name, "ascending") for name in names]).to_batches(50))


def write(function: ShardFiles, batches: Iterable[pa.RecordBatch]) -> dict[int, StoredSnapshot]:
    found = [row for batch in function(in_order(batches, len(function.shards))) for row in batch.to_pylist()]
    for row in found:
        if row["problem"] is not None:
            raise entries.raised(row["problem"].encode())
    return {row["shard"]: from_json(StoredSnapshot, row["stored"].encode()) for row in found}


def content(stored: Stored, store: LocalStore, snapshot: StoredSnapshot) -> Held:
    folder = Path(store.uri.removeprefix("file://")).parent / f"restored-{id(snapshot)}"
    restore_files(store, snapshot.handle, folder)
    with opened(folder) as db:
        return everything(db)


def everything(db: Rdict) -> Held:
    return dict(db.items())


def target(stored: Stored) -> LocalStore:
    return LocalStore(stored.made.folder / "save")


def written(stored: Stored, name: str, merge: bool = False) -> WrittenState:
    record = stored.states.get(name)
    return WrittenState(name, record.kind if record else None, record.ttl_ms if record else None, merge)


def shard_writer(stored: Stored, *states: WrittenState, shards: Any = None, batch: int = -1) -> ShardFiles:
    return ShardFiles(
        "delays",
        to_json(KEY),
        states,
        stored.shards if shards is None else shards,
        stored.made.store.uri,
        target(stored).uri,
        1,
        batch,
    )


NAMES = ("value", "brief", "list", "map", TIMERS)


@pytest.mark.parametrize("existing", [False, True])
def test_all_that_is_read_and_written_again_has_the_same_bytes(stored: Stored, existing: bool) -> None:
    items = [
        encoded
        for number, name in enumerate(NAMES)
        for encoded in encoder(stored, number, name)(iter(read(stored, name)))
    ]
    shards = stored.shards if existing else (None,) * SHARDS
    function = shard_writer(stored, *(written(stored, name) for name in NAMES), shards=shards, batch=3)
    found = write(function, items)
    assert sorted(found) == list(range(SHARDS))
    for shard, snapshot in found.items():
        # A shard that has held something keeps the last batch that changed it.
        expected = stored.held[shard] | ({} if existing else {POSITION_KEY: b"3"})
        assert content(stored, target(stored), snapshot) == expected


def test_what_is_not_written_stays(stored: Stored) -> None:
    given = rows("value", stored.states, ("a", 1, None), ("new", 2, None))
    items = encoder(stored, 0, "value")(iter([given]))
    found = write(shard_writer(stored, written(stored, "value")), items)
    prefix, codec = keyspace.value_prefix("value"), KeyCodec(KEY)
    for shard, snapshot in found.items():
        held = content(stored, target(stored), snapshot)
        mine = {key for key in held if key.startswith(prefix)}
        assert mine == {prefix + codec.encode((key,)) for key in ("a", "new") if shard_of(key) == shard}
        rest = {key: data for key, data in held.items() if key not in mine}
        assert rest == {key: data for key, data in stored.held[shard].items() if not key.startswith(prefix)}


@pytest.mark.parametrize("name", ["list", "map", TIMERS])
def test_merging_replaces_keys_that_have_rows_and_leaves_the_others(stored: Stored, name: str) -> None:
    # A key with many parts, and one that is new. Both are in one shard.
    assert shard_of("large") == shard_of("fresh")
    moment = pa.scalar(NOW + 5, pa.timestamp("ms", "UTC")).as_py()
    one = {
        "list": [("large", 0, 1, "x", None), ("fresh", 9, 2, "x", None)],
        "map": [("large", 1, -1, "x", None), ("fresh", 2, -2, "x", None)],
        TIMERS: [("large", "processing", moment), ("fresh", "event", moment)],
    }[name]
    items = list(encoder(stored, 0, name)(iter([rows(name, stored.states, *one)])))
    found = write(shard_writer(stored, written(stored, name, merge=True)), items)
    assert list(found) == [shard_of("large")]
    (snapshot,) = found.values()
    alone = write(shard_writer(stored, written(stored, name), shards=(None,) * SHARDS), items)
    expected = content(stored, target(stored), alone[shard_of("large")])
    before = stored.held[shard_of("large")]
    of_large = KeyCodec(KEY).encode(("large",))
    mine = [keyspace.value_prefix(name), keyspace.part_prefix(name)]
    if name == TIMERS:
        mine = [
            b"\x02p",
            b"\x02t",
            *(keyspace.value_prefix(f"${mode} timers") for mode in ("processing", "event")),
        ]
    kept = {
        key: data
        for key, data in before.items()
        if not (key.endswith(of_large) and key.startswith(tuple(mine)))
    }
    assert content(stored, target(stored), snapshot) == {**expected, **kept}


def test_a_state_without_rows_is_removed_with_its_index_and_parts(stored: Stored) -> None:
    found = write(shard_writer(stored, WrittenState("map", StateKind.VALUE), written(stored, TIMERS)), [])
    assert sorted(found) == list(range(SHARDS))
    for shard, snapshot in found.items():
        held = content(stored, target(stored), snapshot)
        gone = stored.held[shard].keys() - held.keys()
        assert {key: stored.held[shard][key] for key in held} == held
        of_map = (keyspace.value_prefix("map"), keyspace.part_prefix("map"))
        timers = (b"\x02p", keyspace.value_prefix("$processing timers"))
        index = {
            key
            for key in stored.held[shard]
            if key.startswith(keyspace.EXPIRY) and keyspace.split_timed(key)[1].startswith(of_map)
        }
        assert gone == {key for key in stored.held[shard] if key.startswith(of_map + timers)} | index
        assert index


def test_shards_that_get_nothing_are_not_written(stored: Stored) -> None:
    merged = shard_writer(stored, written(stored, "value", merge=True))
    assert write(merged, []) == {}
    assert write(shard_writer(stored, written(stored, "value"), shards=(None,) * SHARDS), []) == {}
    assert target(stored).list() == []


def test_many_changes_are_handed_over_in_pieces(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "_WRITE", 3)
    test_all_that_is_read_and_written_again_has_the_same_bytes(stored, existing=True)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("value", [(None, 1, None)], "key column 'k'.*'value'.*null_keys=True"),
        ("list", [("a", None, 1, "x", None)], "column 'position'.*'list'.*null"),
        (TIMERS, [("a", None, None)], "column 'mode'"),
        (TIMERS, [("a", "event", None)], "column 'timer'"),
        (TIMERS, [("a", "wall", NOW)], "column 'mode'.*'processing' or 'event', found 'wall'"),
    ],
)
def test_a_row_that_does_not_fit_is_told(stored: Stored, name: str, given: Any, told: str) -> None:
    encoded = encoder(stored, 0, name, null_keys=False)(iter([rows(name, stored.states, *given)]))
    with pytest.raises(StateTypeError, match=told):
        write(shard_writer(stored, written(stored, name)), encoded)
    assert target(stored).list() == []


def test_a_null_in_a_field_that_cannot_be_null_is_told(stored: Stored) -> None:
    schema = StructType().add("n", LongType(), nullable=False)
    states = {"value": StateRecord((to_json(schema),))}
    encoded = Encoder(0, "delays", "value", to_json(KEY), states["value"], False)(
        iter([rows("value", states, ("a", None, None))])
    )
    with pytest.raises(StateTypeError, match=r"field 'n' of state 'value'.*not null"):
        write(shard_writer(stored, written(stored, "value")), encoded)


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("value", [("a", 1, None), ("b", 1, None), ("a", 2, None)], r"one row of a key, .*\('a',\)"),
        ("list", [("a", 3, 1, "x", None), ("a", 3, 2, "x", None)], "one row of a position"),
        ("map", [("a", 3, 1, "x", None), ("a", 3, 2, "x", None)], "one row of a map's key"),
        (TIMERS, [("a", "event", NOW), ("a", "event", NOW)], "one row of a timer"),
    ],
)
def test_two_rows_in_one_place_are_told(stored: Stored, name: str, given: Any, told: str) -> None:
    encoded = encoder(stored, 0, name)(iter([rows(name, stored.states, *given)]))
    with pytest.raises(StateTypeError, match=told):
        write(shard_writer(stored, written(stored, name)), encoded)
