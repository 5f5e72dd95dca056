"""What batches have changed in a shard since a snapshot, in memory: for a host that it moves to, or a standby."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...storage.ids import BatchId
from ..errors import ShardRefusedError
from .cache import Value, weight

LIMIT: Final = 64 * 1024 * 1024
"""The most bytes of one tail. To restore a newer checkpoint takes less time than to send more."""


class Tail:
    """The batches that were applied to a shard after a snapshot. A tail that has grown too long is empty for good."""

    def __init__(self, shard: str, limit: int = LIMIT) -> None:
        self._shard = shard
        self._limit = limit
        self._size = 0
        self._batches: list[tuple[BatchId, dict[bytes, Value]]] = []

    def add(self, batch: BatchId, entries: Mapping[bytes, Value]) -> None:
        """Add the changes of a batch that has committed."""
        self._size += weight(entries)
        if self._size > self._limit:
            self._batches.clear()
        else:
            # A copy: the level that the changes go to grows.
            self._batches.append((batch, dict(entries)))

    def after(self, batch: BatchId) -> list[tuple[BatchId, dict[bytes, Value]]]:
        """Return the batches after one, in their order, with their changes.

        Raises:
            ShardRefusedError: the tail has grown too long.
        """
        if self._size > self._limit:
            raise ShardRefusedError(
                f"shard {self._shard} cannot be handed over",
                f"at most {self._limit} bytes of changes since the checkpoint that it moves with",
                f"{self._size} bytes",
                "take checkpoints more often; the shard moves with a later one",
            )
        return [(number, entries) for number, entries in self._batches if number > batch]
