"""What a task can do with its shards in one batch: fetch values, scan ordered keys, apply changes once."""

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
    """Keys and values of shards, as columns of equal length. The rows of a shard are adjacent."""

    shards: ShardColumn
    keys: pa.Array
    """Of type ``BYTES``, without nulls."""
    values: pa.Array
    """Of type ``BYTES``. Null stands for no value, or deletes the key."""

    def __len__(self) -> int:
        return len(self.shards)


class StateAccess(Protocol):
    """A task's shards in one batch, for use from one thread. Without ``apply`` nothing is changed."""

    @property
    def times(self) -> BatchTimes:
        """The batch's processing time and event time."""
        ...

    @property
    def fresh(self) -> frozenset[int]:
        """The task's shards that no batch has ever been applied to."""
        ...

    @property
    def metrics(self) -> OperatorMetrics:
        """Where the task's time goes. Every part of the task adds to it; ``apply`` sends it to the state host."""
        ...

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return the values of keys after the batch before, in their order. Null stands for a key that is not there.

        Args:
            shards: the shard of each key. The keys of a shard are adjacent.
            keys: of type ``BYTES``.
        """
        ...

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """Yield the keys from ``start`` up to, not including, ``stop`` with their values after the batch before.

        The keys come in order, one shard after the other, in pieces of moderate size. Scan only few keys, or rarely:
        a scan does not use the cache.
        """
        ...

    def apply(self, changes: Iterable[Entries]) -> None:
        """Stage all changes of the task and end the access. Call it exactly once, at the end of the task.

        Of two changes of one key the later one counts. A null value deletes the key.
        """
        ...
