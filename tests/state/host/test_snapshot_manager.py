"""How a host carries an order out: shards are written side by side, and nothing goes on once the order has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import attrs
import pytest

from chandy.state.host.snapshot_manager import SnapshotManager
from chandy.state.rpc.messages import Ack, Decline
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import FIRST_TERM, ShardId
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.snapshots import PACK_BELOW

from ...builders import MemoryStore
from ...waiting import DEADLINE

LARGE = b"x" * PACK_BELOW


@attrs.define
class WrittenSnapshot:
    """A snapshot whose files are written by a function of the test."""

    write: Callable[[], dict[str, Path]]
    entries: int = 1

    def files(self) -> dict[str, Path]:
        return self.write()

    def cancel(self) -> None:
        """Its files belong to the test."""


@attrs.frozen
class OneShard:
    """What the manager needs of a shard."""

    name: str
    taken: WrittenSnapshot
    term: Any = FIRST_TERM

    def reached(self, cut: int) -> int:
        return cut

    def snapshot(self, directory: Path, cut: int, *, follow: bool) -> WrittenSnapshot:
        return self.taken


class Uploads(MemoryStore):
    """A store that says which files are uploaded."""

    def __init__(self, said: Queue[Any]) -> None:
        super().__init__()
        self.said = said

    def upload(self, path: Path, key: str) -> None:
        self.said.put(path.name)
        super().upload(path, key)


@attrs.define
class ManagedShards:
    """A manager over shards of the test. What it uploads and what it tells the coordinator come in their order."""

    folder: Path
    said: Queue[Any] = attrs.field(factory=Queue)
    has_told: threading.Event = attrs.field(factory=threading.Event)

    def run(self, *writes: Callable[[], dict[str, Path]]) -> None:
        """Carry out an order for a checkpoint of shards that are written so."""
        shards = [OneShard(f"op/{number}", WrittenSnapshot(write)) for number, write in enumerate(writes)]
        store = Uploads(self.said)
        manager = SnapshotManager(
            "host",
            self,  # type: ignore[arg-type]
            lambda key: shards[key.shard],  # type: ignore[arg-type,return-value]
            self.folder / "snapshots",
            lambda uri: store,
            FileCache(self.folder / "cache"),
        )
        ids = tuple(ShardId("op", number) for number in range(len(shards)))
        manager.accept(SnapshotOrder(1, "query", "q", 0, ids, "memory://", None, 0.0, 60.0))

    def send(self, message: object) -> None:
        self.said.put(message)
        self.has_told.set()

    def hear(self) -> Any:
        return self.said.get(timeout=DEADLINE)

    def file(self, name: str) -> dict[str, Path]:
        """A file that is too large for a pack."""
        path = self.folder / name
        path.write_bytes(LARGE + name.encode())
        return {name: path}


@pytest.fixture
def host(tmp_path: Path) -> ManagedShards:
    return ManagedShards(tmp_path)


def test_shards_are_written_at_the_same_time(host: ManagedShards) -> None:
    both = threading.Barrier(2, timeout=DEADLINE)

    def written(name: str) -> dict[str, Path]:
        both.wait()
        return host.file(name)

    host.run(lambda: written("a.sst"), lambda: written("b.sst"))
    assert {host.hear(), host.hear()} == {"a.sst", "b.sst"}
    acknowledged = host.hear()
    assert isinstance(acknowledged, Ack)
    assert [one.shard.shard for one in acknowledged.snapshots] == [0, 1]


def test_after_a_failed_shard_nothing_is_uploaded_once_the_order_is_declined(host: ManagedShards) -> None:
    begun, failed = threading.Event(), threading.Event()

    def fails() -> dict[str, Path]:
        assert begun.wait(DEADLINE)
        failed.set()
        raise RuntimeError("the disk is full")

    def is_slow() -> dict[str, Path]:
        begun.set()
        assert failed.wait(DEADLINE)
        # For a moment, a decline could come that does not wait for this shard.
        host.has_told.wait(0.3)
        return host.file("late.sst")

    host.run(fails, is_slow)
    assert host.hear() == "late.sst"
    declined = host.hear()
    assert isinstance(declined, Decline)
    assert "the disk is full" in declined.error
