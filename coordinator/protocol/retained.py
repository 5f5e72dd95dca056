"""The completed checkpoints of a pipeline: which are kept, and which objects go with the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from ...state.shards import ShardId
from ...storage.checkpoints.manifest import Manifest
from ...storage.checkpoints.retention import deletable, dropped
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from .instructions import Discard


@attrs.define
class RetainedCheckpoints:
    """The completed checkpoints that a pipeline keeps, oldest first; savepoints are never among them."""

    limit: int
    """How many to keep; see ``retention.dropped``."""
    manifests: tuple[Manifest, ...] = ()
    base: CheckpointId | None = None
    """The one that the current state grew from."""
    _deleting: dict[tuple[CheckpointId, ...], tuple[Manifest, ...]] = attrs.field(factory=dict, init=False)
    """Dropped checkpoints that are not known to be gone, as they were dropped together."""
    _undecided: dict[CheckpointId, Manifest] = attrs.field(factory=dict, init=False)
    """Checkpoints of which nobody knows whether their manifest was written: nothing that they name is deleted."""

    def find(self, id: CheckpointId | None) -> Manifest | None:
        """Return a checkpoint that is kept."""
        return next((manifest for manifest in self.manifests if manifest.id == id), None)

    @property
    def latest(self) -> Manifest | None:
        """The newest of them."""
        return self.manifests[-1] if self.manifests else None

    @property
    def base_manifest(self) -> Manifest | None:
        """The manifest of the base."""
        return self.find(self.base)

    def sizes(self) -> dict[tuple[str, ShardId], int]:
        """Return the bytes of each shard in the base, by the name of its query."""
        base = self.base_manifest
        return {
            (operator.query, ShardId(operator.uid, number)): handle.size if handle else 0
            for operator in (base.operators if base else ())
            for number, handle in enumerate(operator.shards)
        }

    def base_has(self, batches: Mapping[str, BatchId]) -> bool:
        """Whether the base has all batches of queries up to these; -1 stands for no batch."""
        base = self.base_manifest
        at = {query.name: query.batch for query in base.queries} if base else {}
        return all(batch <= at.get(name, NO_BATCH) for name, batch in batches.items())

    def base_with(self, batches: Mapping[str, BatchId]) -> Manifest | None:
        """Return the manifest of the base if it has all batches of queries up to these."""
        return self.base_manifest if self.base_has(batches) else None

    def add(self, manifest: Manifest) -> None:
        """Keep a checkpoint that has completed. The state grows from it now."""
        self.base = manifest.id
        self.manifests = tuple(sorted((*self.manifests, manifest), key=lambda one: one.id))

    def leave_undecided(self, manifest: Manifest) -> None:
        """Delete nothing of a checkpoint whose manifest may have been written."""
        self._undecided[manifest.id] = manifest

    def needs(self, key: str) -> bool:
        """Whether a checkpoint that is kept has this object."""
        return any(key in manifest.keys() for manifest in self.manifests)  # noqa: SIM118

    def may_exist(self, id: CheckpointId) -> bool:
        """Whether a checkpoint is kept, or may have completed."""
        return id in self._undecided or self.find(id) is not None

    def drop(self, bases: Collection[CheckpointId], acknowledged: Collection[str]) -> Discard | None:
        """Drop the checkpoints that are too many, but none that a pending one needs.

        Args:
            bases: ids of the bases of pending checkpoints.
            acknowledged: objects that pending checkpoints have. Their bases need not have them: a shard that moves is
                opened from an older checkpoint, whose files have the same names when its new host stores them.
        """
        ids = dropped(
            [one.id for one in self.manifests if not one.unverified],
            self.limit,
            [*bases, *([] if self.base is None else [self.base])],
            [one.id for one in self.manifests if one.unverified],
        )
        gone = tuple(one for one in self.manifests if one.id in ids)
        if acknowledged:
            exposed = set(acknowledged).difference(
                *(one.keys() for one in self.manifests if one.id not in ids)
            )
            gone = tuple(one for one in gone if exposed.isdisjoint(one.keys()))
        if not gone:
            return None
        ids = tuple(one.id for one in gone)
        self.manifests = tuple(one for one in self.manifests if one.id not in ids)
        self._deleting[ids] = gone
        return Discard(gone)

    def deleted(self, ids: tuple[CheckpointId, ...], remaining: Collection[Manifest]) -> None:
        """Record that checkpoints which were dropped together are deleted, but for some that are still there.

        What these reference must stay. The next call of ``drop`` drops them again.
        """
        del self._deleting[ids]
        self.manifests = tuple(sorted((*self.manifests, *remaining), key=lambda one: one.id))

    def there_besides(self, ids: tuple[CheckpointId, ...]) -> tuple[Manifest, ...]:
        """Return what is not known to be gone, besides checkpoints that were dropped together."""
        others = (one for dropped, group in self._deleting.items() if dropped != ids for one in group)
        return (*self._kept(), *others)

    def being_deleted(self) -> frozenset[str]:
        """Return the objects that may go with dropped checkpoints, whichever of these is deleted first.

        None is added but by ``drop``.
        """
        if not self._deleting:
            return frozenset()
        return deletable((one for group in self._deleting.values() for one in group), self._kept())

    def _kept(self) -> tuple[Manifest, ...]:
        return (*self.manifests, *self._undecided.values())

    @property
    def deletions(self) -> int:
        """How many dropped checkpoints are not deleted yet."""
        return sum(map(len, self._deleting))
