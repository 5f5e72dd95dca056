"""Makes checkpoints whose shards hold given entries, in real databases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rocksdict import Options, Rdict

from chandy.state.host.shard_snapshot import snapshot_files
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.manifest import Handle, OperatorRecord, QueryRecord, StateRecord
from chandy.storage.checkpoints.snapshots import SnapshotWriter

from ...builders import make_manifest

Entries = Mapping[bytes, bytes]


class Checkpoints:
    """Checkpoints of one pipeline, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "store" / "p")
        self.catalog = Catalog(self.store)
        self.catalog.take_over("driver", 1.0)
        self._stored = 0

    def store_shards(self, shards: Sequence[Entries | Handle | None]) -> tuple[Handle | None, ...]:
        """Store what shards hold; a handle stays as it is, as of a shard that has not changed."""
        found = []
        for held in shards:
            if held is None or isinstance(held, Handle):
                found.append(held)
                continue
            self._stored += 1
            options = Options(raw_mode=True)
            directory = self.folder / f"db-{self._stored}"
            db = Rdict(str(directory), options, column_families={"default": options})
            for key, data in held.items():
                db[key] = data
            db.flush()
            db.close()
            writer = SnapshotWriter(self.store, f"checkpoints/1/shard-{self._stored}.pack", pack_below=0)
            writer.add("shard", snapshot_files(directory))
            found.append(writer.finish()["shard"].handle)
        return tuple(found)

    def commit(
        self,
        id: int,
        shards: Sequence[Entries | Handle | None],
        states: dict[str, StateRecord],
        key_schema: str,
        uid: str = "op",
    ) -> Located:
        """Commit a checkpoint with one operator."""
        record = OperatorRecord(uid, "q", key_schema, states, self.store_shards(shards))
        return self.commit_records(id, (record,))

    def commit_records(
        self, id: int, operators: tuple[OperatorRecord, ...], queries: tuple[QueryRecord, ...] = ()
    ) -> Located:
        """Commit a checkpoint with these operators and queries."""
        manifest = make_manifest(id, queries=queries, operators=operators, pipeline="p")
        self.catalog.commit(manifest)
        return Located(manifest, self.store)

    def query(self, name: str, batch: int, offsets: str) -> QueryRecord:
        """Store a query's files: its offsets, and others that nobody asks for."""
        folder = self.folder / f"query-{name}-{batch}"
        folder.mkdir()
        (folder / "offsets").write_text(offsets)
        (folder / "other").write_text("v1\n{}\nother")
        writer = SnapshotWriter(self.store, f"checkpoints/1/{name}-{batch}.pack")
        names = {f"working/offsets/{batch}": "offsets", f"working/offsets/{batch - 1}": "other"}
        writer.add("q", {name: folder / file for name, file in names.items()})
        return QueryRecord(name, batch, writer.finish()["q"].handle)
