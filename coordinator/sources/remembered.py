"""Remembers, in the pipeline's store, which files a source has lost.

A driver that meets the loss ends. The next one begins at a checkpoint, from before the files were listed, and finds
a folder without them: nothing else would tell it that there is something to miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from ...storage.checkpoints.layout import lost_key
from ...storage.codec import to_json
from ...storage.errors import ObjectMissingError
from ...storage.store import Store
from ...storage.verified import read_record


@attrs.frozen
class LostFiles:
    """The record of what a source has lost."""

    files: tuple[str, ...]
    """Their URIs."""


@attrs.define
class RememberedLosses:
    """What one source of a query has lost, until it is there again or the user does without it."""

    store: Store
    """The pipeline's."""
    query: str
    source: int
    """The number of the source in its query."""
    check_leads: Callable[[], None]
    """Raises if another driver leads the pipeline, whose record it is then."""
    _known: frozenset[str] | None = attrs.field(default=None, init=False)
    """What the record says; None: nobody has read it in this life, which alone writes it."""

    def read(self) -> frozenset[str]:
        """Return the files.

        Raises:
            StorageError: the store does not tell.
        """
        if self._known is None:
            self._known = self._read()
        return self._known

    def replace(self, files: Iterable[str]) -> None:
        """Remember these files, and no others.

        Raises:
            FencedError: another driver leads the pipeline.
            StorageError: the store does not take it.
        """
        found = tuple(sorted(files))
        self.check_leads()
        if found:
            self.store.write(self._key, to_json(LostFiles(found)))
        else:
            self.store.delete(self._key)
        self._known = frozenset(found)

    def _read(self) -> frozenset[str]:
        try:
            record = read_record(self.store, self._key, LostFiles, "the files that a source has lost")
        except ObjectMissingError:
            return frozenset()
        return frozenset(record.files)

    @property
    def _key(self) -> str:
        return lost_key(self.query, self.source)
