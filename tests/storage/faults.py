"""A store that fails on purpose, and a driver's life on it: checkpoints with shards, retention, aborts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from chandy.coordinator.execution.commit import commit_steps
from chandy.storage import ObjectStat, OutcomeUnknownError, StorageError, Store, StoreFailedError
from chandy.storage.backends.retrying import RetryingStore, RetryPolicy
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import discard, discard_aborted, ended
from chandy.storage.checkpoints.manifest import Handle, Manifest, OperatorRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import verify

from ..builders import AskingProof, make_manifest

FINE, REFUSED, TIMED_OUT, LOST, HALF, FULL, KILLED = [
    "fine",
    "refused",
    "timed_out",
    "lost",
    "half",
    "full",
    "killed",
]
FAULTS = (REFUSED, TIMED_OUT, LOST, HALF, FULL, KILLED)
"""Before the operation: a connection refused. Instead of it: a time-out, a full disk (which stays). After it: an
answer that is lost. In the middle: half a body. And the end of the driver, before or after it."""


class Killed(BaseException):
    """The driver is dead."""


class FaultyStore(Store):
    """Makes each operation of a store go wrong as a plan says: one fault for each operation, then none."""

    def __init__(self, store: Store, plan: Iterable[str]) -> None:
        self.store = store
        self.uri = store.uri
        self.plan = iter(plan)
        self.dead = False
        self.operations = 0

    def _do(
        self, key: str, operation: str, act: Callable[[], Any], half: Callable[[], Any] | None = None
    ) -> Any:
        self.operations += 1
        fault = KILLED if self.dead else next(self.plan, FINE)
        if fault == KILLED:
            if not self.dead and self.operations % 2:
                act()
            self.dead = True
            raise Killed
        if fault == REFUSED:
            raise StoreFailedError(self.uri, key, operation, "connection refused", transient=True)
        if fault == FULL:
            raise StoreFailedError(self.uri, key, operation, "no space left on device")
        if fault == HALF and half is not None:
            half()
        if fault in (HALF, TIMED_OUT):
            raise StoreFailedError(self.uri, key, operation, "timed out", transient=True)
        result = act()
        if fault == LOST:
            raise StoreFailedError(self.uri, key, operation, "connection reset", transient=True)
        return result

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        data: bytes = self._do(key, "read", lambda: self.store.read(key, offset, length))
        return data

    def write(self, key: str, data: bytes) -> None:
        half = data[: len(data) // 2]
        self._do(key, "write", lambda: self.store.write(key, data), lambda: self.store.write(key, half))

    def create(self, key: str, data: bytes) -> None:
        self._do(key, "create", lambda: self.store.create(key, data))

    def list(self, prefix: str = "") -> list[str]:
        keys: list[str] = self._do(prefix, "list", lambda: self.store.list(prefix))
        return keys

    def delete(self, key: str) -> None:
        self._do(key, "delete", lambda: self.store.delete(key))

    def delete_all(self, keys: Collection[str]) -> None:
        # In the middle: the first half is gone.
        some = sorted(keys)[: len(keys) // 2]
        self._do("many", "delete", lambda: self.store.delete_all(keys), lambda: self.store.delete_all(some))

    def stat(self, key: str) -> ObjectStat:
        stat: ObjectStat = self._do(key, "look at", lambda: self.store.stat(key))
        return stat

    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        found: dict[str, ObjectStat] = self._do(prefix, "list", lambda: self.store.scan(prefix))
        return found


class Inline(Executor):
    """Runs what it is given at once: the order of operations is that of the plan."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 (it is in the future)
            future.set_exception(error)
        return future


@attrs.define
class FaultyWorld:
    """One pipeline's store, and what all its drivers have attempted and announced."""

    store: Store
    folder: Path
    retained: int = 2
    contents: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    """By the SHA-256 of a manifest's shards, what is in it."""
    announced: list[int] = attrs.field(factory=list)
    kept: set[int] = attrs.field(factory=set)
    """Those that were announced and that no driver has begun to drop."""
    numbers: Iterator[int] = attrs.field(factory=lambda: iter(range(10**9)))

    def live(self, plan: Iterable[str], checkpoints: int, shards: int = 2) -> FaultyStore:
        """One driver, from its take-over to its end, whichever that is."""
        faulty = FaultyStore(self.store, plan)
        store = RetryingStore(faulty, RetryPolicy(attempts=4), sleep=lambda seconds: None)
        # What the driver has not learnt to live with ends it, as a kill does.
        with suppress(Killed, StorageError):
            self._live(store, checkpoints, shards)
        return faulty

    def _live(self, store: Store, checkpoints: int, shards: int) -> None:
        catalog = Catalog(store)
        began = catalog.take_over("driver", 1.0)
        completed = catalog.completed()
        base = completed[-1] if completed else None
        for id in range(began.next_id, began.next_id + checkpoints):
            try:
                manifest = self._checkpoint(store, catalog, id, began.generation, base, shards)
            except OutcomeUnknownError:
                # It may have completed: nothing of it is deleted, and this driver does not go on.
                return
            except StorageError:
                discard_aborted(store, id, AskingProof(store, began.generation))
                continue
            self.announced.append(id)
            self.kept.add(id)
            base = manifest
            completed.append(manifest)
            while len(completed) > self.retained:
                catalog.check_not_fenced(began.generation)
                self.kept.discard(completed[0].id)
                ended(discard(store, [completed[0]], lambda: completed[1:], Unshared()))
                del completed[0]

    def _checkpoint(
        self, store: Store, catalog: Catalog, id: int, generation: int, base: Manifest | None, shards: int
    ) -> Manifest:
        writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack", pack_below=20, pool=Inline())
        everything: dict[str, bytes] = {}
        number = next(self.numbers)
        for shard in range(shards):
            # A file of a few contents that come again, one that is new, and a small one.
            contents = {
                "1.sst": b"%d" % (number % 3) * 30,
                f"{number}.sst": b"%d-%d" % (number, shard) * 30,
                "CURRENT": b"%d" % number,
            }
            paths = {}
            for name, content in contents.items():
                everything[f"{shard}/{name}"] = content
                paths[name] = self.folder / hashlib.sha256(content).hexdigest()
                if not paths[name].exists():
                    paths[name].write_bytes(content)
            writer.add(str(shard), paths, base.operators[0].shards[shard] if base else None)
        stored = writer.finish()
        handles = tuple(stored[str(shard)].handle for shard in range(shards))
        self.contents[_name(handles)] = everything
        operator = OperatorRecord("totals", "q", "{}", {}, handles)
        manifest = make_manifest(id, generation, queries=(), operators=(operator,))
        asked = iter(range(3))
        steps = commit_steps(manifest, store.uri, catalog, lambda _: store, lambda: next(asked, None) is None)
        for _ in steps:
            pass
        return manifest

    def check(self, restored: Path) -> None:
        """The latest checkpoint restores to what it was, and nothing that a completed one needs is gone."""
        catalog = Catalog(self.store)
        completed = catalog.completed()
        assert self.kept <= {manifest.id for manifest in completed}
        for manifest in completed:
            report = verify(self.store, manifest, threads=1)
            assert report.ok, report.problems
        newest = max(self.announced, default=0)
        latest = catalog.latest()
        assert (latest.id if latest else 0) >= newest
        if latest:
            handles = latest.operators[0].shards
            found = {}
            for shard, handle in enumerate(handles):
                assert handle is not None
                place = restored / str(shard)
                restore_files(self.store, handle, place, threads=1)
                found |= {f"{shard}/{path.name}": path.read_bytes() for path in place.iterdir()}
            assert found == self.contents[_name(handles)]


def _name(handles: Iterable[Handle | None]) -> str:
    return hashlib.sha256(repr(tuple(handles)).encode()).hexdigest()
