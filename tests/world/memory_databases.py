"""Databases of shards in memory: what a RocksDB does for a shard, in a hundredth of its time.

``test_databases`` holds both equal.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from chandy.state.errors import ShardClosedError, ShardUnreadableError
from chandy.state.host.cache import Value
from chandy.state.host.changes import POSITION_KEY
from chandy.state.rpc.metrics import OperatorMetrics
from chandy.storage import runtime
from chandy.storage.ids import NO_BATCH, BatchId

TABLES = 3
"""How many tables there may be before they are merged."""


@attrs.frozen
class MemoryDatabases:
    """``Databases`` in memory. A checkpoint writes files, and a database can be opened from them."""

    memory: int = 0
    used = 0
    step: Callable[[str], object] = lambda what: None
    """Called before each call to a disk: another thread may go on, time may pass, the disk may fail."""
    smallest: int = 0
    """Bytes that a table has at least. Large ones are objects of their own, which checkpoints and machines share."""

    def open(self, shard: str, directory: Path) -> MemoryDatabase:
        return MemoryDatabase(shard, directory, self.step, self.smallest)


class MemoryDatabase:
    """``ShardDatabase`` in memory.

    As in RocksDB, a table is a file that never changes, and none has the name of an earlier one.
    """

    def __init__(self, shard: str, directory: Path, step: Callable[[str], object], smallest: int) -> None:
        self._shard = shard
        self._directory = directory
        self._step = step
        self._smallest = smallest
        self._entries: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []
        self._new: dict[bytes, Value] = {}
        """What no table has."""
        self._tables: dict[str, bytes] = {}
        self._number = 0
        self._closed = False
        self.metrics = OperatorMetrics()
        step("open")
        directory.mkdir(parents=True, exist_ok=True)
        self._load()
        stored = self._entries.get(POSITION_KEY)
        self.empty = stored is None
        self.position = NO_BATCH if stored is None else BatchId(int(stored))

    def read(self, keys: list[bytes]) -> list[Value]:
        self._begin("read")
        return [self._entries.get(key) for key in keys]

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.empty or start >= stop:
            return
        self._begin("scan")
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        yield from [(key, self._entries[key]) for key in keys if key != POSITION_KEY]

    def write(self, entries: Mapping[bytes, Value], batch: BatchId) -> None:
        self._begin("write")
        self.empty = False
        self._apply(entries)
        self._apply({POSITION_KEY: str(batch).encode()})
        self.metrics.written_keys += len(entries)

    def checkpoint(self, directory: Path) -> int:
        self._begin("checkpoint")
        if self._new:
            self._write_table(self._new)
            self._new = {}
        if len(self._tables) > TABLES:
            merged: dict[bytes, Value] = {}
            for table in self._tables.values():
                merged |= _unpacked(table)
            for name in self._tables:
                (self._directory / name).unlink()
            self._tables.clear()
            self._write_table({key: value for key, value in merged.items() if value is not None})
        directory.mkdir()
        for name in self._tables:
            (directory / name).hardlink_to(self._directory / name)
        self._number += 1
        manifest = f"MANIFEST-{self._number:06}"
        (directory / manifest).write_text(json.dumps([self._number, *self._tables]))
        (directory / "CURRENT").write_text(manifest)
        return max(0, len(self._entries) - 1)

    def close(self) -> None:
        self._closed = True

    def _begin(self, what: str) -> None:
        try:
            self._step(what)
        except OSError as error:
            if what == "read":
                raise ShardUnreadableError(self._shard, str(error)) from error
            raise
        if self._closed:
            raise ShardClosedError(self._shard)

    def _load(self) -> None:
        current = self._directory / "CURRENT"
        if not current.exists():
            return
        self._number, *names = json.loads((self._directory / current.read_text()).read_text())
        for name in names:
            self._tables[name] = (self._directory / name).read_bytes()
            self._apply(_unpacked(self._tables[name]))
        self._new.clear()

    def _apply(self, entries: Mapping[bytes, Value]) -> None:
        self._new |= entries
        for key, value in entries.items():
            is_known = key in self._entries
            if value is not None:
                self._entries[key] = value
                if not is_known:
                    insort(self._keys, key)
            elif is_known:
                del self._entries[key]
                del self._keys[bisect_left(self._keys, key)]

    def _write_table(self, entries: Mapping[bytes, Value]) -> None:
        self._number += 1
        name = f"{self._number:06}.sst"
        table = {key.hex(): None if value is None else value.hex() for key, value in sorted(entries.items())}
        # No two tables have the same bytes: RocksDB writes into each by which session of which database it was made.
        self._tables[name] = json.dumps([runtime.token(), table]).encode().ljust(self._smallest)
        (self._directory / name).write_bytes(self._tables[name])


def _unpacked(table: bytes) -> dict[bytes, Value]:
    found: dict[str, str | None] = json.loads(table)[1]
    return {
        bytes.fromhex(key): None if value is None else bytes.fromhex(value) for key, value in found.items()
    }
