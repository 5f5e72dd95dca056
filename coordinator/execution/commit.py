"""The commit point of a checkpoint: the calls to the stores that make its manifest durable, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...storage.backends.retrying import no_patience
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.manifest import CheckpointKind, Manifest
from ...storage.checkpoints.savepoint import commit_savepoint
from ...storage.errors import StoreFailedError
from ...storage.store import Store


def commit_steps(
    manifest: Manifest,
    root: str,
    catalog: Catalog,
    open_store: Callable[[str], Store],
    patience: Callable[[StoreFailedError], bool] = no_patience,
) -> Iterator[None]:
    """Commit a checkpoint, one call to a store after the other.

    It yields between the calls, where a crash or another coordinator may come in. The checkpoint has completed when
    the iterator is at its end, and not before.

    Args:
        manifest: of the checkpoint.
        root: URI of the store that the checkpoint was written to.
        catalog: the pipeline's own checkpoints.
        open_store: opens the store of a savepoint.
        patience: whether to ask a store again that does not tell whether it has written the manifest.

    Raises:
        FencedError: another coordinator has taken the pipeline over.
        StorageError: the manifest is not durable, or nobody can tell.
    """
    catalog.check_not_fenced(manifest.generation)
    yield
    if manifest.kind is CheckpointKind.SAVEPOINT:
        commit_savepoint(open_store(root), manifest, patience)
        yield
        catalog.check_not_fenced(manifest.generation)
    else:
        catalog.commit(manifest, patience)
        yield
        catalog.confirm(manifest, patience)
