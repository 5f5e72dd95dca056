"""What is between the queries of a pipeline, as far as checkpoints say it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ...storage.checkpoints.manifest import ChannelRecord, Manifest
from ...storage.ids import BatchId
from ..query import Definition


class Channels:
    """The channels between queries. These are none: no query reads what another one writes."""

    def add(self, definition: Definition) -> bool:
        """Add a query; return whether a query that was added before reads what it writes.

        Raises:
            WriterError: a channel could not be consistent. The query was not added.
        """
        return False

    def remove(self, query: str) -> None:
        """Forget a query that could not be started."""

    def look(
        self, definition: Definition, cut: BatchId, working: Mapping[str, Path], kept: Mapping[str, Path]
    ) -> None:
        """Look at a query's ends of channels, after it was cut and before the checkpoint completes.

        It takes seconds at most, and never fails.

        Args:
            definition: the query.
            cut: its last batch in the checkpoint.
            working: the files of its working directory at the cut, by their names.
            kept: the files of its sink that the checkpoint keeps.
        """

    def at(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        """Return the state of the channels at a checkpoint that is about to complete."""
        return ()
