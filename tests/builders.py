"""What the tests of all packages are made from: manifests, and a store in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from typing_extensions import override

from chandy.coordinator.protocol.failover import Failover
from chandy.coordinator.protocol.restart_tracker import RestartStrategy
from chandy.coordinator.recovery.restart import FixedDelay
from chandy.storage import ObjectExistsError, ObjectMissingError, ObjectStat, Store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import pack_key, shared_key, staged_folder
from chandy.storage.checkpoints.manifest import (
    CheckpointKind,
    Handle,
    Manifest,
    OperatorRecord,
    QueryRecord,
    StateRecord,
)
from chandy.storage.checkpoints.proof import FenceProof
from chandy.storage.ids import BatchId, CheckpointId

NO_FILES = Handle()
PROBE = f"probes/{0:032x}"
"""Key of an object of the form that tries a store out."""


def shared(digit: str) -> str:
    """Key of a shared file, by the hexadecimal digit of which its SHA-256 consists."""
    return shared_key(digit * 64)


def pack(checkpoint: int, writer: str = "h") -> str:
    """Key of a pack."""
    return pack_key(CheckpointId(checkpoint), f"{writer}-{0:012x}")


def staged(query: str, number: int) -> str:
    """Key of a file that a task has staged."""
    return f"{staged_folder(query)}0-0-{number}-{0:032x}.parquet"


def make_manifest(
    id: int = 1,
    generation: int = 1,
    shards: Iterable[Handle | None] = (),
    files: Handle = NO_FILES,
    *,
    kind: CheckpointKind = CheckpointKind.PERIODIC,
    pipeline: str = "flights",
    queries: tuple[QueryRecord, ...] | None = None,
    operators: tuple[OperatorRecord, ...] | None = None,
    triggered_at: float = 1000.0,
    completed_at: float = 1000.5,
    new_bytes: int = 0,
) -> Manifest:
    """A manifest, by default of the query "delays" with ``files`` and its operator "totals" with ``shards``."""
    if queries is None:
        queries = (QueryRecord("delays", BatchId(41), files),)
    if operators is None:
        states = {"sum": StateRecord(("{}",))}
        operators = (OperatorRecord("totals", "delays", "{}", states, tuple(shards)),)
    return Manifest(
        id=CheckpointId(id),
        kind=kind,
        pipeline=pipeline,
        generation=generation,
        triggered_at=triggered_at,
        completed_at=completed_at,
        queries=queries,
        operators=operators,
        new_bytes=new_bytes,
        versions={"chandy": "0.1.0"},
    )


class AskingProof(FenceProof):
    """The proof of a generation that asks the store each time."""

    def __init__(self, store: Store, generation: int) -> None:
        self.catalog = Catalog(store)
        self._generation = generation

    @property
    @override
    def generation(self) -> int:
        return self._generation

    @override
    def check(self) -> None:
        self.catalog.check_not_fenced(self._generation)

    @override
    def check_now(self) -> None:
        self.check()


class MemoryStore(Store):
    """Objects in memory, strongly consistent."""

    def __init__(self, uri: str = "memory://test") -> None:
        self.uri = uri
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self._lock = threading.Lock()

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            if key not in self.objects:
                raise ObjectMissingError(self.uri, key)
            return self.objects[key][offset : None if length is None else offset + length]

    @override
    def write(self, key: str, data: bytes) -> None:
        with self._lock:
            self._put(key, data)

    @override
    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self.objects:
                raise ObjectExistsError(self.uri, key)
            self._put(key, data)

    @override
    def list(self, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    @override
    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(key, None)

    @override
    def stat(self, key: str) -> ObjectStat:
        with self._lock:
            if key not in self.objects:
                raise ObjectMissingError(self.uri, key)
            return ObjectStat(len(self.objects[key]), self.written[key])

    def _put(self, key: str, data: bytes) -> None:
        self.objects[key] = bytes(data)
        self.written[key] = time.time()


def failover(strategy: RestartStrategy = FixedDelay("1 s", attempts=10**9)) -> Failover:  # noqa: B008 (frozen)
    """Return what decides about failures, with nothing that has happened yet."""
    return Failover(strategy.tracker(), lambda: 0.5)
