"""Whose a savepoint is that a pipeline was restored from: nobody's (no-claim, the default), or the pipeline's (claim).

Without a claim nothing is written into the savepoint's folder, and nothing in it is ever deleted: the first
checkpoint uploads or copies everything, for its folder is another one. With a claim the savepoint is deleted when
nothing needs it any more: a checkpoint of the pipeline has completed since, and no coordinator lives that took
the savepoint for its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from .catalog import Catalog
from .codec import from_json, to_json
from .errors import CodecError, DamagedError, ObjectExistsError, ObjectMissingError, SavepointClaimedError
from .layout import CLAIMED, OWNER, claimed_key
from .savepoint import delete_savepoint
from .store import Store


@attrs.frozen
class ClaimedSavepoint:
    """A savepoint that belongs to the pipeline which was restored from it."""

    uri: str
    generation: int
    """The generation that was restored from it."""


def claim_restored(catalog: Catalog, savepoint: Store, generation: int) -> None:
    """Make a savepoint the pipeline's own.

    Args:
        catalog: the pipeline's.
        savepoint: the folder of the savepoint.
        generation: the generation that restores it.

    Raises:
        SavepointClaimedError: it is another pipeline's.
    """
    owner = catalog.store.uri
    try:
        savepoint.create(OWNER, owner.encode())
    except ObjectExistsError:
        # An earlier life of this pipeline may have been restored from it, too.
        found = _owner(savepoint)
        if found != owner:
            raise SavepointClaimedError(savepoint.uri, found or "nobody any more") from None
    catalog.store.write(claimed_key(generation), to_json(ClaimedSavepoint(savepoint.uri, generation)))


def drop_claimed(
    catalog: Catalog, open_store: Callable[[str], Store], ended: int, in_use: Collection[str] = ()
) -> tuple[str, ...]:
    """Delete the claimed savepoints that nothing needs any more; return their URIs.

    May be interrupted anywhere and repeated: the record of a savepoint goes last.

    Args:
        catalog: the pipeline's.
        open_store: from a URI to its store.
        ended: the highest generation of which no coordinator lives any more.
        in_use: URIs of savepoints that are being restored.
    """
    store = catalog.store
    claimed = {key: _record(store, key) for key in store.list(CLAIMED)}
    newest = max((manifest.generation for manifest in catalog.completed()), default=0) if claimed else 0
    # A later life that was restored from the same savepoint may need it still.
    needed = {one.uri for one in claimed.values() if one.generation > ended or newest < one.generation}
    dropped = []
    for key, one in claimed.items():
        if one.uri in needed or one.uri in in_use:
            continue
        savepoint = open_store(one.uri)
        if _owner(savepoint) == store.uri:
            delete_savepoint(savepoint)
            savepoint.delete(OWNER)
            dropped.append(one.uri)
        store.delete(key)
    return tuple(dropped)


def _record(store: Store, key: str) -> ClaimedSavepoint:
    try:
        return from_json(ClaimedSavepoint, store.read(key))
    except CodecError as error:
        raise DamagedError(store.uri, key, "the record of a claimed savepoint", error.reason) from None


def _owner(savepoint: Store) -> str | None:
    try:
        return savepoint.read(OWNER).decode(errors="replace")
    except ObjectMissingError:
        return None
