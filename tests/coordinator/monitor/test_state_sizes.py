"""The sizes of operators' states: those of the newest checkpoint, added up once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chandy.coordinator.monitor import state_sizes
from chandy.coordinator.monitor.state_sizes import OperatorSize, StateSizes
from chandy.coordinator.protocol.statistics import CheckpointStatistics, ShardStatistics
from chandy.storage.checkpoints.manifest import CheckpointKind, FileRef, Handle, Manifest, OperatorRecord

from ...builders import make_manifest


def shard(*sizes: int) -> Handle:
    return Handle(tuple(FileRef("f", "k", size, "0" * 64) for size in sizes))


def checkpoint(id: int, *shards: Handle | None) -> Manifest:
    return make_manifest(id, operators=(OperatorRecord("totals", "q", "{}", {}, shards),))


def taken(id: int, *entries: int) -> CheckpointStatistics:
    shards = (
        ShardStatistics("totals", at, 0, 0, 0, 0, 0, 100, 10, count) for at, count in enumerate(entries)
    )
    return CheckpointStatistics(id, CheckpointKind.MANUAL, 0.0, shards=tuple(shards))


def test_they_are_those_of_all_files_and_shards() -> None:
    newest = checkpoint(1, shard(5, 6), None, shard(20))
    assert StateSizes().of(newest, taken(1, 4, 0, 7)) == {"totals": OperatorSize("q", 31, 20, 11)}
    assert StateSizes().of(newest, None) == {"totals": OperatorSize("q", 31, 20, None)}
    assert StateSizes().of(None, None) == {}
    assert StateSizes().of(checkpoint(1), None) == {"totals": OperatorSize("q", 0, 0)}


def test_each_checkpoint_is_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    add = state_sizes.sizes_in

    def counted(manifest: Manifest, shards: Sequence[ShardStatistics]) -> dict[str, OperatorSize]:
        added.append(manifest.id)
        return add(manifest, shards)

    monkeypatch.setattr(state_sizes, "sizes_in", counted)
    sizes, first, second = StateSizes(), checkpoint(1, shard(1)), checkpoint(2, shard(2))
    for manifest in (first, first, None, first, second, second):
        assert sizes.of(manifest, None) == (add(manifest, ()) if manifest else {})
    assert added == [1, 1, 2]
    # A savepoint is no newer checkpoint, and has the newest entries all the same.
    for id in (3, 3, 4):
        assert sizes.of(second, taken(id, id)) == add(second, taken(id, id).shards)
    assert added == [1, 1, 2, 2, 2]
