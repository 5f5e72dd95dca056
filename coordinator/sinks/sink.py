"""What a sink is to the coordinator: what it promises, what a checkpoint keeps of it, how it goes back."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path

from .guarantee import Guarantee


class Sink(abc.ABC):
    """The sink of one query, between the batches of that query.

    A checkpoint treats a sink in four steps, of which the sinks of today need two:

    1. *Keep* (``files_at``): at the cut, the checkpoint keeps the files that say what the output was.
    2. *Pre-commit*: a transactional sink would add its committable to the query's part of the manifest here.
    3. *Commit*: it would publish that once the manifest is confirmed, before the checkpoint's future is resolved.
    4. *Go back* (``restore``): when the pipeline goes back, the output goes back with it, or it stays and rows repeat.
    """

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """How often a row's effect can be seen in the output, and why."""

    @property
    def location(self) -> Path | None:
        """The directory that Spark's own file sink writes, by which a later life knows the sink again; None: none."""
        return None

    def check_new(self, query: str) -> None:
        """Refuse output that this pipeline did not write, before a query begins without a checkpoint.

        Args:
            query: the query's name, for the error.

        Raises:
            RestoreError: the sink has batches that this pipeline did not write.
        """
        return

    def files_at(self, batch: int) -> dict[str, Path]:
        """Return the files that say what the output was after a batch, by name. The query may be running.

        Raises:
            IncompleteDirectoryError: the files no longer reach back to the batch.
        """
        return {}

    def restore(self, query: str, files: Mapping[str, Path]) -> None:
        """Put the output back to what it was; nobody writes into it meanwhile.

        After a crash in between, the same call does the rest.

        Args:
            query: the query's name, for the log.
            files: what ``files_at`` gave for the checkpoint; empty: the output was empty.
        """
        return

    def is_ahead_of(self, batch: int) -> bool:
        """Return whether the sink has taken a later batch.

        Spark passes over a batch that its file sink has, and runs no task of it. So a query may not go on behind
        a sink that is ahead: no shard would learn of the batch.
        """
        return False
