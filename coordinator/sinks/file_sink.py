"""Spark's own file sink: exactly once, because the log in its output directory goes back with the query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ...storage.logs import logger
from ..errors import RestoreError
from . import file_sink_log
from .guarantee import Guarantee, Level
from .sink import Sink

log = logger(__name__)


@attrs.frozen
class FileSink(Sink):
    """A directory that Spark writes files into, and keeps a log of its batches in."""

    path: Path
    format: str

    @property
    def guarantee(self) -> Guarantee:
        """Exactly once for those who read the directory through Spark."""
        return Guarantee(
            Level.EXACTLY_ONCE,
            f"the log of the {self.format} sink goes back with the query, and files of batches after the "
            "checkpoint are set aside",
        )

    @property
    def location(self) -> Path:
        """The output directory."""
        return self.path

    def check_new(self, query: str) -> None:
        """Refuse a directory whose log has batches already.

        Raises:
            RestoreError: it has.
        """
        if (newest := file_sink_log.newest(self.path)) >= 0:
            raise RestoreError(
                f"query {query!r} cannot begin with its first batch",
                f"no log of earlier batches in its output {self.path}, because Spark would skip as many batches",
                f"one up to batch {newest}",
                "choose another path, delete this one, or restore the checkpoint that belongs to it",
            )

    def files_at(self, batch: int) -> dict[str, Path]:
        """Return the files of the log after a batch."""
        return file_sink_log.files_at(self.path, batch)

    def restore(self, query: str, files: Mapping[str, Path]) -> None:
        """Put the log back, and set the files of later batches aside."""
        missing = file_sink_log.restore(self.path, files).missing
        if missing:
            log.warning(
                "files that the sink's log names were deleted by somebody else",
                query=query,
                files=len(missing),
                first=missing[0],
            )

    def is_ahead_of(self, batch: int) -> bool:
        """Return whether the log has a later batch."""
        return file_sink_log.newest(self.path) > batch
