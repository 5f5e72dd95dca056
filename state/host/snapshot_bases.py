"""Which stored snapshots of a shard the next one can build on: pure decisions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import attrs

from ...storage.checkpoints.manifest import Handle
from ...storage.ids import CheckpointId
from ..rpc.messages import ShardSnapshot
from ..rpc.orders import SnapshotOrder
from ..shards import RestoreSource
from .shard_key import ShardKey

_KEPT: Final = 32


@attrs.frozen
class StoredBase:
    """A stored snapshot of a shard."""

    root: str
    """URI of the store that the handle is relative to."""
    handle: Handle


class SnapshotBases:
    """The stored snapshots of a host's shards, by shard and checkpoint.

    A savepoint is never a base, and nothing is copied from it: the user may move, delete or lose it.
    """

    def __init__(self) -> None:
        self._stored: dict[ShardKey, OrderedDict[int, StoredBase]] = {}

    def add_stored(self, order: SnapshotOrder, snapshots: Iterable[ShardSnapshot]) -> None:
        """Add the snapshots that an order has stored."""
        if order.is_savepoint:
            return
        for snapshot in snapshots:
            key = ShardKey(order.query_id, snapshot.shard.uid, snapshot.shard.shard)
            self._add(key, order.checkpoint, StoredBase(order.root, snapshot.handle))

    def add_restored(self, shard: ShardKey, source: RestoreSource) -> None:
        """Add what a shard was restored from."""
        if source.checkpoint >= 0:
            self._add(shard, source.checkpoint, StoredBase(source.root, source.handle))

    def base(self, shard: ShardKey, order: SnapshotOrder) -> Handle | None:
        """Return the snapshot whose files an order need not upload again, if there is one."""
        stored = self._stored.get(shard)
        base = None if stored is None or order.base is None else stored.get(order.base)
        # A handle is relative to its store: another one does not have the files.
        return base.handle if base is not None and base.root == order.root else None

    def copy_source(self, shard: ShardKey, order: SnapshotOrder) -> StoredBase | None:
        """Return the snapshot whose files a savepoint may copy from one store to the other.

        A checkpoint copies nothing: the store does not verify what it copies, and the shard's own files are here.
        """
        stored = self._stored.get(shard)
        return stored[next(reversed(stored))] if stored and order.is_savepoint else None

    def complete(self, checkpoint: CheckpointId) -> None:
        """Drop the bases that a completed checkpoint replaces."""
        for stored in self._stored.values():
            if (completed := stored.get(checkpoint)) is not None:
                replaced = [
                    n for n, older in stored.items() if n < checkpoint and older.root == completed.root
                ]
                for number in replaced:
                    del stored[number]

    def abort(self, checkpoint: CheckpointId) -> None:
        """Drop the snapshots of an aborted checkpoint, whose files are deleted."""
        for stored in self._stored.values():
            stored.pop(checkpoint, None)

    def forget(self, shards: Iterable[ShardKey]) -> None:
        """Drop everything about shards that this host no longer has."""
        for shard in shards:
            self._stored.pop(shard, None)

    def _add(self, shard: ShardKey, checkpoint: CheckpointId, base: StoredBase) -> None:
        stored = self._stored.setdefault(shard, OrderedDict())
        stored[checkpoint] = base
        if len(stored) > _KEPT:
            stored.popitem(last=False)
