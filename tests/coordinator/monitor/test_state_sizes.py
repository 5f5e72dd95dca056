"""The sizes of operators' states: those of the newest checkpoint, added up once."""

from __future__ import annotations

import pytest

from chandy.coordinator.monitor import state_sizes
from chandy.coordinator.monitor.state_sizes import OperatorSize, StateSizes
from chandy.storage.checkpoints.manifest import FileRef, Handle, Manifest, OperatorRecord

from ...builders import make_manifest


def shard(*sizes: int) -> Handle:
    return Handle(tuple(FileRef("f", "k", size, "0" * 64) for size in sizes))


def checkpoint(id: int, *shards: Handle | None) -> Manifest:
    return make_manifest(id, operators=(OperatorRecord("totals", "q", "{}", {}, shards),))


def test_they_are_those_of_all_files_and_shards() -> None:
    found = StateSizes().of(checkpoint(1, shard(5, 6), None, shard(20)))
    assert found == {"totals": OperatorSize("q", 31, 20)}
    assert StateSizes().of(None) == {}
    assert StateSizes().of(checkpoint(1)) == {"totals": OperatorSize("q", 0, 0)}


def test_each_checkpoint_is_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    add = state_sizes.sizes_in

    def counted(manifest: Manifest) -> dict[str, OperatorSize]:
        added.append(manifest.id)
        return add(manifest)

    monkeypatch.setattr(state_sizes, "sizes_in", counted)
    sizes, first, second = StateSizes(), checkpoint(1, shard(1)), checkpoint(2, shard(2))
    for manifest in (first, first, None, first, second, second):
        assert sizes.of(manifest) == (add(manifest) if manifest else {})
    assert added == [1, 1, 2]
