"""What a streaming source is to the coordinator, if Chandy knows more of its kind than that Spark reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Source(ABC):
    """One source of a query, in one life of the coordinator. Offsets are the JSON that Spark's log has of them."""

    @abstractmethod
    def check(self, offset: str) -> None:
        """Check that a query can go on from an offset. It takes a bounded time; what cannot be told is no error.

        Raises:
            SourceLostError: the source no longer has what comes after the offset.
        """

    @abstractmethod
    def completed(self, offset: str) -> None:
        """Take note that a completed checkpoint stands at an offset. It must not wait for anything, nor fail."""

    @abstractmethod
    def close(self) -> None:
        """End what it does, in a bounded time."""
