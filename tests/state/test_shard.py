from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chandy.state.errors import (
    CannotGoBackError,
    CutPassedError,
    NotAppliedError,
    ReservedKeyError,
    ShardBrokenError,
    ShardClosedError,
    StaleBatchError,
)
from chandy.state.memory import Memory
from chandy.state.shard import POSITION_KEY, Changes, Shard, snapshot_files

KEYS = [b"a", b"b", b"", b"\x00", b"\xff" * 40]


def changes(values: dict[bytes, bytes | None]) -> Changes:
    collected = Changes("op/0")
    collected.add(list(values), list(values.values()))
    return collected


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


def test_a_batch_is_seen_by_the_next_one_and_not_before(shard: Shard) -> None:
    run(shard, 0, {b"a": b"1", b"b": b"2"})
    assert shard.fetch([b"a", b"b"]) == [None, None]
    shard.begin(1)
    assert shard.fetch([b"b", b"c", b"a"]) == [b"2", None, b"1"]


def test_a_batch_that_is_begun_again_sees_the_state_before_it(shard: Shard) -> None:
    run(shard, 0, {b"a": b"1"})
    run(shard, 1, {b"a": b"2"})
    shard.begin(1)
    assert shard.fetch([b"a"]) == [b"1"]
    shard.stage(1, changes({b"b": b"3"}))
    shard.begin(2)
    assert shard.fetch([b"a", b"b"]) == [b"1", b"3"]


def test_an_attempt_that_never_applies_does_not_take_away_what_another_has_staged(shard: Shard) -> None:
    """A speculative copy that is killed, or an action that reads only some rows of the plan."""
    run(shard, 0, {b"a": b"1"})
    shard.begin(0)
    shard.begin(1)
    assert shard.fetch([b"a"]) == [b"1"]


def test_an_empty_stage_replaces_an_earlier_attempt(shard: Shard) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.stage(0)
    shard.begin(1)
    assert shard.fetch([b"a"]) == [None]


def test_gaps_between_batches_are_fine(shard: Shard) -> None:
    run(shard, 3, {b"a": b"1"})
    shard.begin(9)
    assert (shard.position, shard.fetch([b"a"])) == (3, [b"1"])


def test_a_shard_that_has_gone_on_cannot_go_back(shard: Shard) -> None:
    run(shard, 4, {b"a": b"1"})
    shard.begin(5)
    for batch in (3, 4):
        with pytest.raises(CannotGoBackError) as caught:
            shard.begin(batch)
        assert (caught.value.asked, caught.value.position) == (batch, 5)
    shard.begin(5)


def test_a_batch_before_one_that_is_staged_cannot_begin(shard: Shard) -> None:
    run(shard, 4, {b"a": b"1"})
    with pytest.raises(CannotGoBackError):
        shard.begin(3)


def test_changes_of_an_attempt_that_spark_has_given_up_are_refused(shard: Shard) -> None:
    run(shard, 0, {})
    shard.begin(1)
    with pytest.raises(StaleBatchError):
        shard.stage(0, changes({b"a": b"late"}))
    shard.stage(1)
    shard.begin(2)
    assert shard.fetch([b"a"]) == [None]


def test_an_attempt_that_is_left_over_when_a_snapshot_has_written_its_batch_is_refused(
    shard: Shard, tmp_path: Path
) -> None:
    run(shard, 4, {b"a": b"4"})
    shard.checkpoint(tmp_path / "checkpoint", 4)
    with pytest.raises(StaleBatchError):
        shard.stage(4, changes({b"a": b"4, and once more"}))
    shard.begin(5)
    assert shard.fetch([b"a"]) == [b"4"]


def test_a_batch_that_was_left_early_but_has_committed_is_not_passed_over(shard: Shard) -> None:
    run(shard, 0, {b"a": b"0"})
    shard.begin(1)
    with pytest.raises(NotAppliedError):
        shard.begin(2)
    run(shard, 1, {b"a": b"1"})
    shard.begin(2)
    assert shard.fetch([b"a"]) == [b"1"]


def test_a_snapshot_holds_the_staged_batch_up_to_its_cut(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.checkpoint(tmp_path / "cut", 0)
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, 0)
    assert (copy.position, copy.fetch([b"a"])) == (0, [b"1"])
    copy.close()


def test_a_snapshot_does_not_hold_a_batch_staged_after_its_cut(
    shard: Shard, tmp_path: Path, memory: Memory
) -> None:
    run(shard, 0, {b"a": b"1"})
    run(shard, 1, {b"a": b"2"})
    shard.checkpoint(tmp_path / "cut", 0)
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, 0)
    assert copy.fetch([b"a"]) == [b"1"]
    copy.close()
    shard.begin(2)
    assert shard.fetch([b"a"]) == [b"2"]


def test_a_cut_that_has_passed_is_refused(shard: Shard, tmp_path: Path) -> None:
    run(shard, 1, {b"a": b"1"})
    shard.begin(2)
    with pytest.raises(CutPassedError) as caught:
        shard.checkpoint(tmp_path / "cut", 0)
    assert (caught.value.cut, caught.value.position) == (0, 1)


def test_writes_after_a_snapshot_do_not_reach_it(shard: Shard, tmp_path: Path, memory: Memory) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.checkpoint(tmp_path / "cut", 0)
    for batch in range(1, 6):
        run(shard, batch, {b"a": b"%d" % batch * 1000})
        shard.checkpoint(tmp_path / f"later-{batch}", batch)
    copy = restored(tmp_path / "cut", tmp_path / "copy", memory, 0)
    assert copy.fetch([b"a"]) == [b"1"]
    copy.close()


def test_batches_without_changes_write_nothing_and_move_the_position(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.checkpoint(tmp_path / "first", 0)
    for batch in range(1, 5):
        shard.begin(batch)
        shard.stage(batch)
    shard.checkpoint(tmp_path / "second", 4)
    assert (shard.position, shard.changed_by) == (4, 0)
    ssts = [
        {name for name in snapshot_files(tmp_path / cut) if name.endswith(".sst")}
        for cut in ("first", "second")
    ]
    assert ssts[0] == ssts[1]


def test_a_snapshot_keeps_only_what_rocksdb_needs(shard: Shard, tmp_path: Path) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.checkpoint(tmp_path / "cut", 0)
    kinds = sorted({name.partition("-")[0].rpartition(".")[2] for name in snapshot_files(tmp_path / "cut")})
    assert kinds == ["CURRENT", "MANIFEST", "sst"]


def test_the_key_of_the_position_is_refused_as_a_whole_batch(shard: Shard) -> None:
    collected = Changes("op/0")
    with pytest.raises(ReservedKeyError):
        collected.add([b"a", POSITION_KEY], [b"1", b"7"])
    assert len(collected) == 0


def test_a_shard_that_lost_a_committed_batch_never_goes_on(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk:
        def write(self, batch: object) -> None:
            raise OSError("no space left on device")

    run(shard, 0, {b"a": b"1"})
    with monkeypatch.context() as patch:
        patch.setattr(shard, "_db", FullDisk())
        with pytest.raises(ShardBrokenError, match="no space left"):
            shard.begin(1)
    for batch in (1, 2):
        with pytest.raises(ShardBrokenError):
            shard.begin(batch)


def test_a_closed_shard_says_so(shard: Shard, tmp_path: Path) -> None:
    shard.begin(0)
    shard.close()
    shard.close()
    with pytest.raises(ShardClosedError):
        shard.fetch([b"a"])
    with pytest.raises(ShardClosedError):
        shard.stage(0, changes({b"a": b"1"}))
    with pytest.raises(ShardClosedError):
        shard.checkpoint(tmp_path / "cut", 0)


def test_destroying_a_shard_deletes_its_files(shard: Shard) -> None:
    run(shard, 0, {b"a": b"1"})
    shard.destroy()
    assert not shard.directory.exists()


class ShardModel(RuleBasedStateMachine):
    """A shard against a dict that does what the design says."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="chandy-test-"))
        self.count = 0
        self.memory = Memory(8 << 20)
        self.shard = Shard("op/0", self.root / "0", self.memory)
        self.state: dict[bytes, bytes] = {}
        self.position = -1
        self.begun: int | None = None
        self.staged: tuple[int, dict[bytes, bytes | None]] | None = None

    def teardown(self) -> None:
        self.shard.close()
        shutil.rmtree(self.root)

    def promote_model(self, upto: int) -> None:
        if self.staged is not None and self.staged[0] <= upto:
            self.position, values = self.staged
            self.staged = None
            for key, value in values.items():
                self.state.pop(key, None)
                if value is not None:
                    self.state[key] = value

    @rule(batch=st.integers(0, 12))
    def begin(self, batch: int) -> None:
        if batch <= self.position or (self.begun is not None and batch < self.begun):
            with pytest.raises(CannotGoBackError):
                self.shard.begin(batch)
            return
        self.promote_model(batch - 1)
        if self.begun is not None and self.position < self.begun < batch:
            with pytest.raises(NotAppliedError):
                self.shard.begin(batch)
        else:
            self.shard.begin(batch)
            self.begun = batch

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

    @rule(batch=st.integers(0, 12))
    def stage_another(self, batch: int) -> None:
        if batch != self.begun:
            with pytest.raises(StaleBatchError):
                self.shard.stage(batch, changes({b"a": b"never"}))

    @rule(upto=st.integers(-1, 12))
    def promote(self, upto: int) -> None:
        self.shard.promote(upto)
        self.promote_model(upto)

    @rule(ahead=st.integers(-2, 2), go_on_from_it=st.booleans())
    def snapshot_and_restore(self, ahead: int, go_on_from_it: bool) -> None:
        cut = max(0, (self.begun or 0) + ahead)
        self.count += 1
        place = self.root / f"cut-{self.count}"
        self.promote_model(cut)
        if self.position > cut:
            with pytest.raises(CutPassedError):
                self.shard.checkpoint(place, cut)
            return
        self.shard.checkpoint(place, cut)
        copy = restored(place, self.root / str(self.count), self.memory, cut)
        assert copy.position == cut
        assert self.contents(copy) == self.state
        if go_on_from_it:
            self.shard, copy = copy, self.shard
            self.position, self.begun, self.staged = cut, None, None
        copy.destroy()

    @invariant()
    def holds_the_state_at_its_position(self) -> None:
        assert self.shard.position == self.position
        assert self.contents(self.shard) == self.state

    def contents(self, shard: Shard) -> dict[bytes, bytes]:
        return {key: value for key, value in zip(KEYS, shard.fetch(KEYS), strict=True) if value is not None}


ShardModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAShardIsADictThatGoesFromBatchToBatch = ShardModel.TestCase
