"""Generates what simulated state hosts have and send: shards, realistic handles, acknowledgements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from chandy.state.rpc.messages import Ack, ShardSnapshot
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.layout import pack_key, shared_key
from chandy.storage.checkpoints.manifest import FileRef, Handle, OperatorRecord
from chandy.storage.ids import CheckpointId

QUERY: Final = "flights"
QUERY_ID: Final = "6c1b4f2e-9f0d-4a53-8a3e-2f6b7f0c9d11"
UID: Final = "totals"
SST_BYTES: Final = 70_000
"""Too large to be packed."""
_PACKED: Final = {"CURRENT": 16, "MANIFEST-000005": 1_523, "OPTIONS-000007": 7_411}
"""Typical sizes of the files that RocksDB keeps in addition to its SST files."""
FILES: Final = 1 + len(_PACKED)
"""Number of files in each shard's handle."""


@attrs.frozen
class Fleet:
    """The number of shards, and how they are distributed over state hosts and messages."""

    shards: int
    shards_a_host: int = 100
    acks_a_message: int | None = None
    """Number of ACKs in a message. None: one message has all shards of a host, as real hosts send it."""

    @property
    def hosts(self) -> dict[str, tuple[int, ...]]:
        """The shards of each host, by the host's id."""
        starts = range(0, self.shards, self.shards_a_host)
        return {
            hashlib.sha256(str(start).encode()).hexdigest()[:32]: tuple(
                range(start, min(start + self.shards_a_host, self.shards))
            )
            for start in starts
        }

    @property
    def messages(self) -> int:
        """Number of messages for all acknowledgements of a checkpoint."""
        size = self.acks_a_message or self.shards_a_host
        return sum(-(-len(shards) // size) for shards in self.hosts.values())

    def operator(self) -> OperatorRecord:
        """Return the single operator, which has all shards."""
        key = '{"type":"struct","fields":[{"name":"carrier","type":"string","nullable":true,"metadata":{}}]}'
        return OperatorRecord(UID, QUERY, key, {}, (None,) * self.shards)


def handle(checkpoint: CheckpointId, host: str, shard: int) -> Handle:
    """Return the handle of a shard that has changed: one new SST file, and the other files in a pack."""
    sha256 = _sha256(checkpoint, shard, "sst")
    pack = pack_key(checkpoint, f"{host}-{QUERY_ID}")
    offset = shard * sum(_PACKED.values())
    files = [FileRef(f"{checkpoint:06}.sst", shared_key(sha256), SST_BYTES, sha256)]
    for name, size in _PACKED.items():
        files.append(FileRef(name, pack, size, _sha256(checkpoint, shard, name), offset))
        offset += size
    return Handle(tuple(files))


def acknowledgements(order: SnapshotOrder, host: str, acks_a_message: int | None) -> Iterator[Ack]:
    """Yield the messages by which a host acknowledges an order."""
    size = acks_a_message or len(order.shards)
    for start in range(0, len(order.shards), size):
        some = order.shards[start : start + size]
        yield Ack(host, order.checkpoint, order.query_id, tuple(_snapshots(order.checkpoint, host, some)))


def _snapshots(checkpoint: CheckpointId, host: str, shards: Iterable[ShardId]) -> Iterator[ShardSnapshot]:
    for shard in shards:
        stored = handle(checkpoint, host, shard.shard)
        yield ShardSnapshot(shard, stored, stored.size, 0.0123, 0.00345, 0.678, entries=1000)


def _sha256(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()
