"""Finding pipelines, checkpoints and savepoints by what a user says: a URI, a name, an id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import attrs

from ..backends.open import open_store, pipeline_uri
from ..errors import NothingHereError, ObjectMissingError, StorageError
from ..ids import CheckpointId
from ..store import Store
from ..uri import join_uri
from ..verified import read_verified
from .catalog import Catalog
from .fencing import voided_by
from .layout import (
    CHECKPOINTS,
    GENERATIONS,
    MANIFEST,
    SAVEPOINTS,
    checkpoint_of,
    replicated_by,
    savepoint_key,
)
from .manifest import Manifest
from .savepoint import read_savepoint

LATEST = "latest"
"""What a user says for the newest completed checkpoint."""


@attrs.frozen
class Located:
    """A completed checkpoint or a savepoint, and the store that has its files."""

    manifest: Manifest
    store: Store
    """The store that the manifest's keys are relative to."""


def pipelines(uri: str, name: str | None = None) -> dict[str, Store]:
    """Return the stores of the pipelines at a URI by name, or of one of them.

    Args:
        uri: a storage as a coordinator is given it, or the folder of one pipeline in it.
        name: the only pipeline to look for.

    Raises:
        NothingHereError: there is no pipeline, or none of this name.
        InvalidPlaceError: the URI names no store.
    """
    if name is not None:
        store = open_store(pipeline_uri(uri, name))
        if not (store.list(CHECKPOINTS) or store.list(GENERATIONS)):
            there = ", ".join(_names_in(open_store(uri).list())) or "no pipeline"
            raise NothingHereError(
                f"there is no pipeline {name!r} in {uri}", "the name of one that is there", there
            )
        return {name: store}
    store = open_store(uri)
    keys = store.list()
    if any(key.startswith(GENERATIONS) for key in keys):
        return {uri.rstrip("/").rpartition("/")[2]: store}
    names = _names_in(keys)
    if not names:
        raise NothingHereError(
            f"there are no checkpoints in {uri}",
            "the storage of a coordinator, or one pipeline's folder in it",
            "no pipeline",
        )
    return {name: open_store(pipeline_uri(uri, name)) for name in names}


def pipeline(uri: str, name: str | None = None) -> Store:
    """Return the store of the only pipeline at a URI, or of the one with this name; raises as ``only_pipeline``."""
    return only_pipeline(uri, name)[1]


def only_pipeline(uri: str, name: str | None = None) -> tuple[str, Store]:
    """Return the only pipeline at a URI besides its replicas, or the one with this name: its name and its store.

    Raises:
        NothingHereError: there is no such pipeline, or there are several and no name.
        InvalidPlaceError: the URI names no store.
    """
    found = pipelines(uri, name)
    stores = {one: store for one, store in found.items() if replicated_by(one) not in found}
    if len(stores) > 1:
        raise NothingHereError(
            f"there are several pipelines in {uri}",
            "one",
            ", ".join(stores),
            f"name one: by its folder, such as {pipeline_uri(uri, next(iter(stores)))}, or by --pipeline on the "
            "command line",
        )
    return next(iter(stores.items()))


def savepoint(uri: str) -> Located | None:
    """Return the savepoint at a URI, None if there is none.

    Raises:
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    store = open_store(uri)
    try:
        return Located(read_savepoint(store), store)
    except ObjectMissingError as error:
        if error.key != MANIFEST:
            raise
        return None


def savepoints(store: Store) -> dict[CheckpointId, str]:
    """Return the URIs of the savepoints that a pipeline wrote, by id. Nobody has checked that they are still there.

    A storage may have been copied or moved since. Savepoints that are in it were copied with it.
    """
    keys = store.list(CHECKPOINTS)
    ids = sorted(id for key in keys if (id := checkpoint_of(key)) and key == savepoint_key(id))
    found = {}
    for id in ids:
        # A savepoint may expire between the list and the look at its record.
        with contextlib.suppress(ObjectMissingError):
            found[id] = _place(store, id, _recorded(store, id))
    return found


def _recorded(store: Store, checkpoint: CheckpointId) -> str:
    return read_verified(store, savepoint_key(checkpoint), lambda data: data.decode(errors="replace"))


def _place(store: Store, checkpoint: CheckpointId, recorded: str) -> str:
    """Return where a savepoint is now that was written to the URI ``recorded``."""
    folder, _, name = recorded.partition("?")[0].rpartition("/")
    own = join_uri(store.uri, SAVEPOINTS, name)
    if recorded == own or folder.rpartition("/")[2] != SAVEPOINTS:
        return recorded
    try:
        found = savepoint(own)
    except StorageError:
        # Something is there that cannot be read: anyone who reads it is told.
        return own
    return own if found and found.manifest.id == checkpoint else recorded


def locate(uri: str, checkpoint: str | int = LATEST, name: str | None = None) -> Located:
    """Return a checkpoint or a savepoint.

    Args:
        uri: a savepoint's folder, a pipeline's folder, or a storage.
        checkpoint: as for ``find``.
        name: the pipeline, if the storage has several.

    Raises:
        NothingHereError: there is no such pipeline, checkpoint or savepoint.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    if name is None and checkpoint == LATEST and (found := savepoint(uri)):
        return found
    if _is_uri(checkpoint):
        return _savepoint_at(str(checkpoint))
    return find(Catalog(pipeline(uri, name)), checkpoint)


def find(catalog: Catalog, checkpoint: str | int) -> Located:
    """Return a checkpoint or savepoint of a pipeline.

    Args:
        catalog: the pipeline's catalog.
        checkpoint: "latest", the id of a completed checkpoint or of a savepoint of the pipeline, or the URI of any
            savepoint.

    Raises:
        NothingHereError: there is none.
        DamagedError, SchemaTooNewError: its manifest cannot be read. Those of other checkpoints do not matter if an id
            or a URI is given.
        InvalidPlaceError: the URI names no store.
    """
    if _is_uri(checkpoint):
        return _savepoint_at(str(checkpoint))
    if checkpoint != LATEST:
        return _by_id(catalog, CheckpointId(int(checkpoint)))
    latest = catalog.latest()
    if latest is None:
        raise NothingHereError(
            f"the pipeline in {catalog.store.uri} has no checkpoint", "a completed one", "none"
        )
    return Located(latest, catalog.store)


def _is_uri(checkpoint: str | int) -> bool:
    return checkpoint != LATEST and not str(checkpoint).isdecimal()


def _savepoint_at(uri: str) -> Located:
    if "/" not in uri:
        raise NothingHereError(
            f"{uri!r} is neither a checkpoint nor a savepoint",
            f'"{LATEST}", the id of a checkpoint or the URI of a savepoint',
            repr(uri),
        )
    found = savepoint(uri)
    if found is None:
        raise NothingHereError(f"there is no savepoint in {uri}", f"its {MANIFEST}", "none")
    return found


def _by_id(catalog: Catalog, checkpoint: CheckpointId) -> Located:
    store = catalog.store
    try:
        if catalog.is_gone(checkpoint):
            raise _no_checkpoint(catalog, checkpoint)
        manifest = catalog.read(checkpoint)
    except ObjectMissingError:
        found = _savepoint_by_id(store, checkpoint)
        if found is None:
            raise _no_checkpoint(catalog, checkpoint) from None
        return found
    successor = voided_by(manifest.generation, manifest.id, catalog.generations())
    if successor:
        raise NothingHereError(
            f"checkpoint {checkpoint} in {store.uri} never completed",
            "a completed checkpoint",
            f"one of generation {manifest.generation}, which generation {successor.generation} ({successor.owner}) "
            "had replaced",
            "choose another checkpoint",
        )
    return Located(manifest, store)


def _savepoint_by_id(store: Store, checkpoint: CheckpointId) -> Located | None:
    """Return the savepoint that a pipeline wrote under an id; another one may have taken its place since."""
    try:
        recorded = _recorded(store, checkpoint)
    except ObjectMissingError:
        return None
    found = savepoint(_place(store, checkpoint, recorded))
    return found if found and found.manifest.id == checkpoint else None


def _no_checkpoint(catalog: Catalog, checkpoint: CheckpointId) -> NothingHereError:
    there = ", ".join(str(entry.id) for entry in catalog.entries() if not entry.voided_by)
    return NothingHereError(
        f"there is no checkpoint {checkpoint} in {catalog.store.uri}",
        "the id of a completed checkpoint or of a savepoint",
        there or "no checkpoint",
        'choose one that is there, "latest", or the URI of a savepoint',
    )


def _names_in(keys: Iterable[str]) -> list[str]:
    """Return the folders in which a coordinator has worked: each has the record of a generation."""
    parts = (key.partition("/") for key in keys)
    return sorted({name for name, _, rest in parts if rest.startswith(GENERATIONS)})
