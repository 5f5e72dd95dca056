"""The largest keys of an operator are found with all that they have, whatever kind of state it is in."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.state.format.schema import to_json
from chandy.state.operators.time_mode import TimeMode
from chandy.state.reader.largest import largest_keys
from chandy.state.rpc.messages import BatchTimes
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import StateRecord

from ..pipeline import KEY, SHARDS, OneOperator
from .checkpoints import Checkpoints
from .held_state import NOW, StateHost

ROWS = [
    ("small", 1),
    ("middle", 1),
    *(("middle", n) for n in range(40)),
    *(("large", n) for n in range(2000)),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Located, dict[tuple[int, bytes], bytes]]:
    pipeline = OneOperator(TimeMode.PROCESSING)
    spec = pipeline.spec(StateHost())
    pipeline.batch(spec, ROWS, BatchTimes(timestamp_ms=NOW))
    held = pipeline.shards.held
    shards = [
        {key: value for (place, key), value in held.items() if place == shard} or None
        for shard in range(SHARDS)
    ]
    states: dict[str, StateRecord] = spec.states
    made = Checkpoints(tmp_path_factory.mktemp("largest"))
    return made.commit(1, shards, states, to_json(KEY)), held


def test_the_largest_come_first_with_all_that_they_have(
    kept: tuple[Located, dict[tuple[int, bytes], bytes]],
) -> None:
    found, held = kept
    keys = largest_keys(found, "op", 10)
    assert [one.key["k"] for one in keys] == ["large", "middle", "small"]
    assert all(one.bytes == sum(one.states.values()) for one in keys)
    assert keys[0].bytes > 10 * keys[1].bytes
    assert {one.shard for one in keys} <= set(range(SHARDS))
    # What they have in sum is all that is stored, but for the index of what expires and the order of timers.
    in_order = sum(len(key) + len(value) for (_, key), value in held.items() if key[:1] == b"\x02")
    assert (
        sum(one.bytes for one in keys)
        == sum(len(key) + len(value) for (_, key), value in held.items()) - in_order
    )
    assert "$timers" in keys[0].states


def test_no_more_than_asked_for_are_returned(kept: tuple[Located, dict[tuple[int, bytes], bytes]]) -> None:
    found, _ = kept
    assert [one.key["k"] for one in largest_keys(found, "op", 1)] == ["large"]
    assert largest_keys(found, "another", 5) == []


def test_a_checkpoint_without_state_has_no_keys(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path).commit(1, [None] * 3, {}, to_json(KEY))
    assert largest_keys(found, "op", 5) == []
