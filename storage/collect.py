"""Deleting objects: those of dropped checkpoints, and the garbage that crashes have left.

Two things are never deleted: what a completed checkpoint references, and what a checkpoint in flight will.
A checkpoint in flight references files of its base, which is completed and kept as long as it is in use, and
files that it uploads itself, which makes them young (``Store.stat``) even where the object existed before. So
an object is garbage if it was listed before the manifests were, none of them references it, and it is older
than any checkpoint can take. What belongs to a checkpoint's own folder must in addition have an id below the
newest completed one: ids are committed in order. What a damaged manifest needs nobody knows: all shared objects
then stay, and the folders of all checkpoints up to it, for it may be mended yet. What is in the folder of a later
checkpoint none needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

import attrs

from .catalog import Catalog
from .errors import ObjectMissingError
from .fencing import voided_by
from .layout import CHECKPOINTS, PROBES, checkpoint_of, is_shared, manifest_key, savepoint_key, trigger_key
from .manifest import Manifest
from .retention import deletable
from .store import ObjectStat, Store

GRACE_SECONDS = 24 * 3600.0
"""Age below which an object may belong to a checkpoint in flight, unless said."""

_AT_ONCE = 1000
"""Objects that are deleted between two looks at how old the next ones are."""
_LOOKS = 8
"""Objects that are looked at at a time."""


@attrs.frozen
class Garbage:
    """What ``collect_garbage`` found."""

    keys: tuple[str, ...]
    """Objects that nothing needs; deleted unless it was a dry run. Void manifests come first."""
    bytes: int
    """Bytes of them."""
    young: int
    """Objects that nothing references but that were spared: they may belong to a checkpoint in flight."""
    damaged: tuple[str, ...] = ()
    """Manifests that are damaged, by their keys."""
    spared: int = 0
    """Objects that were spared because one of those may need them."""


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
    store.delete_all([manifest_key(manifest.id) for manifest in dropped])
    store.delete_all([*(trigger_key(manifest.id) for manifest in dropped), *sorted(keys)])
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
        DamagedError: nobody knows what a later checkpoint references; nothing was deleted.
    """
    catalog = Catalog(store)
    own = manifest_key(checkpoint)
    found = frozenset(store.list(f"{CHECKPOINTS}{checkpoint}/"))
    if generation is not None:
        catalog.check_not_fenced(generation)
    if own in found and catalog.read(checkpoint).generation != generation:
        return frozenset()
    completed, damaged = catalog.completed_and_damage()
    for number, error in damaged.items():
        # What is older has nothing of this one.
        if number > checkpoint:
            raise error
    others = (manifest for manifest in completed if manifest.id != checkpoint)
    keys = found - {savepoint_key(checkpoint), trigger_key(checkpoint)}.union(
        *(manifest.keys() for manifest in others)
    )
    # The manifest first, if it came into being although its write was said to have failed.
    if own in keys:
        store.delete(own)
    store.delete_all(sorted(keys - {own}))
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
        SchemaTooNewError: a newer version wrote a manifest, so nobody here knows what it needs: nothing has
            been deleted.
        DamagedError: the record of a generation is damaged, so nobody knows what counts: as above.
    """
    store = catalog.store
    # In this order: what is listed before the manifests are cannot be of a checkpoint that completes later
    # without being young.
    objects = store.scan()
    manifests, damaged = catalog.manifests_and_damage()
    started = catalog.generations()
    void = [manifest for manifest in manifests if voided_by(manifest.generation, manifest.id, started)]
    completed = [manifest for manifest in manifests if manifest not in void]
    needed = frozenset[str]().union(*(manifest.keys() for manifest in completed))
    newest = max((manifest.id for manifest in completed), default=0)
    # A void manifest is garbage at any age, and goes before what it references.
    doomed = {manifest_key(manifest.id): store.stat(manifest_key(manifest.id)).size for manifest in void}
    whole = [manifest.id for manifest in completed]
    own = {key(id) for id in (*whole, *damaged) for key in (manifest_key, trigger_key)}
    unneeded = _candidates(objects, {*needed, *doomed, *own}, newest)
    candidates = [key for key in unneeded if not _may_need(damaged, key)]
    old = _old(
        store, [key for key in candidates if not _is_young(objects[key], now, older_than)], now, older_than
    )
    if not dry_run:
        store.delete_all(list(doomed))
        for begin in range(0, len(old), _AT_ONCE):
            some = list(old)[begin : begin + _AT_ONCE]
            # Once more: somebody may have uploaded one of them again since.
            store.delete_all(list(_old(store, some, now, older_than)) if begin else some)
        store.sweep(now - older_than)
    garbage = doomed | old
    return Garbage(
        keys=tuple(garbage),
        bytes=sum(garbage.values()),
        young=len(candidates) - len(old),
        damaged=tuple(map(manifest_key, damaged)),
        spared=len(unneeded) - len(candidates),
    )


def _old(store: Store, keys: Collection[str], now: float, older_than: float) -> dict[str, int]:
    """Return those of some objects that have been left alone for long enough, with their sizes."""

    def look(key: str) -> ObjectStat | None:
        try:
            return store.stat(key)
        except ObjectMissingError:
            return None

    with ThreadPoolExecutor(_LOOKS, "chandy-gc") as pool:
        stats = dict(zip(keys, pool.map(look, keys), strict=True))
    return {
        key: stat.size
        for key, stat in stats.items()
        if stat and (older_than <= 0 or (stat.modified is not None and now - stat.modified >= older_than))
    }


def _is_young(listed: ObjectStat, now: float, older_than: float) -> bool:
    """Whether a list already says that an object is young; it cannot say that one is still old."""
    return older_than > 0 and listed.modified is not None and now - listed.modified < older_than


def _candidates(objects: Iterable[str], spared: Collection[str], newest: int) -> list[str]:
    return [
        key
        for key in objects
        if key not in spared and (is_shared(key) or key.startswith(PROBES) or _is_leftover(key, newest))
    ]


def _may_need(damaged: Collection[int], key: str) -> bool:
    """Whether an object can be one that a checkpoint needs whose manifest is damaged."""
    checkpoint = checkpoint_of(key)
    return bool(damaged) and (is_shared(key) or (checkpoint is not None and checkpoint <= max(damaged)))


def _is_leftover(key: str, newest: int) -> bool:
    checkpoint = checkpoint_of(key)
    return checkpoint is not None and checkpoint < newest and key != savepoint_key(checkpoint)
