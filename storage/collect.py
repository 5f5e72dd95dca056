"""Deleting objects: those of dropped checkpoints, and the garbage that crashes have left.

Two things are never deleted: what a completed checkpoint references, and what a checkpoint in flight will.
A checkpoint in flight references files of its base, which is completed and kept as long as it is in use, and
files that it uploads itself, which makes them young (``Store.stat``) even where the object existed before. So
an object is garbage if it was listed before the manifests were, none of them references it, and it is older
than any checkpoint can take. What belongs to a checkpoint's own folder must in addition have an id below the
newest completed one: ids are committed in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress

import attrs

from .catalog import Catalog
from .errors import ObjectMissingError
from .fencing import voided_by
from .layout import CHECKPOINTS, PROBES, checkpoint_of, is_shared, manifest_key, savepoint_key, trigger_key
from .manifest import Manifest
from .retention import deletable
from .store import Store

GRACE_SECONDS = 24 * 3600.0
"""Age below which an object may belong to a checkpoint in flight, unless said."""


@attrs.frozen
class Garbage:
    """What ``collect_garbage`` found."""

    keys: tuple[str, ...]
    """Objects that nothing needs; deleted unless it was a dry run. Void manifests come first."""
    bytes: int
    """Bytes of them."""
    young: int
    """Objects that nothing references but that were spared: they may belong to a checkpoint in flight."""


def discard(store: Store, dropped: Iterable[Manifest], kept: Iterable[Manifest]) -> frozenset[str]:
    """Delete dropped checkpoints and the objects that only they reference; return the keys of those.

    The manifests go first: a crash in between leaves garbage, never a manifest whose files are gone.

    Args:
        store: the pipeline's.
        dropped: the checkpoints to delete.
        kept: all other completed checkpoints, the bases of pending ones among them.
    """
    dropped = list(dropped)
    keys = deletable(dropped, kept)
    for manifest in dropped:
        store.delete(manifest_key(manifest.id))
        store.delete(trigger_key(manifest.id))
    for key in sorted(keys):
        store.delete(key)
    return keys


def discard_aborted(store: Store, checkpoint: int, generation: int | None = None) -> frozenset[str]:
    """Delete what was written for a checkpoint alone that will never complete; return the keys.

    The notes that the id was used stay, and so does what completed checkpoints reference. Shared files stay,
    too: a later checkpoint may want them, and ``collect_garbage`` finds those that nobody wants.

    Args:
        store: the pipeline's.
        checkpoint: the id of the aborted checkpoint.
        generation: the caller's, which began the checkpoint. A successor may use the same id, so only what
            was listed before the caller was seen to be unfenced is sure to be its own. None: the caller knows
            that no other coordinator runs; a manifest is left alone then, for it may be another's.

    Raises:
        FencedError: the caller is fenced; nothing was deleted.
    """
    catalog = Catalog(store)
    own = manifest_key(checkpoint)
    found = frozenset(store.list(f"{CHECKPOINTS}{checkpoint}/"))
    if generation is not None:
        catalog.check_not_fenced(generation)
    if own in found and catalog.read(checkpoint).generation != generation:
        return frozenset()
    others = (manifest for manifest in catalog.completed() if manifest.id != checkpoint)
    keys = found - {savepoint_key(checkpoint), trigger_key(checkpoint)}.union(
        *(manifest.keys() for manifest in others)
    )
    # The manifest first, if it came into being although its write was said to have failed.
    for key in sorted(keys, key=lambda key: (key != own, key)):
        store.delete(key)
    return keys


def collect_garbage(
    catalog: Catalog, now: float, older_than: float = GRACE_SECONDS, dry_run: bool = False
) -> Garbage:
    """Delete what no completed checkpoint references: void manifests, leftovers of aborted checkpoints.

    Args:
        catalog: the pipeline's.
        now: seconds since 1970.
        older_than: seconds since its last write that an object must have been left alone; more than any
            checkpoint takes. 0 is safe only while no coordinator runs.
        dry_run: find, do not delete.

    Raises:
        DamagedError, SchemaTooNewError: a manifest cannot be read, so nobody knows what it needs: nothing has
            been deleted.
    """
    store = catalog.store
    objects = store.list()
    manifests = catalog.manifests()
    started = catalog.generations()
    void = [manifest for manifest in manifests if voided_by(manifest.generation, manifest.id, started)]
    completed = [manifest for manifest in manifests if manifest not in void]
    needed = frozenset[str]().union(*(manifest.keys() for manifest in completed))
    newest = max((manifest.id for manifest in completed), default=0)
    # A void manifest is garbage at any age, and goes before what it references.
    garbage = {manifest_key(manifest.id): store.stat(manifest_key(manifest.id)).size for manifest in void}
    own = {key(manifest.id) for manifest in completed for key in (manifest_key, trigger_key)}
    spared = {*needed, *garbage, *own}
    young = 0
    for key in _candidates(objects, spared, newest):
        with suppress(ObjectMissingError):
            stat = store.stat(key)
            if older_than > 0 and (stat.modified is None or now - stat.modified < older_than):
                young += 1
            else:
                garbage[key] = stat.size
    if not dry_run:
        for key in garbage:
            store.delete(key)
        store.sweep(now - older_than)
    return Garbage(tuple(garbage), sum(garbage.values()), young)


def _candidates(objects: Iterable[str], spared: Collection[str], newest: int) -> list[str]:
    return [
        key
        for key in objects
        if key not in spared and (is_shared(key) or key.startswith(PROBES) or _is_leftover(key, newest))
    ]


def _is_leftover(key: str, newest: int) -> bool:
    checkpoint = checkpoint_of(key)
    return checkpoint is not None and checkpoint < newest and key != savepoint_key(checkpoint)
