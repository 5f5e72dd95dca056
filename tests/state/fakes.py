"""A task's shards in memory, for tests of operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from chandy.state.format.arrow import BYTES
from chandy.state.link.access import Entries, ShardColumn
from chandy.state.link.messages import BatchTimes
from chandy.state.link.spent import Spent


class FakeShards:
    """What all shards of an operator hold; ``begin`` gives access to them in one batch."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, bytes], bytes] = {}
        self.applied = 0
        """How often changes were applied."""
        self.written: list[tuple[int, bytes]] = []
        """The shards and keys of the changes that were applied last."""
        self._known: set[int] = set()

    def begin(self, times: BatchTimes | None = None, shards: Iterable[int] = range(16)) -> FakeAccess:
        """Begin a batch on some shards."""
        own = frozenset(shards)
        access = FakeAccess(self, times or BatchTimes(), own - self._known, own)
        self._known |= own
        return access


class FakeAccess:
    """``StateAccess`` to ``FakeShards``; it is strict about how it is called."""

    def __init__(
        self, shards: FakeShards, times: BatchTimes, fresh: frozenset[int], own: frozenset[int]
    ) -> None:
        self.times = times
        self.fresh = fresh
        self.spent = Spent()
        self.fetches = 0
        self._shards = shards
        self._own = own
        self._open = True

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        self._check(shards, keys)
        self.fetches += 1
        held = self._shards.held
        pairs = zip(shards.tolist(), keys.to_pylist(), strict=True)
        return pa.array([held.get(pair) for pair in pairs], BYTES)

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        assert self._open
        held = self._shards.held
        for shard in sorted(self._own):
            keys = sorted(key for place, key in held if place == shard and start <= key < stop)
            if keys:
                values = [held[shard, key] for key in keys]
                shards = pa.array([shard] * len(keys), pa.int32()).to_numpy()
                yield Entries(shards, pa.array(keys, BYTES), pa.array(values, BYTES))

    def apply(self, changes: Iterable[Entries]) -> None:
        assert self._open
        self._open = False
        self._shards.applied += 1
        self._shards.written = []
        for entries in changes:
            self._check(entries.shards, entries.keys)
            assert entries.values.type == BYTES
            rows = zip(
                entries.shards.tolist(), entries.keys.to_pylist(), entries.values.to_pylist(), strict=True
            )
            for shard, key, value in rows:
                self._shards.written.append((shard, key))
                if value is None:
                    self._shards.held.pop((shard, key), None)
                else:
                    self._shards.held[shard, key] = value

    def _check(self, shards: ShardColumn, keys: pa.Array) -> None:
        assert shards.dtype.name == "int32"
        assert keys.type == BYTES
        assert keys.null_count == 0
        assert len(shards) == len(keys)
        assert set(shards.tolist()) <= self._own
        runs = [shard for at, shard in enumerate(shards.tolist()) if at == 0 or shards[at - 1] != shard]
        assert len(runs) == len(set(runs)), "those of one shard side by side"
