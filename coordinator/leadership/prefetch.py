"""Fetches the files of the latest checkpoint into the machine's cache, before anybody needs them there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.layout import is_shared
from ...storage.checkpoints.manifest import FileRef, Handle
from ...storage.checkpoints.restore import restore_files
from ...storage.disk.owners import OwnerRecord
from ...storage.disk.workspace import Workspace
from ...storage.errors import ChandyError
from ...storage.logs import carried, logger

log = logger(__name__)

AHEAD: Final = "ahead"
"""Name of the folder in the cache directory with what is being fetched."""
_LOOK_SECONDS: Final = 5.0
"""From one look for a new checkpoint to the next."""
_AT_ONCE: Final = 16
"""Files that are fetched before the next look whether to go on."""
_THREADS: Final = 2
"""Files that are fetched at a time: nobody waits for them yet, and others use the machine."""


class Prefetch:
    """Keeps the machine's cache as new as the latest checkpoint, in the background."""

    def __init__(self, catalog: Catalog, cache: FileCache) -> None:
        """Make it; ``look`` begins.

        Args:
            catalog: the pipeline's catalog.
            cache: the cache that state hosts of this machine restore from.
        """
        self._catalog = catalog
        self._cache = cache
        self._thread: runtime.Thread | None = None
        self._paused = runtime.flag()
        self._looked_at = -_LOOK_SECONDS
        self._newest = 0
        """The newest checkpoint whose files are all in the cache."""

    def look(self) -> None:
        """Fetch now and then what a newer checkpoint has, on a thread of its own."""
        self._paused.clear()
        is_due = runtime.monotonic() - self._looked_at >= _LOOK_SECONDS
        if is_due and (self._thread is None or not self._thread.is_alive()):
            self._looked_at = runtime.monotonic()
            self._thread = runtime.thread(target=carried(self._fetch), name="chandy-prefetch")
            self._thread.start()

    def pause(self) -> None:
        """Fetch no further file: the hosts fetch them now, and faster."""
        self._paused.set()

    def _fetch(self) -> None:
        try:
            ids = self._catalog.list_ids()
            if not ids or ids[-1] == self._newest:
                return
            manifest = self._catalog.read(ids[-1])
            found = {
                file.sha256: file
                for operator in manifest.operators
                for handle in operator.shards
                if handle
                for file in handle.files
                if is_shared(file.key) and not self._cache.has(file.sha256)
            }
            wanted = list(found.values())
            for start in range(0, len(wanted), _AT_ONCE):
                if self._paused.is_set():
                    return
                self._get(wanted[start : start + _AT_ONCE])
            self._newest = manifest.id
        except (OSError, ChandyError) as error:
            # Retention may have deleted it meanwhile. The restore then fetches the files again.
            log.info("could not fetch a checkpoint ahead", error=str(error))

    def _get(self, files: Iterable[FileRef]) -> None:
        folder = Workspace.create(self._cache.directory / AHEAD, runtime.token()[:12], OwnerRecord(AHEAD))
        try:
            # Files of several shards have the same names.
            handle = Handle(tuple(attrs.evolve(file, name=f"{file.sha256}.sst") for file in files))
            restore_files(self._catalog.store, handle, folder.path, self._cache, threads=_THREADS)
        finally:
            folder.remove()
