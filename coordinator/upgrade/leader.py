"""What a shadow reads of its leader: completed checkpoints and the records of their batches, from the storage alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import attrs

from ...storage.checkpoints.batch_record import RECORDS_FILE, BatchRecords, decode
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.fencing import voided_by
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import FileRef, Manifest, QueryRecord
from ...storage.checkpoints.restore import read_file
from ...storage.errors import DamagedError, ObjectMissingError, SchemaTooNewError
from ...storage.ids import BatchId, CheckpointId
from ...storage.store import Store
from ..sinks.two_phase.staged import batch_of
from .following import Stage


@attrs.define
class FollowedPipeline:
    """The pipeline that is followed. Each of its checkpoints is read once."""

    catalog: Catalog
    _known: dict[CheckpointId, tuple[Manifest, Stage]] = attrs.field(factory=dict, init=False)

    def stages(self) -> list[Stage]:
        """Return the completed checkpoints that are there and can be read, oldest first.

        Raises:
            StorageError: the storage does not answer.
        """
        ids = self.catalog.list_ids()
        known = {id: found for id, found in self._known.items() if id in ids}
        for id in ids:
            if id not in known:
                # Retention may come first, and one that is damaged leads nowhere.
                with suppress(ObjectMissingError, DamagedError, SchemaTooNewError):
                    manifest = self.catalog.read(id)
                    known[id] = manifest, stage_of(self.catalog.store, manifest)
        self._known = known
        started = self.catalog.generations()
        return [
            stage
            for id, (manifest, stage) in known.items()
            if voided_by(manifest.generation, id, started) is None
        ]

    def located(self, checkpoint: CheckpointId) -> Located:
        """Return a checkpoint that ``stages`` has returned.

        Raises:
            ObjectMissingError: retention has dropped it since.
        """
        known = self._known.get(checkpoint)
        return Located(known[0] if known else self.catalog.read(checkpoint), self.catalog.store)

    def seconds_per_batch(self) -> float | None:
        """Return the time from one batch to the next, between the checkpoints that are there; None: not known."""
        manifests = [manifest for manifest, _ in self._known.values()]
        if len(manifests) < 2:
            return None
        first, last = (sum(query.batch for query in one.queries) for one in (manifests[0], manifests[-1]))
        seconds = manifests[-1].completed_at - manifests[0].completed_at
        return seconds / (last - first) if last > first and seconds > 0 else None


def stage_of(store: Store, manifest: Manifest) -> Stage:
    """Read what a checkpoint says to its shadow.

    Raises:
        DamagedError, ObjectMissingError: records cannot be read.
    """
    return Stage(
        manifest.id,
        {query.name: query.batch for query in manifest.queries},
        {query.name: found for query in manifest.queries if (found := _records(store, query)) is not None},
    )


def _records(store: Store, query: QueryRecord) -> BatchRecords | None:
    files = [file for file in query.files.files if file.name == RECORDS_FILE]
    return decode(read_file(store, files[0])) if files else None


def staged_files(manifest: Manifest, query: str, sink: str, batch: BatchId) -> Iterator[FileRef]:
    """Yield the files with the rows of a batch that a checkpoint has still to publish."""
    for record in manifest.queries:
        for output in record.outputs if record.name == query else ():
            for epoch in output.epochs if output.sink == sink else ():
                yield from (file for file in epoch.staged.files if batch_of(file) == batch)
