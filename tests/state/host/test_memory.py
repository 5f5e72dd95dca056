from __future__ import annotations

import os
from pathlib import Path

import attrs

from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.rocksdb import RocksDatabases
from chandy.state.host.shard import Shard

BUDGET = 8 << 20


def write(shard: Shard, batch: int, rows: int = 400, size: int = 1000) -> None:
    shard.begin(batch)
    entries = {b"%d-%d" % (batch, row): os.urandom(size) for row in range(rows)}
    shard.stage(batch, Changes.of(shard.name, entries))


def test_many_shards_share_one_budget(tmp_path: Path) -> None:
    memory = Memory(BUDGET)
    databases = memory.databases
    assert isinstance(databases, RocksDatabases)
    shards = [Shard(f"op/{number}", tmp_path / str(number), memory) for number in range(16)]
    batch_bytes = 400 * (1000 + 150)
    buffered, used, hot, unwritten = [], [], [], []
    for batch in range(10):
        for shard in shards:
            write(shard, batch)
            shard.fetch([b"%d-%d" % (batch - 1, row) for row in range(400)])
            buffered.append(databases.buffered)
            used.append(memory.used)
            hot.append(memory.hot)
            unwritten.append(memory.unwritten)
    written = 16 * 9 * batch_bytes
    assert written > 6 * BUDGET
    assert BUDGET / 2 < max(used) < BUDGET + 2 * batch_bytes
    assert max(buffered) < BUDGET / 8 + 2 * batch_bytes
    assert BUDGET / 8 < max(hot) <= BUDGET / 4
    assert BUDGET / 8 < max(unwritten) <= BUDGET / 4
    for shard in shards:
        shard.close()
    assert (memory.hot, memory.unwritten) == (0, 0)


@attrs.define(eq=False)
class FakeHolder:
    hot: int = 0
    unwritten: int = 0
    really: int = 0
    rotations: int = 0
    spilled: bool = False

    def measure(self) -> None:
        self.unwritten = self.really

    def rotate(self) -> None:
        self.hot //= 2
        self.rotations += 1

    def spill(self) -> None:
        self.unwritten, self.spilled = 0, True


def test_hot_caches_rotate_in_turn_and_only_as_long_as_they_must() -> None:
    memory = Memory(4000)
    holders = [FakeHolder(hot=400) for _ in range(4)]
    for holder in holders:
        memory.add(holder)
    memory.balance()
    assert sorted(holder.rotations for holder in holders) == [0, 1, 1, 1]
    last = next(holder for holder in holders if not holder.rotations)
    last.hot = 500
    memory.balance()
    assert [holder.rotations for holder in holders] == [1, 1, 1, 1]
    memory.balance()
    assert [holder.rotations for holder in holders] == [1, 1, 1, 1]


def test_the_largest_is_written_first_and_only_if_it_is_as_much_as_it_seemed() -> None:
    memory = Memory(4000)
    small, large = FakeHolder(unwritten=500, really=400), FakeHolder(unwritten=600, really=550)
    memory.add(small)
    memory.add(large)
    memory.balance()
    assert (small.spilled, large.spilled) == (False, True)
    small.unwritten, small.really = 1200, 450
    memory.balance()
    assert not small.spilled
    memory.remove(small)
    assert memory.unwritten == 0


def test_the_budget_holds_for_a_shard_that_is_opened_again(tmp_path: Path) -> None:
    memory = Memory(BUDGET)
    shard = Shard("op/0", tmp_path / "first", memory)
    write(shard, 0)
    shard.snapshot(tmp_path / "second", 0).files()
    shard.close()
    memory = Memory(BUDGET)
    again = Shard("op/0", tmp_path / "second", memory)
    before = memory.used
    again.fetch([b"0-%d" % row for row in range(400)])
    assert memory.used - memory.hot > before + 300_000
    again.close()
