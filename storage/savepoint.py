"""Savepoints: a manifest at the root of a folder that holds everything which it names."""

from __future__ import annotations

from .errors import ObjectExistsError, ObjectMissingError, SavepointPlaceError
from .layout import CHECKPOINTS, CLAIM, MANIFEST, SHARED
from .manifest import Manifest
from .manifest_json import decode_manifest, encode_manifest
from .retrying import Patience, create_surely, no_patience
from .store import Store


def claim_savepoint(store: Store, owner: str) -> None:
    """Take an empty folder for one savepoint.

    Args:
        store: the savepoint's folder.
        owner: who writes it: a text that no other savepoint has.

    Raises:
        SavepointPlaceError: there is something in the folder, or somebody else has taken it.
    """
    try:
        store.create(CLAIM, owner.encode())
    except ObjectExistsError:
        raise SavepointPlaceError(store.uri, CLAIM, len(store.list())) from None
    others = [key for key in store.list() if key != CLAIM]
    if others:
        store.delete(CLAIM)
        raise SavepointPlaceError(store.uri, others[0], len(others))


def commit_savepoint(store: Store, manifest: Manifest, patience: Patience = no_patience) -> None:
    """Write a savepoint's manifest: its commit point.

    Raises:
        ObjectExistsError: the folder holds a savepoint already.
        StoreFailedError: it was not written.
        OutcomeUnknownError: the patience is over, and nobody can tell whether it was written.
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
    """Delete an aborted savepoint; a folder that this owner has not claimed is left alone.

    The manifest goes first and the claim last, so that a crash in between leaves no manifest with missing
    files, and the folder stays taken until it is empty.
    """
    if _claimed_by(store) == owner:
        delete_savepoint(store)


def delete_savepoint(store: Store) -> None:
    """Delete a savepoint whoever has written it, and nothing else that is in its folder."""
    store.delete(MANIFEST)
    for prefix in (CHECKPOINTS, SHARED):
        store.delete_all(store.list(prefix))
    store.delete(CLAIM)


def _claimed_by(store: Store) -> str | None:
    try:
        return store.read(CLAIM).decode(errors="replace")
    except ObjectMissingError:
        return None
