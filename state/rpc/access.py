"""What a task may do with its shards in one batch: read values, look through ordered keys, apply changes once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import attrs
import numpy as np
import pyarrow as pa

from .messages import BatchTimes
from .metrics import OperatorMetrics

ShardColumn = np.ndarray[Any, np.dtype[np.int32]]


@attrs.frozen(eq=False)
class Entries:
    """Keys and values of shards, as columns of equal length; those of one shard side by side."""

    shards: ShardColumn
    keys: pa.Array
    """Of type ``BYTES``, without nulls."""
    values: pa.Array
    """Of type ``BYTES``; null where there is no value, or to delete the key."""

    def __len__(self) -> int:
        return len(self.shards)


class StateAccess(Protocol):
    """A task's shards in one batch. Used from one thread; ends with ``apply``, or with nothing changed."""

    @property
    def times(self) -> BatchTimes:
        """When the batch is, in processing time and in event time."""
        ...

    @property
    def fresh(self) -> frozenset[int]:
        """Shards that no batch has been applied to, in all their history."""
        ...

    @property
    def metrics(self) -> OperatorMetrics:
        """The account of the task's time, which ``apply`` hands on; whoever spends some enters it."""
        ...

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return the values of keys as of the batch before, in their order; null for a key that is not there.

        Args:
            shards: the shard of each key; those of one shard side by side.
            keys: of type ``BYTES``.
        """
        ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """Yield what the task's shards held as of the batch before, for keys from ``start`` to before ``stop``.

        In the order of keys within a shard, one shard after the other, in pieces of moderate size. It is for
        keys that are few or read seldom: the cache does not serve it.
        """
        ...

    def apply(self, changes: Iterable[Entries]) -> None:
        """Stage all that the task changes, once, at its end; of two changes of one key the later one wins."""
        ...
