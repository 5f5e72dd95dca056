"""What a checkpoint costs on a distant store: requests, and seconds at 30 ms for each request.

Simulated hosts checkpoint shards as real state hosts do. The shards look like those of a real pipeline: each has a
large SST file and RocksDB's own bookkeeping, and a changed shard has one more SST file. The same is measured without
packs, where each file is an object of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from chandy.storage import ObjectExistsError, ObjectMissingError, Store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import pack_key, trigger_key
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, Manifest, OperatorRecord, QueryRecord
from chandy.storage.checkpoints.snapshots import PACK_BELOW, SnapshotWriter
from chandy.storage.ids import BatchId, CheckpointId

from .chart import bars
from .report import Options, Report

LATENCY = 0.03
"""Seconds of each request, as with an object store in the same region."""
HOSTS = 2
UPLOADS = 4
"""Number of parallel uploads of a host."""
CHANGED = 8
"""One shard in ``CHANGED`` has changed since the last checkpoint."""
SHARDS = (16, 64)
_WITHOUT_PACKS = "a request for each file"
_CHANDY = "Chandy"


class FarStore(Store):
    """Objects in memory. Each request is counted and takes ``latency`` seconds."""

    def __init__(self, latency: float) -> None:
        self.uri = "memory://far"
        self.requests = 0
        self._latency = latency
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def _request(self) -> None:
        with self._lock:
            self.requests += 1
        time.sleep(self._latency)

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self._request()
        if key not in self._objects:
            raise ObjectMissingError(self.uri, key)
        return self._objects[key][offset : None if length is None else offset + length]

    def write(self, key: str, data: bytes) -> None:
        self._request()
        self._objects[key] = data

    def create(self, key: str, data: bytes) -> None:
        self._request()
        with self._lock:
            if key in self._objects:
                raise ObjectExistsError(self.uri, key)
            self._objects[key] = data

    def list(self, prefix: str = "") -> list[str]:
        self._request()
        return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        self.delete_all([key])

    def delete_all(self, keys: Collection[str]) -> None:
        self._request()
        for key in keys:
            self._objects.pop(key, None)


class Pipeline:
    """The shards of one operator on two hosts, and the driver that completes their checkpoints."""

    def __init__(self, store: FarStore, folder: Path, shards: int, *, packs: bool) -> None:
        self._store = store
        self._folder = folder
        self._shards = shards
        self._packs = packs
        self._pack_below = PACK_BELOW if packs else 0
        self._bases: dict[int, Handle] = {}
        self._catalog = Catalog(store)
        self._generation = self._catalog.take_over("benchmark", 1.0).generation
        self.new_files = 0

    def checkpoint(self, id: CheckpointId) -> None:
        """Take a checkpoint: all hosts and the driver store their parts in parallel, then comes the manifest."""
        self._catalog.check_not_fenced(self._generation)
        self._store.create(trigger_key(id), b"checkpoint")
        with ThreadPoolExecutor(HOSTS + 1) as hosts:
            parts = [hosts.submit(self._host, id, number) for number in range(HOSTS)]
            progress = hosts.submit(self._driver, id)
            handles = {shard: handle for part in parts for shard, handle in part.result().items()}
            record = progress.result()
        self._catalog.check_not_fenced(self._generation)
        shards = tuple(handles[shard] for shard in range(self._shards))
        operator = OperatorRecord("totals", "q", "{}", {}, shards)
        kind = CheckpointKind.PERIODIC
        manifest = Manifest(id, kind, "p", self._generation, 1.0, 2.0, (record,), (operator,), 0)
        self._catalog.commit(manifest)
        self._catalog.confirm(manifest)
        self._bases = handles

    def _host(self, id: CheckpointId, host: int) -> dict[int, Handle]:
        with ThreadPoolExecutor(UPLOADS) as pool:
            writer = SnapshotWriter(self._store, pack_key(id, f"host-{host}"), self._pack_below, pool)
            for shard in range(host, self._shards, HOSTS):
                writer.add(str(shard), self._files(id, shard), self._bases.get(shard))
            return {int(name): stored.handle for name, stored in writer.finish().items()}

    def _driver(self, id: CheckpointId) -> QueryRecord:
        names = [f"working/{name}/{id}" for name in ("offsets", "commits", "sources/0")]
        paths = {name: self._folder / name for name in names}
        for path in paths.values():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(300))
        writer = SnapshotWriter(self._store, pack_key(id, "driver-q"), self._pack_below)
        writer.add("q", paths)
        return QueryRecord("q", BatchId(id), writer.finish()["q"].handle)

    def _files(self, id: CheckpointId, shard: int) -> dict[str, Path]:
        """Write the files of a shard's snapshot, as RocksDB has them after a flush."""
        folder = self._folder / str(id) / str(shard)
        folder.mkdir(parents=True)
        large = self._folder / f"{shard}-000012.sst"
        if not large.exists():
            large.write_bytes(os.urandom(4 * PACK_BELOW))
        paths = {"000012.sst": large}
        sizes = {"MANIFEST-000005": 900, "OPTIONS-000007": 7000, "CURRENT": 16, "IDENTITY": 36}
        if id > 1 and shard % CHANGED == 0:
            sizes["000013.sst"] = 2 * PACK_BELOW
        for name, size in sizes.items():
            path = folder / name
            path.write_bytes(os.urandom(size))
            # RocksDB's bookkeeping is always packed. Another name hides it from the writer.
            paths[name if self._packs or name.endswith(".sst") else f"{name}.file"] = path
        self.new_files = sum(1 for one in range(self._shards) if one % CHANGED == 0)
        return paths


def run(options: Options) -> Report:
    """Measure the second checkpoint, for which few shards have changed."""
    latency = LATENCY / 10 if options.quick else LATENCY
    rows = []
    ratios = {}
    for shards in SHARDS:
        seconds = {}
        requests = {}
        for name, packs in ((_CHANDY, True), (_WITHOUT_PACKS, False)):
            with TemporaryDirectory(prefix="chandy-benchmark-") as folder:
                store = FarStore(latency)
                pipeline = Pipeline(store, Path(folder), shards, packs=packs)
                pipeline.checkpoint(CheckpointId(1))
                store.requests, began = 0, time.perf_counter()
                pipeline.checkpoint(CheckpointId(2))
                seconds[name], requests[name] = time.perf_counter() - began, store.requests
                rows.append(
                    {
                        "contestant": name,
                        "shards": shards,
                        "new SST files": pipeline.new_files,
                        "hosts": HOSTS,
                        "requests": requests[name],
                        "seconds": round(seconds[name], 3),
                    }
                )
        ratios[f"requests without packs / Chandy, {shards} shards"] = (
            requests[_WITHOUT_PACKS] / requests[_CHANDY]
        )
        ratios[f"seconds without packs / Chandy, {shards} shards"] = (
            seconds[_WITHOUT_PACKS] / seconds[_CHANDY]
        )
    return Report("store_requests", rows, ratios, {"latency_seconds": latency, "changed_one_in": CHANGED})


def draw(report: Report, path: Path) -> None:
    """Draw the seconds of each contestant."""
    rounds = {f"{row['contestant']}, {row['shards']} shards": [1000 * row["seconds"]] for row in report.rows}
    bars(path, title="A checkpoint at 30 ms a request", axis="milliseconds", rounds=rounds)
