"""Savepoints: folders that hold a manifest and everything that it names."""

from __future__ import annotations

from .errors import InvalidPlaceError, ObjectExistsError, ObjectMissingError
from .layout import CHECKPOINTS, CLAIM, MANIFEST, SHARED
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest
from .retrying import Patience, create_surely, no_patience
from .store import Store


def claim_savepoint(store: Store, owner: str) -> None:
    """Take an empty folder for one savepoint.

    Args:
        store: the savepoint's folder.
        owner: names who writes it; no other savepoint has the same text.

    Raises:
        InvalidPlaceError: the folder is not empty, or another savepoint has taken it.
    """
    try:
        store.create(CLAIM, owner.encode())
    except ObjectExistsError:
        raise _occupied(store, CLAIM) from None
    others = [key for key in store.list() if key != CLAIM]
    if others:
        store.delete(CLAIM)
        raise _occupied(store, others[0])


def commit_savepoint(store: Store, manifest: Manifest, patience: Patience = no_patience) -> None:
    """Write a savepoint's manifest: its commit point.

    Raises:
        ObjectExistsError: the folder holds a savepoint already.
        StoreFailedError: it was not written.
        OutcomeUnknownError: the patience is over, and it may or may not have been written.
    """
    create_surely(store, MANIFEST, encode_manifest(manifest), patience)


def read_savepoint(store: Store) -> Manifest:
    """Return the manifest of the savepoint in a folder.

    Raises:
        ObjectMissingError: the folder holds no savepoint.
        DamagedError: the manifest is damaged.
        SchemaTooNewError: a newer version of Chandy wrote it.
    """
    return decode_manifest(store.read(MANIFEST), store.uri, MANIFEST)


def discard_savepoint(store: Store, owner: str) -> None:
    """Delete an aborted savepoint. A folder that this owner has not claimed is left alone.

    The manifest is deleted first and the claim last: a crash in between leaves no manifest with missing files, and
    the folder stays claimed until it is empty.
    """
    if _claimed_by(store) == owner:
        delete_savepoint(store)


def delete_savepoint(store: Store) -> None:
    """Delete a savepoint, whoever wrote it, and leave anything else in its folder alone.

    Raises:
        NotDeletedError: some of its objects could not be deleted. The folder stays claimed.
    """
    store.delete(MANIFEST)
    store.delete_all([key for prefix in (CHECKPOINTS, SHARED) for key in store.list(prefix)])
    store.delete(CLAIM)


def _occupied(store: Store, key: str) -> InvalidPlaceError:
    return InvalidPlaceError(
        f"the savepoint cannot be written to {store.uri}",
        "a new or empty folder",
        f"{key!r} in it",
        "choose another folder",
    )


def _claimed_by(store: Store) -> str | None:
    try:
        return store.read(CLAIM).decode(errors="replace")
    except ObjectMissingError:
        return None
