"""The commit point of a checkpoint: the calls to the stores that make its manifest durable, in their order."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.manifest import CheckpointKind, Manifest
from ...storage.checkpoints.savepoint import commit_savepoint
from ...storage.errors import OutcomeUnknownError, StoreFailedError
from ...storage.logs import logger
from ...storage.store import Store
from .job_steps import Pause

log = logger(__name__)

_ASK_AGAIN_SECONDS: Final = 2.0
"""The pause before a store is asked again whether a manifest was written."""


def commit_steps(
    manifest: Manifest,
    root: str,
    catalog: Catalog,
    open_store: Callable[[str], Store],
    is_closed: Callable[[], bool],
) -> Generator[Pause | None, None, bool]:
    """Commit a checkpoint, one call to a store after the other.

    The checkpoint has completed when the iterator is at its end, and not before. It returns whether the pipeline's own
    store was asked for the manifest more than once: an earlier attempt may be carried out after its deletion.

    Args:
        manifest: of the checkpoint.
        root: URI of the store that the checkpoint was written to.
        catalog: the pipeline's own checkpoints.
        open_store: opens the store of a savepoint.
        is_closed: whether to give up on a store that does not tell whether it has written the manifest.

    Raises:
        FencedError: another coordinator has taken the pipeline over.
        StorageError: the manifest is not durable, or nobody can tell.
    """
    repeated = False
    catalog.check_not_fenced(manifest.generation)
    yield None
    if manifest.kind is CheckpointKind.SAVEPOINT:
        store = open_store(root)
        yield from _until_known(lambda _: commit_savepoint(store, manifest), OutcomeUnknownError, is_closed)
        yield None
        catalog.check_not_fenced(manifest.generation)
    else:
        repeated = yield from _until_known(
            lambda again: catalog.commit(manifest, once=not again), OutcomeUnknownError, is_closed
        )
        yield None
        # The manifest is there. Whatever the store does not answer now, nobody knows whether it counts.
        yield from _until_known(lambda _: catalog.confirm(manifest), StoreFailedError, is_closed)
    return repeated


def _until_known(
    act: Callable[[bool], None], unknown: type[StoreFailedError], is_closed: Callable[[], bool]
) -> Generator[Pause | None, None, bool]:
    """Repeat what can be repeated until the store tells what became of it; return whether it was repeated.

    Args:
        act: is called; its argument says whether again.
        unknown: the errors of its first call after which nobody knows. Afterwards any failure of the store says nothing
            of the calls before.
        is_closed: whether to give up.

    Raises:
        OutcomeUnknownError: it was given up.
    """
    again = False
    while True:
        try:
            act(again)
            return again
        except unknown as failed:
            error, unknown = failed, StoreFailedError
        log.warning("cannot tell whether a manifest was written, asking again", error=str(error))
        yield Pause(_ASK_AGAIN_SECONDS if again else 0.0)
        again = True
        if is_closed():
            raise OutcomeUnknownError(
                error.store, error.key, error.operation, error.reason, error.transient
            ) from error
