"""Deleting objects: those of dropped checkpoints, and the garbage that crashes leave behind.

Two kinds of objects are never deleted: those that a completed checkpoint references, and those that a checkpoint in
flight will reference. The latter are files of its base, which is completed and kept while it is in use, and files that
it uploads itself, which makes them young (``Store.stat``) even if the object existed before. So an object is garbage
if it was listed before the manifests were, no manifest references it, and it is older than any checkpoint can take.
Objects in a checkpoint's own folder must also have an id below the newest completed one, because ids are committed in
order.

A manifest must not come back. A store may have carried out the first of two attempts to create it when nobody waits for
it any more: after the deletion of what the second attempt has made. Then it would name objects that are gone. So before
a manifest is deleted for which the store was asked twice, a record says that the checkpoint is ``gone``, and every list
leaves it out. The record stays as long as the generation, because nobody knows when such an attempt ends; then the next
start record makes void what comes back. The checkpoints of earlier generations get the record, too: a driver that was
frozen may ask for its manifest once more.

The same holds for savepoints in the pipeline's own folder: one that was begun and has no manifest is garbage, all of it
at once, if none of its objects is young. One with a manifest is never touched.

Nobody knows what a damaged manifest references, and somebody may repair it. So while there is one, all shared objects
stay, and so do the folders of all checkpoints up to it. It cannot need the folders of later checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

import attrs

from .. import runtime
from ..errors import DamagedError, NotDeletedError, ObjectMissingError, SchemaTooNewError, StoreFailedError
from ..ids import CheckpointId
from ..store import ObjectStat, Store
from .catalog import Catalog
from .layout import (
    CHECKPOINTS,
    MANIFEST,
    STAGED,
    checkpoint_of,
    dropped_key,
    generation_key,
    gone_key,
    is_file,
    is_probe,
    is_shared,
    life_of_shadow,
    manifest_key,
    shadow_folder,
    trigger_key,
    verdict_of,
)
from .manifest import Manifest
from .pins import give_up, pinned
from .proof import FenceProof, Unshared
from .retention import deletable
from .unfinished_savepoints import unfinished_savepoints

GRACE_SECONDS = 24 * 3600.0
"""Default age below which an object may belong to a checkpoint in flight."""

_CLOCKS_DIFFER = 3600.0
"""Seconds by which the clocks of a store and a driver may differ."""
_AT_ONCE = 1000
"""Objects that are deleted before it is checked whether the next ones may still be."""
_THREADS = 8
"""Objects whose age is checked at a time."""


@attrs.frozen
class Garbage:
    """What ``collect_garbage`` found."""

    keys: tuple[str, ...]
    """Objects that nothing needs, void manifests first. They were deleted unless it was a dry run."""
    bytes: int
    """Bytes of these objects."""
    young: int
    """Unreferenced objects that were kept because they may belong to a checkpoint in flight."""
    damaged: tuple[str, ...] = ()
    """Keys of the damaged manifests."""
    spared: int = 0
    """Objects that were kept because a damaged manifest may need them."""
    failed: dict[str, str] = attrs.field(factory=dict)
    """Why objects that nothing needs could not be deleted, by key."""


@attrs.frozen
class Deleted:
    """What ``discard`` has done."""

    keys: frozenset[str]
    """Objects that only dropped checkpoints reference: all that were to be deleted beside manifests and records."""
    remaining: tuple[Manifest, ...]
    """The checkpoints that are still there, because a reader needs them, or because their manifest could not be
    deleted. Their objects are all there, too."""
    failed: dict[str, StoreFailedError]
    """Why manifests and objects could not be deleted, by key."""


def discard(
    store: Store,
    dropped: Iterable[Manifest],
    needed: Callable[[], Iterable[Manifest]],
    proof: FenceProof,
    repeated: Collection[CheckpointId] = (),
) -> Generator[None, None, Deleted]:
    """Delete dropped checkpoints that no reader needs, and the objects that only they reference.

    It yields between the calls to the store, where a crash, a reader, another checkpoint or another deletion may come
    in. The manifests are deleted first: a crash in between leaves garbage, but no manifest whose files are gone. What
    is to stay is asked for after that, so that it is everything that is not known to be gone.

    Args:
        store: the pipeline's store.
        dropped: the checkpoints to delete.
        needed: returns all other checkpoints that are not known to be gone: completed ones, those that may have
            completed, and dropped ones whose deletion is under way. Void ones are looked up in the store.
        proof: a successor decides itself which checkpoints it keeps.
        repeated: the checkpoints of this generation whose manifest the store was asked for more than once.

    Raises:
        FencedError: there is a successor. What was not deleted before stays.
        StoreFailedError: the store does not tell what there is. No object but manifests was deleted.
    """
    by_id = {manifest.id: manifest for manifest in dropped}
    given_up = yield from give_up(store, by_id, proof)
    for id, manifest in by_id.items():
        if id in given_up and (id in repeated or manifest.generation != proof.generation):
            proof.check()
            store.write(gone_key(id), f"by generation {proof.generation}".encode())
            yield
    proof.check()
    failed = {**_delete(store, [manifest_key(id) for id in by_id if id in given_up])}
    yield
    gone = [one for one in by_id.values() if one.id in given_up and manifest_key(one.id) not in failed]
    remaining = tuple(one for one in by_id.values() if one not in gone)
    found = yield from _others(store, {*by_id, *(one.id for one in needed())})
    keys = deletable(gone, [*needed(), *remaining, *found])
    doomed = [*sorted(keys), *(key(one.id) for one in gone for key in (trigger_key, dropped_key))]
    yield
    for begin in range(0, len(doomed), _AT_ONCE):
        proof.check()
        failed |= _delete(store, doomed[begin : begin + _AT_ONCE])
        yield
    return Deleted(keys, remaining, failed)


def _others(store: Store, known: Collection[CheckpointId]) -> Generator[None, None, list[Manifest]]:
    """Return the manifests in the store of which the caller does not know.

    They are void, and readers may need them, or just committed. Those that cannot be read cannot be restored either.
    """
    catalog = Catalog(store)
    ids = catalog.list_ids()
    yield
    found = []
    for checkpoint in ids:
        if checkpoint not in known:
            with suppress(ObjectMissingError, DamagedError, SchemaTooNewError):
                found.append(catalog.read(checkpoint))
            yield
    return found


def discard_aborted(store: Store, checkpoint: CheckpointId, proof: FenceProof) -> frozenset[str]:
    """Delete what was written only for a checkpoint that will never complete, and return the keys.

    The records that the id was used stay, and so does what completed checkpoints reference. Shared files stay, too:
    a later checkpoint may reference them, and ``collect_garbage`` finds those that none references.

    Args:
        store: the pipeline's store.
        checkpoint: the id of the aborted checkpoint.
        proof: of the generation that began the checkpoint. A successor may use the same id, so only objects that were
            listed before the caller was seen to be unfenced are surely its own.

    Raises:
        FencedError: the caller is fenced. Nothing was deleted.
        DamagedError, SchemaTooNewError: it is unknown what a later checkpoint references. Nothing was deleted.
    """
    catalog = Catalog(store)
    own = manifest_key(checkpoint)
    found = frozenset(store.list(f"{CHECKPOINTS}{checkpoint}/"))
    proof.check_now()
    if own in found and catalog.read(checkpoint).generation != proof.generation:
        return frozenset()
    entries = catalog.entries()
    for entry in entries:
        # An older checkpoint references nothing of this one.
        if entry.problem and entry.id > checkpoint:
            raise entry.problem
    others = (entry.completed for entry in entries if entry.completed and entry.id != checkpoint)
    keys = frozenset(key for key in found if key == own or is_file(key)).difference(
        *(manifest.keys() for manifest in others)
    )
    # The manifest exists if its write succeeded although it was reported as failed. It is deleted first.
    if own in keys:
        proof.check()
        store.delete(own)
    proof.check()
    store.delete_all(sorted(keys - {own}))
    return keys


def discard_shadow(catalog: Catalog, life: str, proof: FenceProof) -> None:
    """Delete what a shadow has kept that leads the pipeline now, but for the state that checkpoints name.

    Args:
        catalog: the pipeline's catalog.
        life: the life of the shadow. Nothing is written into its folder any more.
        proof: of the generation that leads.

    Raises:
        FencedError: there is a successor. Nothing was deleted.
        StorageError: it is unknown what checkpoints name, or something could not be deleted.
    """
    found = catalog.store.list(shadow_folder(life))
    proof.check_now()
    named = frozenset[str]().union(*(manifest.keys() for manifest in catalog.completed()))
    catalog.store.delete_all([key for key in found if key not in named])


def collect_garbage(
    catalog: Catalog, now: float, older_than: float = GRACE_SECONDS, dry_run: bool = False
) -> Garbage:
    """Delete what no completed checkpoint references: void manifests, leftovers of checkpoints and savepoints.

    Args:
        catalog: the pipeline's catalog.
        now: seconds since 1970.
        older_than: seconds that must have passed since an object's last write, more than any checkpoint takes. 0 is
            safe only while no coordinator runs.
        dry_run: find the garbage but do not delete it.

    Raises:
        SchemaTooNewError: a newer version wrote a manifest, so it is unknown what it needs. Nothing was deleted.
        DamagedError: the record of a generation is damaged, so it is unknown which checkpoints count. Nothing was
            deleted.
    """
    store = catalog.store
    # The objects are listed before the manifests: if one belongs to a checkpoint that completes later, it is young.
    objects = store.scan()
    entries = catalog.entries()
    for entry in entries:
        if isinstance(entry.problem, SchemaTooNewError):
            raise entry.problem
    damaged = [entry.id for entry in entries if entry.problem]
    completed = [entry.completed for entry in entries if entry.completed]
    outdated = [entry.manifest for entry in entries if entry.manifest and entry.voided_by]
    # A reader may have read a checkpoint just before it became void. Nobody leads what is void.
    ids = [manifest.id for manifest in outdated]
    given_up = frozenset(ids) - pinned(store) if dry_run else ended(give_up(store, ids, Unshared()))
    void = [manifest for manifest in outdated if manifest.id in given_up]
    there = [*completed, *(manifest for manifest in outdated if manifest.id not in given_up)]
    needed = frozenset[str]().union(*(manifest.keys() for manifest in there))
    newest = max((manifest.id for manifest in completed), default=0)
    # A void manifest is garbage at any age, and is deleted before what it references.
    doomed = {manifest_key(manifest.id): store.stat(manifest_key(manifest.id)).size for manifest in void}
    whole = [manifest.id for manifest in there]
    own = {key(id) for id in (*whole, *damaged) for key in (manifest_key, trigger_key, dropped_key)}
    unneeded = _candidates(objects, {*needed, *doomed, *own}, newest)
    staged_before = max((manifest.triggered_at for manifest in completed), default=-math.inf) - _CLOCKS_DIFFER
    candidates = [
        key for key in unneeded if not _may_need(damaged, key) and not _may_be_open(store, key, staged_before)
    ]
    old = _old(
        store, [key for key in candidates if not _is_young(objects[key], now, older_than)], now, older_than
    )
    if not damaged:
        old |= _left_by_shadows(store, objects, needed, now, older_than)
    unfinished = unfinished_savepoints(objects)
    abandoned: Mapping[str, Mapping[str, int]] = {
        folder: sizes
        for folder, keys in unfinished.items()
        if len(sizes := _all_old(store, keys, objects, now, older_than)) == len(keys)
    }
    young = sum(len(keys) for folder, keys in unfinished.items() if folder not in abandoned)
    failed: dict[str, StoreFailedError] = {}
    if not dry_run:
        abandoned, not_deleted = _delete_savepoints(store, abandoned)
        failed |= not_deleted
        failed |= _delete(store, list(doomed))
        failed |= _delete(store, [dropped_key(one.id) for one in void if manifest_key(one.id) not in failed])
        for begin in range(0, len(old), _AT_ONCE):
            some = list(old)[begin : begin + _AT_ONCE]
            # The age is checked again, because somebody may have uploaded one of them again.
            failed |= _delete(store, list(_old(store, some, now, older_than)) if begin else some)
        try:
            store.sweep(now - older_than)
        except NotDeletedError as error:
            failed |= error.failed
    found = doomed | old
    for left in abandoned.values():
        found.update(left)
    garbage = {key: size for key, size in found.items() if key not in failed}
    return Garbage(
        keys=tuple(garbage),
        bytes=sum(garbage.values()),
        young=len([key for key in candidates if key not in old]) + young,
        damaged=tuple(map(manifest_key, damaged)),
        spared=len(unneeded) - len(candidates),
        failed={key: error.reason for key, error in failed.items()},
    )


T = TypeVar("T")


def ended(steps: Generator[None, None, T]) -> T:
    """Take all steps, and return the outcome."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            outcome: T = end.value
            return outcome


def _delete(store: Store, keys: Collection[str]) -> Mapping[str, StoreFailedError]:
    """Delete objects, and return why some could not be deleted, by key."""
    try:
        store.delete_all(keys)
    except NotDeletedError as error:
        return error.failed
    return {}


def _delete_savepoints(
    store: Store, folders: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, Mapping[str, int]], dict[str, StoreFailedError]]:
    """Delete savepoints that never completed; return what there was to delete, and what could not be."""
    doomed: dict[str, Mapping[str, int]] = {}
    failed: dict[str, StoreFailedError] = {}
    for folder, sizes in folders.items():
        if f"{folder}{MANIFEST}" in store.list(folder):
            # It has completed since it was listed.
            continue
        # The claim goes last: so the folder stays claimed until it is empty.
        *contents, claim = sizes
        left = _delete(store, contents)
        failed |= left or _delete(store, [claim])
        doomed[folder] = {key: sizes[key] for key in contents} if left else sizes
    return doomed, failed


def _old(store: Store, keys: Collection[str], now: float, older_than: float) -> dict[str, int]:
    """Return those of some objects that are old enough to delete, with their sizes."""

    def stat(key: str) -> ObjectStat | None:
        try:
            return store.stat(key)
        except ObjectMissingError:
            return None

    with runtime.pool(_THREADS, "chandy-gc") as pool:
        stats = dict(zip(keys, pool.map(stat, keys), strict=True))
    return {
        key: found.size
        for key, found in stats.items()
        if found and (older_than <= 0 or (found.modified is not None and now - found.modified >= older_than))
    }


def _all_old(
    store: Store, keys: list[str], objects: Mapping[str, ObjectStat], now: float, older_than: float
) -> dict[str, int]:
    """Return the sizes of some objects if all of them are old enough to delete; otherwise of none or of some."""
    if any(_is_young(objects[key], now, older_than) for key in keys):
        return {}
    return _old(store, keys, now, older_than)


def _left_by_shadows(
    store: Store, objects: Mapping[str, ObjectStat], needed: Collection[str], now: float, older_than: float
) -> dict[str, int]:
    """Return what shadows have left that were killed, with sizes.

    A shadow that lives has told lately what it has found, and that names its folders: where nothing happens, there is
    nothing young in them.
    """
    told = [key for key in objects if verdict_of(key) is not None]
    named = b""
    for key in set(told) - _old(store, told, now, older_than).keys():
        with suppress(ObjectMissingError):
            named += store.read(key)
    lives: dict[str, list[str]] = {}
    for key in objects:
        if (life := life_of_shadow(key)) is not None:
            lives.setdefault(life, []).append(key)
    found = dict[str, int]()
    for life, keys in lives.items():
        # Without one it leads, or has led: nothing but what checkpoints name was left there.
        if f"{shadow_folder(life)}{generation_key(1)}" in keys and life.encode() not in named:
            sizes = _all_old(store, keys, objects, now, older_than)
            if len(sizes) == len(keys):
                found |= {key: size for key, size in sizes.items() if key not in needed}
    return found


def _is_young(listed: ObjectStat, now: float, older_than: float) -> bool:
    """Whether a list shows that an object is young. It cannot show that an object is still old."""
    return older_than > 0 and listed.modified is not None and now - listed.modified < older_than


def _candidates(objects: Iterable[str], spared: Collection[str], newest: int) -> list[str]:
    return [
        key
        for key in objects
        if key not in spared
        and (is_probe(key) or _is_leftover(key, newest) or (is_file(key) and checkpoint_of(key) is None))
    ]


def _may_be_open(store: Store, key: str, staged_before: float) -> bool:
    """Whether rows may wait for a checkpoint, for as long as it takes: they were staged after the newest one's trigger.

    No manifest names them before, while the target of their sink is away or no checkpoints are taken.
    """
    if not key.startswith(STAGED):
        return False
    try:
        modified = store.stat(key).modified
    except ObjectMissingError:
        # One answer is no reason to delete it.
        return True
    return modified is None or modified >= staged_before


def _may_need(damaged: Collection[int], key: str) -> bool:
    """Whether a checkpoint with a damaged manifest may need an object."""
    checkpoint = checkpoint_of(key)
    return bool(damaged) and (
        is_shared(key) or key.startswith(STAGED) or (checkpoint is not None and checkpoint <= max(damaged))
    )


def _is_leftover(key: str, newest: int) -> bool:
    checkpoint = checkpoint_of(key)
    return (
        checkpoint is not None
        and checkpoint < newest
        and (
            is_file(key)
            or key in (manifest_key(checkpoint), trigger_key(checkpoint), dropped_key(checkpoint))
        )
    )
