"""Savepoints: folders that hold a manifest and everything that it names."""

from __future__ import annotations

from collections.abc import Collection

from ..backends.retrying import create_own
from ..errors import InvalidPlaceError, ObjectExistsError, ObjectMissingError
from ..logs import logger
from ..store import Store
from ..verified import read_verified
from .layout import CLAIM, MANIFEST, is_file, is_of_pipeline
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest
from .proof import FenceProof

_log = logger(__name__)


def claim_savepoint(store: Store, owner: str) -> None:
    """Take a folder for one savepoint. It must be empty but for what aborted savepoints have left.

    Args:
        store: the savepoint's folder.
        owner: names who writes it; no other savepoint has the same text.

    Raises:
        InvalidPlaceError: the folder has something else, or another savepoint has taken it.
    """
    _check_free(store)
    try:
        store.create(CLAIM, owner.encode())
    except ObjectExistsError:
        raise _taken(store, store.list()) from None
    try:
        # Nobody else has claimed it, but a pipeline may have begun to use it since the look.
        left = _check_free(store, CLAIM)
    except InvalidPlaceError:
        store.delete(CLAIM)
        raise
    if left:
        # They stay: an upload may still be on its way, and no two savepoints of a pipeline use the same names.
        _log.info("files of an aborted savepoint are here", store=store.uri, files=left)


def _check_free(store: Store, *own: str) -> int:
    """Return how many files aborted savepoints have left in a folder, uploaded after their abort.

    Raises:
        InvalidPlaceError: something else is there, apart from the caller's own objects.
    """
    keys = [key for key in store.list() if key not in own]
    if CLAIM in keys:
        raise _taken(store, keys)
    for key in keys:
        if not is_file(key):
            raise _occupied(store, f"{key!r} in it")
    return len(keys)


def commit_savepoint(store: Store, manifest: Manifest) -> None:
    """Write a savepoint's manifest: its commit point.

    Raises:
        ObjectExistsError: the folder holds a savepoint already.
        StoreFailedError: it was not written by this call.
        OutcomeUnknownError: it may or may not have been written.
    """
    create_own(store, MANIFEST, encode_manifest(manifest))


def read_savepoint(store: Store) -> Manifest:
    """Return the manifest of the savepoint in a folder.

    Raises:
        ObjectMissingError: the folder holds no savepoint.
        DamagedError: the manifest is damaged.
        SchemaTooNewError: a newer version of Chandy wrote it.
    """
    return read_verified(store, MANIFEST, lambda data: decode_manifest(data, store.uri, MANIFEST))


def discard_savepoint(store: Store, owner: str, proof: FenceProof) -> None:
    """Delete an aborted savepoint. A folder that this owner has not claimed is left alone.

    Its manifest may be durable although it failed, so that a successor may run from it already.

    The manifest is deleted first and the claim last: a crash in between leaves no manifest with missing files, and
    the folder stays claimed until it is empty.
    """
    if _claimed_by(store) == owner:
        proof.check_now()
        delete_savepoint(store, proof)


def delete_savepoint(store: Store, proof: FenceProof) -> None:
    """Delete a savepoint, no matter who wrote it, and leave anything else in its folder alone.

    Where a pipeline has its own storage in the same folder, nobody can tell whose files they are: they stay.

    Raises:
        FencedError: there is a successor. What was not deleted before stays.
        NotDeletedError: some of its objects could not be deleted. The folder stays claimed.
    """
    proof.check()
    store.delete(MANIFEST)
    keys = store.list()
    if not any(map(is_of_pipeline, keys)):
        proof.check()
        store.delete_all(list(filter(is_file, keys)))
    proof.check()
    store.delete(CLAIM)


def _taken(store: Store, keys: Collection[str]) -> InvalidPlaceError:
    if MANIFEST in keys:
        return _occupied(store, "a savepoint")
    owner = _claimed_by(store) or "one that is just being given up"
    return _occupied(
        store,
        f"an unfinished savepoint ({owner})",
        "choose another folder, or delete this one if that savepoint is not being written any more",
    )


def _occupied(store: Store, found: str, advice: str = "choose another folder") -> InvalidPlaceError:
    return InvalidPlaceError(
        f"the savepoint cannot be written to {store.uri}", "a new or empty folder", found, advice
    )


def _claimed_by(store: Store) -> str | None:
    try:
        return read_verified(store, CLAIM, lambda data: data.decode(errors="replace"))
    except ObjectMissingError:
        return None
