"""What a streaming source is to the coordinator, if Chandy knows more of its kind than that Spark reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import attrs


@attrs.frozen
class Standing:
    """Where a query goes on in a source, and what is known of how it went on from there before."""

    offset: str | None
    """The offset after what has been read for good: the JSON that Spark's log has of it. None: nothing has."""
    logs: tuple[Path, ...] = ()
    """Folders with Spark's own log of the source, if it keeps one: that of the run that goes on, then those of runs
    that it replaces. A folder may be missing."""


class Source(ABC):
    """One source of a query, in one life of the coordinator."""

    @abstractmethod
    def check(self, standing: Standing) -> None:
        """Check that a query can go on in the source. It takes a bounded time.

        What Spark finds out by itself, with an error, may be left to it.

        Raises:
            SourceLostError: the source no longer has what comes next. It ends the pipeline.
            ChandyError: nobody can tell now. The restart strategy decides about another attempt.
        """

    @abstractmethod
    def completed(self, offset: str) -> None:
        """Take note that a completed checkpoint stands at an offset. It must not wait for anything, nor fail."""

    @abstractmethod
    def close(self) -> None:
        """End what it does, in a bounded time."""
