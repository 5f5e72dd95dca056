from __future__ import annotations

import os
from pathlib import Path

from chandy.state.memory import Memory
from chandy.state.shard import Changes, Shard

BUDGET = 8 << 20


def write(shard: Shard, batch: int, rows: int = 400, size: int = 1000) -> None:
    changes = Changes(shard.name)
    changes.add([b"%d-%d" % (batch, row) for row in range(rows)], [os.urandom(size) for _ in range(rows)])
    shard.begin(batch)
    shard.stage(batch, changes)


def test_many_shards_share_one_budget(tmp_path: Path) -> None:
    memory = Memory(BUDGET)
    shards = [Shard(f"op/{number}", tmp_path / str(number), memory) for number in range(16)]
    batch_bytes = 400 * 1000
    most_buffered = most_used = 0
    for batch in range(10):
        for shard in shards:
            write(shard, batch)
            shard.fetch([b"%d-%d" % (batch - 1, row) for row in range(400)])
            most_buffered = max(most_buffered, memory.buffered)
            most_used = max(most_used, memory.used)
    written = 16 * 9 * batch_bytes
    assert written > 6 * BUDGET
    assert most_used > BUDGET / 2
    assert most_buffered < BUDGET / 4 + 2 * batch_bytes
    assert most_used < BUDGET + 2 * batch_bytes
    for shard in shards:
        shard.close()


def test_the_budget_holds_for_a_shard_that_is_opened_again(tmp_path: Path) -> None:
    memory = Memory(BUDGET)
    shard = Shard("op/0", tmp_path / "first", memory)
    write(shard, 0)
    shard.checkpoint(tmp_path / "second", 0)
    shard.close()
    memory = Memory(BUDGET)
    again = Shard("op/0", tmp_path / "second", memory)
    before = memory.used
    again.fetch([b"0-%d" % row for row in range(400)])
    assert memory.used > before + 300_000
    again.close()
