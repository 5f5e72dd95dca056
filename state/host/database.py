"""What the state of a shard needs of its database, and a state host of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from ...storage.ids import BatchId
from ..rpc.metrics import OperatorMetrics
from .cache import Value


class ShardDatabase(Protocol):
    """Entries on the disk, in the order of their keys. It may be read from many threads, and is written by one."""

    empty: bool
    """Whether it holds nothing and need not be asked."""
    position: BatchId
    """The last batch that had changed anything when the database was opened."""
    metrics: OperatorMetrics
    """Keys and seconds of reads and writes. Slightly inexact: threads add to it without a lock."""

    def read(self, keys: list[bytes]) -> list[Value]:
        """Return the values of keys, None for a key that is not there.

        Raises:
            ShardClosedError: the database is closed.
            ShardUnreadableError: its files are damaged, or the disk is.
        """

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys from ``start`` up to, not including, ``stop`` with their values, in the order of keys.

        They are those of the moment when the first is asked for. Close the iterator before the database, which stays
        open as long as it lives.

        Raises:
            ShardClosedError, ShardUnreadableError: as for ``read``.
        """

    def write(self, entries: Mapping[bytes, Value], batch: BatchId) -> None:
        """Write the changes of batches up to ``batch``; None deletes a key.

        Raises:
            Exception: any part of the changes may have been written.
        """

    def checkpoint(self, directory: Path) -> int:
        """Write the state as files into a new directory, from which a database can be opened.

        Files that never change are links to the database's own. Nothing may write meanwhile.

        Returns:
            About how many entries there are.

        Raises:
            Exception: the files are not complete.
        """

    def close(self) -> None:
        """Close it. What no checkpoint has may be gone."""


class Databases(Protocol):
    """The databases of a state host, which share a part of its memory."""

    @property
    def used(self) -> int:
        """Bytes of memory in use."""

    def open(self, shard: str, directory: Path) -> ShardDatabase:
        """Open a shard's database.

        Args:
            shard: the shard's name, for error messages.
            directory: where the files are. It may be missing, empty, or hold the files of a checkpoint.
        """
