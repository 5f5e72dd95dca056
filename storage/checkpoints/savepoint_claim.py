"""Claims: making a savepoint that a pipeline was restored from the pipeline's own, and deleting it in the end.

Without a claim, the default, nothing in the savepoint's folder is ever written or deleted. The first checkpoint then
uploads or copies all files. With a claim, the savepoint is deleted once nothing needs it: a checkpoint of the pipeline
has completed since, and no coordinator that restored from the savepoint is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from ..codec import to_json
from ..errors import (
    ChandyError,
    FencedError,
    InvalidPlaceError,
    ObjectExistsError,
    ObjectMissingError,
)
from ..logs import logger
from ..store import Store
from ..verified import read_record, read_verified
from .catalog import Catalog
from .layout import CLAIMED, OWNER, claimed_key
from .proof import FenceProof
from .savepoint import delete_savepoint

_log = logger(__name__)


@attrs.frozen
class ClaimedSavepoint:
    """A savepoint that belongs to the pipeline which was restored from it."""

    uri: str
    generation: int
    """The generation that was restored from it and claimed it."""


def claim_restored(catalog: Catalog, savepoint: Store, proof: FenceProof) -> None:
    """Claim a savepoint for a pipeline.

    Args:
        catalog: the pipeline's catalog.
        savepoint: the folder of the savepoint.
        proof: of the generation that restores it.

    Raises:
        FencedError: there is a successor.
        InvalidPlaceError: it belongs to another pipeline.
    """
    owner = catalog.store.uri
    proof.check()
    try:
        savepoint.create(OWNER, owner.encode())
    except ObjectExistsError:
        # An earlier generation of this pipeline may have claimed it.
        found = _owner(savepoint)
        if found != owner:
            raise InvalidPlaceError(
                f"the savepoint in {savepoint.uri} cannot be claimed",
                "a savepoint that no other pipeline has claimed",
                f"one that belongs to {found or 'a pipeline that is just deleting it'}",
                "copy it and restore the copy, or restore it without a claim while it is there",
            ) from None
    record = ClaimedSavepoint(savepoint.uri, proof.generation)
    catalog.store.write(claimed_key(proof.generation), to_json(record))


def drop_claimed(
    catalog: Catalog,
    open_store: Callable[[str], Store],
    ended: int,
    proof: FenceProof,
    in_use: Collection[str] = (),
) -> tuple[str, ...]:
    """Delete the claimed savepoints that nothing needs any more and return their URIs.

    It may be interrupted anywhere and repeated: the record of a savepoint is deleted last. One that cannot be deleted
    is logged, and keeps none of the others.

    Args:
        catalog: the pipeline's catalog.
        open_store: opens the store at a URI.
        ended: the highest generation whose coordinator has ended.
        proof: a successor may run from one of them.
        in_use: URIs of savepoints that are being restored.

    Raises:
        FencedError: there is a successor.
    """
    store = catalog.store
    claimed = {key: _record(store, key) for key in store.list(CLAIMED)}
    newest = max((manifest.generation for manifest in catalog.completed()), default=0) if claimed else 0
    # A later generation that was restored from the same savepoint may still need it.
    needed = {one.uri for one in claimed.values() if one.generation > ended or newest < one.generation}
    dropped = []
    for key, one in claimed.items():
        if one.uri in needed or one.uri in in_use:
            continue
        proof.check_now()
        try:
            savepoint = open_store(one.uri)
            if _owner(savepoint) == store.uri:
                delete_savepoint(savepoint, proof)
                proof.check()
                savepoint.delete(OWNER)
                dropped.append(one.uri)
            proof.check()
            store.delete(key)
        except FencedError:
            raise
        except (OSError, ChandyError) as error:
            _log.warning(
                "cannot delete a claimed savepoint; the next start tries again", uri=one.uri, error=str(error)
            )
    return tuple(dropped)


def _record(store: Store, key: str) -> ClaimedSavepoint:
    return read_record(store, key, ClaimedSavepoint, "the record of a claimed savepoint")


def _owner(savepoint: Store) -> str | None:
    try:
        return read_verified(savepoint, OWNER, lambda data: data.decode(errors="replace"))
    except ObjectMissingError:
        return None
