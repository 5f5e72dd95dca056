"""What a sink is to the coordinator: what it promises, what a checkpoint keeps of it, how it goes back."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from .guarantee import Guarantee
from .owner import SinkOwner


@attrs.frozen
class Beginning:
    """Where a query begins, as far as its sink goes."""

    owner: SinkOwner
    files: Mapping[str, Path] | None
    """What ``files_at`` gave for the checkpoint; empty: the output was empty. None: no checkpoint has the query."""
    is_table: bool = False
    """Whether Spark makes the output as a table when the query starts, and wants to find nothing there before."""
    may_begin_anew: bool = False
    """Whether, without a checkpoint, batches that the query itself has written may be undone."""
    is_written_by: Callable[[str], bool] = lambda store: True
    """Whether the pipeline with the store at a URI writes into its outputs now."""
    allow_new_output: bool = False
    """Whether the output may be another one than the checkpoint's, and begin empty."""


class Sink(abc.ABC):
    """The sink of one query, between the batches of that query.

    A checkpoint treats a sink in four steps, of which the sinks of today need two:

    1. *Keep* (``files_at``): at the cut, the checkpoint keeps the files that say what the output was.
    2. *Pre-commit*: a transactional sink would add its committable to the query's part of the manifest here.
    3. *Commit*: it would publish that once the manifest is confirmed, before the checkpoint's future is resolved.
    4. *Go back* (``begin``): when the pipeline goes back, the output goes back with it, or it stays and rows repeat.
    """

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """How often a row's effect can be seen in the output, and why."""

    @property
    def location(self) -> Path | None:
        """The directory that Spark's own file sink writes, by which a later life knows the sink again; None: none."""
        return None

    def begin(self, query: str, beginning: Beginning) -> None:
        """Put the output to where a query begins. Nobody else writes into it.

        After a crash in between, the same call does the rest.

        Args:
            query: the query's name.
            beginning: where it begins, and what it may do there.

        Raises:
            RestoreError: the output is not this query's, or another one than the checkpoint's. Nothing was changed.
        """
        return

    def mark(self, query: str, owner: SinkOwner) -> None:
        """Mark the output as a query's own, which it is.

        Raises:
            SinkTakenError: it is marked as another query's.
        """
        return

    def files_at(self, batch: int) -> dict[str, Path]:
        """Return the files that say what the output was after a batch, by name. The query may be running.

        Raises:
            IncompleteDirectoryError: the files no longer reach back to the batch.
        """
        return {}

    def is_ahead_of(self, batch: int) -> bool:
        """Return whether the sink has taken a later batch.

        Spark passes over a batch that its file sink has, and runs no task of it. So a query may not go on behind
        a sink that is ahead: no shard would learn of the batch.
        """
        return False
