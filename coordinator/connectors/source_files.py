"""Spark's sources of files, as the coordinator sees them: whether what they read again is still there.

Spark lists a folder once, writes the names down, and goes by them when a batch runs again. What is gone by then it
leaves out without a word: only the batch that is reading a file when it vanishes fails.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import attrs
from typing_extensions import override

from ...storage.logs import logger
from ..errors import RestoreError
from ..sources.errors import SourceLostError, listed
from ..sources.remembered import RememberedLosses
from ..sources.source import Source, Standing
from ..spark.logs.offset_log import log_end
from ..spark.logs.source_log import files_after

log = logger(__name__)


class LooksForFiles(Protocol):
    """A file system."""

    def missing(self, uris: Collection[str]) -> tuple[str, ...]:
        """Return those of some files that do not exist.

        Raises:
            OSError: one cannot be looked for.
        """
        ...


@attrs.frozen
class FilesSource(Source):
    """A source of files of a query."""

    query: str
    place: str
    """What it reads, for messages."""
    ignores_missing: bool
    """What ``ignoreMissingFiles`` says to Spark."""
    files: LooksForFiles
    remembered: RememberedLosses
    forgets: bool = False
    """Whether the pipeline starts over, whatever an earlier life has met."""
    is_made_again: bool = False
    """Whether a query of the pipeline writes the files, and takes back those after its checkpoint to write them again:
    then only those that are read in place are missed."""

    @override
    def check(self, standing: Standing) -> None:
        before = frozenset() if self.is_made_again else self.remembered.read()
        end = log_end(standing.offset)
        needed = frozenset() if self.forgets else before
        for entries in standing.logs[:1] if self.is_made_again else standing.logs:
            needed |= files_after(entries, -1 if end is None else end)
        gone = self._missing(needed)
        if gone and self.ignores_missing:
            log.warning(
                "files are gone, and ignoreMissingFiles allows it: their rows are counted nowhere",
                query=self.query,
                files=listed(gone),
            )
        kept = frozenset() if self.ignores_missing else frozenset(gone)
        if kept != before and not self.is_made_again:
            self.remembered.replace(kept)
        if kept:
            raise SourceLostError(
                f"query {self.query!r} cannot go on where it stood, because {self.place} no longer has what it reads "
                "again",
                listed(gone),
                "no such file" if len(gone) == 1 else f"none of these {len(gone)} files",
                "put them back; and let files be archived or deleted only once the oldest checkpoint that may be "
                "restored has read them. To go on without their rows, give the reader the option "
                "ignoreMissingFiles=true for one start",
                files=gone,
            )

    @override
    def completed(self, offset: str) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    def _missing(self, needed: Collection[str]) -> tuple[str, ...]:
        try:
            return self.files.missing(needed)
        except OSError as error:
            raise RestoreError(
                f"query {self.query!r} cannot go on where it stood",
                f"to see whether {self.place} still has the {len(needed)} files that it reads again",
                str(error),
                "see that the driver reaches and may read it",
            ) from error
