from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chandy.state.errors import (
    CannotGoBackError,
    ShardBrokenError,
    ShardClosedError,
    ShardRefusedError,
)
from chandy.state.format import keyspace
from chandy.state.format.columns import Columns
from chandy.state.format.parts import ListHeader, MapHeader
from chandy.state.host.changes import POSITION_KEY, Changes
from chandy.state.host.memory import Memory
from chandy.state.host.shard import Shard
from chandy.state.host.shard_snapshot import Snapshot, snapshot_files
from chandy.storage.checkpoints.manifest import StateKind
from chandy.storage.ids import NO_BATCH

from ...effort import examples
from ...waiting import DEADLINE

KEYS = [b"a", b"b", b"", b"\x00", b"\xff" * 40, b"\x02", b"\x02t", b"\x02t1", b"\x02u"]
BOUNDS = [b"", b"\x00", b"\x02", b"\x02t", b"\x02t\x00", b"\x03", b"b", b"\xff" * 41]


def changes(values: dict[bytes, bytes | None]) -> Changes:
    return Changes.of("op/0", values)


def run(shard: Shard, batch: int, values: dict[bytes, bytes | None]) -> None:
    shard.begin(batch)
    shard.stage(batch, changes(values))


def restored(directory: Path, target: Path, memory: Memory, position: int) -> Shard:
    """A shard from what a snapshot keeps, and nothing else."""
    target.mkdir()
    for name, path in snapshot_files(directory).items():
        shutil.copy(path, target / name)
    return Shard("op/0", target, memory, position)


@pytest.fixture
def memory() -> Memory:
    return Memory(8 << 20)


@pytest.fixture
def shard(tmp_path: Path, memory: Memory) -> Iterator[Shard]:
    opened = Shard("op/0", tmp_path / "shard", memory)
    yield opened
    opened.close()


def test_a_snapshot_holds_more_changes_than_one_write_takes(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    keys = [b"%d" % (number * 7919 % 2500) for number in range(2500)]
    run(shard, 0, dict.fromkeys(keys, b"old"))
    shard.snapshot(tmp_path / "first", 0).files()
    # Some longer, some deleted, in no order: every key must get the value that is its own.
    values = {key: None if key.endswith(b"3") else key * 3 for key in keys}
    run(shard, 1, values)
    shard.snapshot(tmp_path / "second", 1).files()
    with contextlib.closing(restored(tmp_path / "second", tmp_path / "restored", memory, 1)) as other:
        assert dict(zip(keys, other.fetch(keys), strict=True)) == values


def test_a_checkpoint_adds_its_file_to_those_of_the_last_few_and_rewrites_none(
    shard: Shard, tmp_path: Path
) -> None:
    for batch in range(7):
        run(shard, batch, {b"a": b"%d" % batch})
        files = shard.snapshot(tmp_path / str(batch), batch).files()
    assert len([name for name in files if name.endswith(".sst")]) == 7


def test_batches_without_changes_write_nothing_and_move_the_position(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.snapshot(tmp_path / "first", 0).files()
    for batch in range(1, 5):
        shard.begin(batch)
        shard.stage(batch)
    shard.snapshot(tmp_path / "second", 4).files()
    assert (shard.position, shard.changed_by) == (4, 0)
    ssts = [
        {name for name in snapshot_files(tmp_path / cut) if name.endswith(".sst")}
        for cut in ("first", "second")
    ]
    assert ssts[0] == ssts[1]


def test_a_snapshot_keeps_only_what_rocksdb_needs(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.snapshot(tmp_path / "cut", 0).files()
    kinds = sorted({name.partition("-")[0].rpartition(".")[2] for name in snapshot_files(tmp_path / "cut")})
    assert kinds == ["CURRENT", "MANIFEST", "sst"]


def test_the_key_of_the_position_is_refused_as_a_whole_batch(shard: Shard) -> None:
    collected = Changes("op/0")
    with pytest.raises(ShardRefusedError, match="reserved key"):
        collected.add(Columns.of({b"a": b"1", POSITION_KEY: b"7"}))
    assert len(collected) == 0


def test_a_shard_that_lost_a_committed_batch_never_goes_on(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def write(self, batch: object) -> None:
            raise OSError("no space left on device")

    run(shard, 0, {b"a": b"1"})
    first, second = shard.snapshot(tmp_path / "first", 0), shard.snapshot(tmp_path / "second", 0)
    with monkeypatch.context() as patch:
        patch.setattr(shard.levels.database, "db", FullDisk())
        with pytest.raises(ShardBrokenError, match="no space left"):
            first.files()
    for batch in (1, 2):
        with pytest.raises(ShardBrokenError):
            shard.begin(batch)
    with pytest.raises(ShardBrokenError):
        second.files()
    with pytest.raises(ShardBrokenError):
        shard.fetch([b"a"])
    assert shard.levels.unwritten == 0
    shard.levels.spill()


def test_a_closed_shard_says_so(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"a": b"0"})
    taken = shard.snapshot(tmp_path / "taken", 0)
    shard.begin(1)
    shard.close()
    shard.close()
    with pytest.raises(ShardClosedError):
        taken.files()
    with pytest.raises(ShardClosedError):
        shard.fetch([b"a"])
    with pytest.raises(ShardClosedError):
        shard.stage(1, changes({b"a": b"1"}))
    with pytest.raises(ShardClosedError):
        shard.snapshot(tmp_path / "cut", 0).files()


def test_destroying_a_shard_deletes_its_files(shard: Shard) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.destroy()
    assert not shard.directory.exists()


# --- layers and the hot cache -------------------------------------------------------------------------------


def count_reads(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """From now on, every key that RocksDB is asked for."""
    asked: list[bytes] = []
    get = shard.levels.database.get

    def counted(keys: list[bytes]) -> Any:
        asked.extend(keys)
        return get(keys)

    monkeypatch.setattr(shard.levels.database, "get", counted)
    return asked


def writes(shard: Shard) -> int:
    """How many keys RocksDB has been given: it numbers them."""
    return shard.levels.database.db.latest_sequence_number()


def test_a_key_costs_one_write_between_two_snapshots(shard: Shard, tmp_path: Path) -> None:
    for batch in range(10):
        run(shard, batch, {b"%d" % key: b"%d" % batch for key in range(100)})
    assert writes(shard) == 0
    shard.snapshot(tmp_path / "first", 9).files()
    assert writes(shard) == 100 + 1
    for batch in range(10, 15):
        run(shard, batch, {b"1": b"%d" % batch, b"2": None})
    shard.snapshot(tmp_path / "second", 14).files()
    assert writes(shard) == 101 + 2 + 1


def test_values_that_were_just_used_are_not_read_from_rocksdb(
    shard: Shard, tmp_path: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shard, 0, {b"a": b"1", b"b": b"2"})
    shard.snapshot(tmp_path / "cut", 0).files()
    asked = count_reads(shard, monkeypatch)
    shard.begin(1)
    assert shard.fetch([b"a", b"b"]) == [b"1", b"2"]
    assert asked == []
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, 0)
    asked = count_reads(copy, monkeypatch)
    for _ in range(3):
        # That a key is not there is remembered, too.
        assert copy.fetch([b"a", b"c", b"a"]) == [b"1", None, b"1"]
    assert asked == [b"a", b"c", b"a"]
    copy.levels.rotate()
    assert copy.fetch([b"a"]) == [b"1"]
    copy.levels.rotate()
    assert copy.fetch([b"c", b"a"]) == [None, b"1"]
    assert asked == [b"a", b"c", b"a", b"c"]
    copy.close()


def test_a_shard_that_has_written_nothing_does_not_ask_rocksdb(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = count_reads(shard, monkeypatch)
    run(shard, 0, {b"a": b"1"})
    shard.begin(1)
    assert shard.fetch([b"a", b"b"]) == [b"1", None]
    assert asked == []


def test_an_old_value_that_is_read_while_a_batch_is_promoted_is_not_kept(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shard, 0, {b"a": b"0"})
    run(shard, 1, {b"a": b"1"})
    shard.levels.spill()
    shard.levels.rotate()
    shard.levels.rotate()
    get = shard.levels.database.get

    def slow(keys: list[bytes]) -> Any:
        values = get(keys)
        shard.begin(2)
        shard.levels.spill()
        return values

    with monkeypatch.context() as patch:
        patch.setattr(shard.levels.database, "get", slow)
        # An attempt that is left over, while Spark goes on: what it gets is of no use to anybody.
        shard.fetch([b"a"])
    assert shard.fetch([b"a"]) == [b"1"]


def test_taking_a_snapshot_writes_nothing_and_the_batches_behind_it_do_not_wait(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    run(shard, 0, {b"a": b"0"})
    first = shard.snapshot(tmp_path / "first", 0)
    run(shard, 1, {b"a": b"1"})
    second = shard.snapshot(tmp_path / "second", 1)
    run(shard, 2, {b"a": b"2"})
    shard.begin(3)
    assert (writes(shard), first.done, second.done) == (0, False, False)
    # The later one first: it has to write the earlier one, too, or that one's state would be gone.
    for snapshot, value in [(second, b"1"), (first, b"0")]:
        assert {path.parent for path in snapshot.files().values()} == {snapshot.directory}
        copy = restored(snapshot.directory, tmp_path / f"copy-{value!r}", memory, NO_BATCH)
        assert (copy.position, copy.fetch([b"a"])) == (int(value), [value])
        copy.close()
    assert shard.fetch([b"a"]) == [b"2"]


def test_a_snapshot_that_is_given_up_costs_no_write_of_its_own(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    run(shard, 0, {b"a": b"0", b"b": b"0"})
    given_up = shard.snapshot(tmp_path / "given-up", 0)
    run(shard, 1, {b"a": b"1"})
    given_up.cancel()
    shard.snapshot(tmp_path / "cut", 1).files()
    assert writes(shard) == 2 + 1
    assert not (tmp_path / "given-up").exists()
    with pytest.raises(CancelledError):
        given_up.files()
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, NO_BATCH)
    assert (copy.position, copy.fetch([b"a", b"b"])) == (1, [b"1", b"0"])
    copy.close()


def test_a_snapshot_that_is_given_up_while_it_is_written_leaves_no_files(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(shard, 0, {b"a": b"0"})
    taken = shard.snapshot(tmp_path / "cut", 0)

    def given_up_meanwhile(directory: Path) -> dict[str, Path]:
        taken.cancel()
        return snapshot_files(directory)

    monkeypatch.setattr("chandy.state.host.shard_snapshot.snapshot_files", given_up_meanwhile)
    taken.files()
    assert not (tmp_path / "cut").exists()


def test_a_snapshot_that_cannot_be_linked_fails_alone(shard: Shard, tmp_path: Path, memory: Memory) -> None:
    run(shard, 0, {b"a": b"0"})
    (tmp_path / "taken").mkdir()
    with pytest.raises(Exception, match="exists"):
        shard.snapshot(tmp_path / "taken", 0).files()
    run(shard, 1, {b"b": b"1"})
    shard.snapshot(tmp_path / "cut", 1).files()
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, 1)
    assert copy.fetch([b"a", b"b"]) == [b"0", b"1"]
    copy.close()


def test_snapshots_that_are_written_while_batches_run_hold_their_cuts(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    keys = [b"%d" % key for key in range(300)]
    with ThreadPoolExecutor(3) as pool:
        pending = []
        for batch in range(60):
            shard.begin(batch)
            before = b"%d" % (batch - 1) if batch else None
            assert set(shard.fetch(keys)) == {before}
            shard.stage(batch, changes(dict.fromkeys(keys, b"%d" % batch)))
            if batch % 5 == 0:
                taken = shard.snapshot(tmp_path / f"cut-{batch}", batch)
                pending.append((batch, taken, pool.submit(taken.files)))
                shard.begin(batch + 1)
            if batch % 7 == 0:
                pool.submit(shard.levels.spill)
            if batch % 3 == 0:
                shard.levels.rotate()
        for batch, taken, written in pending:
            written.result(DEADLINE)
            copy = restored(taken.directory, tmp_path / f"copy-{batch}", memory, NO_BATCH)
            assert (copy.position, set(copy.fetch(keys))) == (batch, {b"%d" % batch})
            copy.destroy()


# --- scanning and reading -----------------------------------------------------------------------------------


def test_a_scan_does_not_look_again_at_what_was_deleted(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sought: list[bytes] = []

    class Watched:
        def __init__(self) -> None:
            self.db = shard.levels.database.db

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

        def iter(self, options: object) -> Any:
            watched = self.db.iter(options)  # type: ignore[arg-type]

            class Iterator:
                def __getattr__(self, name: str) -> Any:
                    return getattr(watched, name)

                def seek(self, key: bytes) -> None:
                    sought.append(key)
                    watched.seek(key)

            return Iterator()

    run(shard, 0, {b"\x02%d" % number: b"" for number in range(5)})
    run(shard, 1, {b"\x02%d" % number: None for number in range(3)})
    shard.begin(2)
    shard.levels.spill()
    with monkeypatch.context() as patch:
        patch.setattr(shard.levels.database, "db", Watched())
        for _ in range(2):
            assert list(shard.scan(b"\x02", b"\x03")) == [(b"\x023", b""), (b"\x024", b"")]
        assert list(shard.scan(b"\x02", b"\x022")) == []
        assert sought == [b"\x02", b"\x023"]
        shard.stage(2, changes({b"\x021": b"again"}))
        shard.begin(3)
        shard.levels.spill()
        assert [key for key, _ in shard.scan(b"\x02", b"\x03")] == [b"\x021", b"\x023", b"\x024"]
        assert sought[2:] == [b"\x021"]


def test_a_scan_that_began_before_a_write_does_not_say_that_there_was_none(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late:
        def __init__(self) -> None:
            self.db = shard.levels.database.db

        def __getattr__(self, name: str) -> Any:
            return getattr(self.db, name)

        def iter(self, options: object) -> Any:
            found = self.db.iter(options)  # type: ignore[arg-type]
            shard.levels.spill()
            return found

    run(shard, 0, {b"\x02z": b"0"})
    run(shard, 1, {b"\x02a": b"1"})
    shard.levels.spill()
    shard.begin(2)
    everything = [(b"\x02a", b"1"), (b"\x02z", b"0")]
    with monkeypatch.context() as patch:
        patch.setattr(shard.levels.database, "db", Late())
        assert list(shard.scan(b"\x02", b"\x03")) == everything
    assert shard.levels.unwritten == 0
    assert list(shard.scan(b"\x02", b"\x03")) == everything


@pytest.mark.parametrize("key", [b"", b"\x01part", b"\xa1value"])
def test_a_scan_finds_keys_of_every_kind_that_were_written_after_it_found_none(
    shard: Shard, key: bytes
) -> None:
    run(shard, 0, {b"\xffother": b""})
    shard.begin(1)
    shard.levels.spill()
    assert list(shard.scan(b"", b"\xfe")) == []
    run(shard, 1, {key: b""})
    shard.begin(2)
    shard.levels.spill()
    assert list(shard.scan(b"", b"\xfe")) == [(key, b"")]


def test_a_scan_that_is_left_early_does_not_keep_the_shard_open(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"\x02%d" % number: b"v" for number in range(10)})
    shard.begin(1)
    shard.levels.spill()
    with contextlib.closing(shard.scan(b"\x02", b"\x03")) as entries:
        next(entries)
    shard.close()
    again = Shard("op/0", shard.directory, Memory(8 << 20))
    again.close()
    with pytest.raises(ShardClosedError):
        next(shard.scan(b"\x02", b"\x03"))


@pytest.mark.parametrize("kind", [StateKind.LIST, StateKind.MAP])
@pytest.mark.parametrize("endless", [False, True])
def test_a_list_or_map_is_read_whole_after_one_batch_whatever_commits_meanwhile(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, kind: StateKind, endless: bool
) -> None:
    where, prefix = keyspace.value_prefix("s") + b"k", keyspace.part_prefix("s")

    def written(batch: int) -> dict[bytes, bytes | None]:
        count = 2 + batch % 3 if kind is StateKind.LIST else 2
        header = ListHeader(0, count, batch, b"") if kind is StateKind.LIST else MapHeader(1, latest=batch)
        parts = {keyspace.part_key(prefix, n, b"k"): str(batch).encode() for n in range(count)}
        gone = {keyspace.part_key(prefix, n, b"k"): None for n in range(count, 4)}
        return {where: header.encode(), **parts, **gone}

    run(shard, 0, written(0))
    run(shard, 1, written(1))
    fetch, batches = shard.levels.fetch, iter(range(2, 1000 if endless else 4))

    def meanwhile(keys: list[bytes]) -> list[bytes | None]:
        found = fetch(keys)
        if not shard._lock.locked() and (batch := next(batches, None)) is not None:
            run(shard, batch, written(batch))
        return found

    monkeypatch.setattr(shard.levels, "fetch", meanwhile)
    found = shard.read([where], 0, kind)
    batch = int(found[keyspace.part_key(prefix, 0, b"k")])
    assert found == {key: value for key, value in written(batch).items() if value is not None}


@attrs.define
class Pending:
    snapshot: Snapshot
    cut: int
    state: dict[bytes, bytes]


class ShardModel(RuleBasedStateMachine):
    """A shard against a dict that does what the design says."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="chandy-test-"))
        self.count = 0
        self.state: dict[bytes, bytes] = {}
        self.position = -1
        self.begun: int | None = None
        self.staged: tuple[int, dict[bytes, bytes | None]] | None = None
        self.pending: list[Pending] = []

    @initialize(budget=st.sampled_from([2 << 10, 4 << 10, 8 << 20]))
    def open(self, budget: int) -> None:
        self.memory = Memory(budget)
        self.shard = Shard("op/0", self.root / "0", self.memory)

    def teardown(self) -> None:
        self.holds_the_state_at_its_position(KEYS)
        while self.pending:
            self.write_a_snapshot(0, False)
        self.shard.close()
        shutil.rmtree(self.root)

    def promote_model(self, upto: int) -> None:
        if self.staged is not None and self.staged[0] <= upto:
            self.position, values = self.staged
            self.staged = None
            self.state = changed(self.state, values)

    @rule(batch=st.integers(0, 12))
    def begin(self, batch: int) -> None:
        if batch <= self.position or (self.begun is not None and batch < self.begun):
            with pytest.raises(CannotGoBackError):
                self.shard.begin(batch)
            return
        self.promote_model(batch - 1)
        if self.begun is not None and self.position < self.begun < batch:
            with pytest.raises(ShardRefusedError, match="has not finished"):
                self.shard.begin(batch)
        else:
            self.shard.begin(batch)
            self.begun = batch
            # Either there is room for what is not written, or it is written.
            assert self.memory.unwritten <= self.memory.budget / 4

    @precondition(lambda self: self.begun is not None)
    @rule(ahead=st.integers(1, 2))
    def begin_next(self, ahead: int) -> None:
        assert self.begun is not None
        self.begin(self.begun + ahead)

    @precondition(lambda self: self.begun is not None and self.begun > self.position)
    @rule(values=st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3)))
    def stage(self, values: dict[bytes, bytes | None]) -> None:
        assert self.begun is not None
        self.shard.stage(self.begun, changes(values) if values else None)
        self.staged = self.begun, values

    @precondition(lambda self: self.begun is not None and self.begun > self.position)
    @rule(values=st.dictionaries(st.sampled_from(KEYS), st.none() | st.binary(max_size=3), min_size=1))
    def stage_and_begin_next(self, values: dict[bytes, bytes | None]) -> None:
        self.stage(values)
        self.begin_next(1)

    @rule(batch=st.integers(0, 12))
    def stage_another(self, batch: int) -> None:
        if batch != self.begun:
            with pytest.raises(ShardRefusedError, match="Spark has given up"):
                self.shard.stage(batch, changes({b"a": b"never"}))

    @rule(ahead=st.integers(-2, 2))
    def take_a_snapshot(self, ahead: int) -> None:
        cut = max(0, (self.begun or 0) + ahead)
        self.count += 1
        place = self.root / f"cut-{self.count}"
        self.promote_model(cut)
        if self.position > cut:
            with pytest.raises(ShardRefusedError, match="already part of it"):
                self.shard.snapshot(place, cut)
            return
        if self.begun is not None and self.position < self.begun <= cut:
            with pytest.raises(ShardRefusedError, match="has not finished"):
                self.shard.snapshot(place, cut)
            return
        self.pending.append(Pending(self.shard.snapshot(place, cut), cut, dict(self.state)))

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 9), go_on_from_it=st.booleans())
    def write_a_snapshot(self, which: int, go_on_from_it: bool) -> None:
        """At any later moment, in any order."""
        taken = self.pending.pop(which % len(self.pending))
        taken.snapshot.files()
        self.count += 1
        copy = restored(taken.snapshot.directory, self.root / str(self.count), self.memory, taken.cut)
        assert copy.position == taken.cut
        assert contents(copy, KEYS) == taken.state
        if go_on_from_it:
            self.shard, copy = copy, self.shard
            self.position, self.begun, self.staged = taken.cut, None, None
            self.state, self.pending = taken.state, []
        copy.destroy()

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 9))
    def give_a_snapshot_up(self, which: int) -> None:
        taken = self.pending.pop(which % len(self.pending)).snapshot
        taken.cancel()
        shutil.rmtree(taken.directory, ignore_errors=True)

    @rule()
    def spill(self) -> None:
        self.shard.levels.spill()
        assert self.shard.levels.unwritten == 0

    @rule()
    def rotate(self) -> None:
        self.shard.levels.rotate()

    @rule(keys=st.lists(st.sampled_from(KEYS)))
    def holds_the_state_at_its_position(self, keys: list[bytes]) -> None:
        assert contents(self.shard, keys) == {key: self.state[key] for key in keys if key in self.state}

    @rule(bounds=st.tuples(st.sampled_from(BOUNDS), st.sampled_from(BOUNDS)))
    def scan(self, bounds: tuple[bytes, bytes]) -> None:
        start, stop = min(bounds), max(bounds)
        expected = [(key, value) for key, value in sorted(self.state.items()) if start <= key < stop]
        assert list(self.shard.scan(start, stop)) == expected

    @rule(committed=st.integers(-1, 12))
    def read(self, committed: int) -> None:
        seen = self.state
        if self.staged is not None and self.staged[0] <= committed:
            seen = changed(seen, self.staged[1])
        assert self.shard.read(KEYS, committed) == {key: seen[key] for key in KEYS if key in seen}

    @invariant()
    def is_at_its_position(self) -> None:
        if hasattr(self, "shard"):
            assert self.shard.position == self.position


def changed(state: dict[bytes, bytes], values: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    merged = {**state, **values}
    return {key: value for key, value in merged.items() if value is not None}


def contents(shard: Shard, keys: list[bytes]) -> dict[bytes, bytes]:
    return {key: value for key, value in zip(keys, shard.fetch(keys), strict=True) if value is not None}


ShardModel.TestCase.settings = settings(max_examples=examples(6), stateful_step_count=40, deadline=None)
TestAShardIsADictThatGoesFromBatchToBatch = ShardModel.TestCase
