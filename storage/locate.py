"""Finding what is at a URI: pipelines, the checkpoints of one, or a savepoint."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from .catalog import Catalog
from .errors import NothingHereError, ObjectMissingError
from .layout import CHECKPOINTS, GENERATIONS, MANIFEST, savepoint_key
from .manifest import Manifest
from .open import open_store, pipeline_uri
from .savepoint import read_savepoint
from .store import Store

LATEST = "latest"


@attrs.frozen
class Located:
    """A completed checkpoint or a savepoint, and where its bytes are."""

    manifest: Manifest
    store: Store
    """What the manifest's keys are relative to."""


def pipelines(uri: str, wanted: str | None = None) -> dict[str, Store]:
    """Return the stores of the pipelines at a URI by name, of the wanted one only if there is a name.

    Args:
        uri: a storage as a coordinator is given it, or one pipeline's folder in it.
        wanted: name of a pipeline of the storage.

    Raises:
        NothingHereError: there is no pipeline, or not the wanted one.
        InvalidUriError, UnknownStoreError: the URI names no store.
    """
    if wanted is not None:
        store = open_store(pipeline_uri(uri, wanted))
        if not (store.list(CHECKPOINTS) or store.list(GENERATIONS)):
            there = ", ".join(_names_in(open_store(uri).list())) or "no pipeline"
            raise NothingHereError(uri, f"the pipeline {wanted!r}", there)
        return {wanted: store}
    store = open_store(uri)
    keys = store.list()
    if any(key.startswith(GENERATIONS) for key in keys):
        return {uri.rstrip("/").rpartition("/")[2]: store}
    names = _names_in(keys)
    if not names:
        raise NothingHereError(uri, "a pipeline's checkpoints", "none")
    return {name: open_store(pipeline_uri(uri, name)) for name in names}


def savepoint(uri: str) -> Located | None:
    """Return the savepoint at a URI, None if there is none.

    Raises:
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidUriError, UnknownStoreError: the URI names no store.
    """
    store = open_store(uri)
    try:
        return Located(read_savepoint(store), store)
    except ObjectMissingError as error:
        if error.key != MANIFEST:
            raise
        return None


def locate(uri: str, checkpoint: str | int = LATEST) -> Located:
    """Return a checkpoint or savepoint.

    Args:
        uri: a savepoint's folder, a pipeline's folder, or a storage with one pipeline.
        checkpoint: "latest", the id of a completed checkpoint or of a savepoint of the pipeline, or the URI of a
            savepoint.

    Raises:
        NothingHereError: there is none such.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidUriError, UnknownStoreError: the URI names no store.
    """
    text = str(checkpoint)
    if text != LATEST and not text.isdigit():
        found = savepoint(text)
        if found is None:
            raise NothingHereError(text, "a savepoint", "none")
        return found
    if text == LATEST:
        found = savepoint(uri)
        if found is not None:
            return found
    stores = pipelines(uri)
    if len(stores) > 1:
        raise NothingHereError(
            uri,
            "one pipeline",
            f"{', '.join(stores)}: say {pipeline_uri(uri, next(iter(stores)))}, for example",
        )
    (store,) = stores.values()
    return _of_pipeline(store, None if text == LATEST else int(text))


def _of_pipeline(store: Store, checkpoint: int | None) -> Located:
    catalog = Catalog(store)
    if checkpoint is None:
        latest = catalog.latest()
        if latest is None:
            raise NothingHereError(store.uri, "a completed checkpoint", "none")
        return Located(latest, store)
    completed = {manifest.id: manifest for manifest in catalog.completed()}
    if checkpoint in completed:
        return Located(completed[checkpoint], store)
    try:
        found = savepoint(store.read(savepoint_key(checkpoint)).decode())
    except ObjectMissingError:
        found = None
    if found is None or found.manifest.id != checkpoint:
        there = ", ".join(map(str, completed)) or "none"
        raise NothingHereError(store.uri, f"checkpoint {checkpoint}", there)
    return found


def _names_in(keys: Iterable[str]) -> list[str]:
    """Return the folders that a coordinator has begun to work in: it leaves the record of its generation."""
    parts = (key.partition("/") for key in keys)
    return sorted({name for name, _, rest in parts if rest.startswith(GENERATIONS)})
