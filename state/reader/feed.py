"""A stream of the changes of one state: Spark's streaming source over the checkpoints of a pipeline.

A batch has the changes between the checkpoint that was read last and the newest one, so a reader that was away catches
up in one step. The first batches have the whole state. The reader pins what it has read and what it is about to read
(``storage.checkpoints.pins``), and a pin is released once the reader can no longer go back behind it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...storage.backends.open import open_store
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.pins import Pins
from ...storage.checkpoints.proof import Unshared
from ...storage.errors import ObjectMissingError
from ...storage.ids import CheckpointId
from ...storage.store import Store
from ..errors import NoSuchStateError
from ..pyspark_versions import SupportsTriggerAvailableNow
from .changes import StateChanges
from .feed_offsets import FeedOffset, in_place, next_offset, span_of

_LOOK_SECONDS: Final = 1.0
"""How often the store is asked for the newest checkpoint at most. Spark asks the source a hundred times a second."""


@attrs.frozen
class Feed:
    """What a stream reads, and how."""

    root: str
    """URI of the pipeline's store."""
    changes: StateChanges
    reader: str
    """Name of the reader, unique in the pipeline and the same in each of its lives."""
    releases: bool
    """Whether a checkpoint is released once Spark has committed the batch after it; if not, the caller releases it."""
    shards_per_batch: int | None = None
    """How many shards of the first checkpoint a batch reads at most; None: all."""


class FeedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a feed. In a task only ``read`` is called, of a reader that was made again."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._ids: list[CheckpointId] = []
        self._newest: CheckpointId | None = None
        self._looked_at = -_LOOK_SECONDS
        self._until: CheckpointId | None = None
        self._released: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._feed,)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Let the query end when it has read what is there now."""
        self._until = self._look()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before everything."""
        return FeedOffset().to_json()

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:  # noqa: N802
        """Return how far the next batch reads, and pin that checkpoint.

        Spark asks once it has committed the batch that ends at ``start``. So no batch needs older checkpoints any more.

        Raises:
            StorageError: the store does not answer.
            NoSuchStateError: the first checkpoint is gone before all of it was read.
        """
        offset = FeedOffset.of(start)
        self._release(offset)
        target = offset.to if offset.to is not None else self._latest()
        if target is None or target == offset.at:
            return start
        try:
            manifest = self._pins.hold(target, time.time())
        except ObjectMissingError:
            if offset.to is not None:
                raise self._lost(target, offset.completed_at, None) from None
            # Retention was faster. By the next call there is a newer one.
            self._looked_at, self._until, self._ids = -_LOOK_SECONDS, None, []
            return start
        if offset.to is not None and manifest.completed_at != offset.completed_at:
            raise self._lost(target, offset.completed_at, manifest.completed_at)
        end = next_offset(
            offset, target, manifest.completed_at, self._shards(manifest), self._feed.shards_per_batch
        )
        return end.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return what the tasks of a batch read.

        Raises:
            NoSuchStateError: a checkpoint is gone, or has no such state any more.
            StateSchemaError: the state has become another one.
        """
        before, after = FeedOffset.of(start), FeedOffset.of(end)
        span = span_of(before, after)
        if span is None:
            return []
        old = None if span.old is None else self._located(span.old, before.completed_at)
        new = self._located(span.new, after.completed_at)
        parts = self._feed.changes.parts(old, new, (span.first, span.stop))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition; raises as ``StateChanges.batches``."""
        return self._feed.changes.batches(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: of the newest batch, Spark tells this only once there is another one."""

    def stop(self) -> None:
        """Do nothing: the source has no resources, and its pins outlive it."""

    def _release(self, offset: FeedOffset) -> None:
        if self._feed.releases and offset.at is not None and offset.at != self._released:
            # Anyone who reads with plain Spark sees to it that there is one of it.
            self._pins.release_before(offset.at, Unshared())
            self._released = offset.at

    # --- the store ------------------------------------------------------------------------------------------

    @cached_property
    def _store(self) -> Store:
        return open_store(self._feed.root)

    @property
    def _pins(self) -> Pins:
        return Pins(self._store, self._feed.reader)

    def _latest(self) -> CheckpointId | None:
        """Return the newest checkpoint, or the one at which a query that takes what is there ends."""
        if self._until is not None:
            return self._until
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            return self._look()
        return self._newest

    def _look(self) -> CheckpointId | None:
        catalog = Catalog(self._store)
        # A manifest is large, and mostly there is no new one.
        if (ids := catalog.list_ids()) != self._ids:
            self._ids = ids
            latest = catalog.latest()
            self._newest = None if latest is None else latest.id
        return self._newest

    def _located(self, checkpoint: CheckpointId, completed_at: float | None) -> Located:
        store = self._store
        try:
            manifest = Catalog(store).read(checkpoint)
        except ObjectMissingError:
            raise self._lost(checkpoint, completed_at, None) from None
        if manifest.completed_at != completed_at:
            raise self._lost(checkpoint, completed_at, manifest.completed_at)
        return Located(manifest, store)

    def _shards(self, manifest: Manifest) -> int:
        uid = self._feed.changes.state.operator
        return next((len(one.shards) for one in manifest.operators if one.uid == uid), 0)

    def _lost(
        self, checkpoint: CheckpointId, completed_at: float | None, now: float | None
    ) -> NoSuchStateError:
        return NoSuchStateError(
            f"reader {self._feed.reader!r} cannot go on in {self._feed.root}",
            f"checkpoint {checkpoint}, whose state it has read or was reading",
            str(in_place(completed_at, now, Catalog(self._store).list_ids())),
            "start over: with another name for the reader, without its checkpoint, and with an empty target",
        )
