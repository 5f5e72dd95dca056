from __future__ import annotations

from typing import Any

import pytest

from chandy.state.host import snapshot_bases
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.snapshot_bases import SnapshotBases, StoredBase
from chandy.state.rpc.messages import ShardSnapshot
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.manifest import FileRef, Handle

OWN, OTHER = "memory://pipeline", "memory://savepoint"
SHARD = ShardKey("q", "op", 0)


def handle(name: str) -> Handle:
    return Handle((FileRef(name, f"shared/{name}", 1, name),))


def order(checkpoint: int, base: int | None = None, root: str = OWN, **more: Any) -> SnapshotOrder:
    return SnapshotOrder(checkpoint, "query", "q", 0, (ShardId("op", 0),), root, base, 0.0, 60.0, **more)


def stored(bases: SnapshotBases, order: SnapshotOrder) -> None:
    snapshot = ShardSnapshot(ShardId("op", 0), handle(str(order.checkpoint)), 1, 0.0, 0.0, 0.0, entries=1)
    bases.add_stored(order, [snapshot])


@pytest.fixture
def bases() -> SnapshotBases:
    """With snapshots of checkpoints 1 and 2."""
    made = SnapshotBases()
    stored(made, order(1))
    stored(made, order(2))
    return made


def test_the_base_is_the_one_that_the_order_names(bases: SnapshotBases) -> None:
    assert bases.base(SHARD, order(3, base=1)) == handle("1")
    assert bases.base(SHARD, order(3, base=2)) == handle("2")
    assert bases.base(SHARD, order(3, base=None)) is None
    assert bases.base(SHARD, order(3, base=7)) is None
    assert bases.base(ShardKey("q", "op", 1), order(3, base=1)) is None


def test_a_snapshot_in_another_store_is_no_base(bases: SnapshotBases) -> None:
    assert bases.base(SHARD, order(3, base=2, root=OTHER)) is None


def test_a_savepoint_is_no_base_and_copies_what_was_stored_last(bases: SnapshotBases) -> None:
    savepoint = order(3, root=OTHER, is_savepoint=True)
    assert bases.copy_source(SHARD, savepoint) == StoredBase(OWN, handle("2"))
    stored(bases, savepoint)
    assert bases.base(SHARD, order(4, base=3, root=OTHER)) is None
    assert bases.copy_source(SHARD, order(4, root=OTHER, is_savepoint=True)) == StoredBase(OWN, handle("2"))
    assert SnapshotBases().copy_source(SHARD, savepoint) is None


def test_a_checkpoint_copies_nothing(bases: SnapshotBases) -> None:
    assert bases.copy_source(SHARD, order(3)) is None


def test_what_a_shard_was_restored_from_is_a_base_unless_it_is_a_savepoint() -> None:
    bases = SnapshotBases()
    bases.add_restored(SHARD, RestoreSource(OWN, 5, 9, handle("5")))
    bases.add_restored(SHARD, RestoreSource(OTHER, -1, 9, handle("savepoint")))
    assert bases.base(SHARD, order(6, base=5)) == handle("5")
    assert bases.base(SHARD, order(6, base=-1, root=OTHER)) is None


def test_a_completed_checkpoint_replaces_the_bases_before_it(bases: SnapshotBases) -> None:
    stored(bases, order(3))
    bases.complete(2)
    assert [bases.base(SHARD, order(4, base=base)) for base in (1, 2, 3)] == [None, handle("2"), handle("3")]


def test_a_completed_checkpoint_replaces_no_base_in_another_store(bases: SnapshotBases) -> None:
    bases.add_restored(SHARD, RestoreSource(OTHER, 0, 9, handle("0")))
    bases.complete(2)
    assert bases.base(SHARD, order(3, base=0, root=OTHER)) == handle("0")


def test_a_checkpoint_that_a_shard_is_not_part_of_replaces_nothing(bases: SnapshotBases) -> None:
    bases.complete(3)
    assert bases.base(SHARD, order(4, base=1)) == handle("1")


def test_an_aborted_checkpoint_is_no_base(bases: SnapshotBases) -> None:
    bases.abort(2)
    assert bases.base(SHARD, order(3, base=2)) is None
    assert bases.base(SHARD, order(3, base=1)) == handle("1")


def test_shards_that_are_gone_are_forgotten(bases: SnapshotBases) -> None:
    bases.forget([SHARD, ShardKey("q", "op", 1)])
    assert bases.base(SHARD, order(3, base=2)) is None


def test_only_the_latest_bases_are_remembered(bases: SnapshotBases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_bases, "_KEPT", 2)
    stored(bases, order(3))
    assert [bases.base(SHARD, order(4, base=base)) for base in (1, 2, 3)] == [None, handle("2"), handle("3")]
