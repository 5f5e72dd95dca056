"""What a state variable is while a task runs: turned from key to key, it gives and takes values of one at a time.

The engine enters every variable with what the shard holds for a key, lets the processor work, and takes from
``leave`` what the shard is to hold. A variable that the processor did not touch is not decoded. What lies beyond
the value that was fetched ahead (further parts of a large list or map, timers) goes through ``CurrentKey``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from ..errors import NoKeyError
from ..format.arrow import BYTES
from ..format.packing import expiry_of
from ..operators.engine import TaskState, with_prefix
from ..rpc.access import ShardColumn


class Variable(Protocol):
    """One state variable over the keys of a task."""

    prefix: bytes
    """What comes before a key's bytes where the shard has the variable's value."""
    ttl_ms: int | None
    """After how many milliseconds a value that is written now expires."""

    def enter(self, held: bytes | None) -> None:
        """Turn to the current key, for which the shard holds ``held``."""
        ...

    def leave(self) -> bytes | None:
        """Turn away from the key; return what the shard is to hold for it."""
        ...

    def latest(self, data: bytes | None) -> int | None:
        """Return when the last of what ``data`` stands for expires; None if nothing of it does."""
        ...

    def clean(self) -> int | None:
        """Remove what of the key has expired; return when the next of the rest may, None if never."""
        ...


class CurrentKey:
    """The key that a task is at, its batch's time, and the way to state beyond what was fetched ahead."""

    def __init__(self, operator: str) -> None:
        self.now = 0
        """Processing time of the batch, in milliseconds since 1970."""
        self.index = -1
        """Position of the key among those of ``chunk``; -1 outside of any."""
        self._operator = operator
        self._state: TaskState | None = None
        self._shards: ShardColumn = np.empty(0, np.int32)
        self._keys = pa.array([], BYTES)
        self._key_list: list[bytes] | None = None

    def begin(self, state: TaskState) -> None:
        """Work on the state of one task."""
        self._state = state
        self.now = state.times.timestamp_ms

    def chunk(self, shards: ShardColumn, keys: pa.Array) -> None:
        """Turn to other keys; ``index`` is a position among them."""
        self._shards, self._keys, self._key_list = shards, keys, None
        self.index = -1

    @property
    def key(self) -> bytes:
        """Canonical bytes of the key."""
        if self._key_list is None:
            self._key_list = self._keys.to_pylist()
        return self._key_list[self.index]

    @property
    def shard(self) -> int:
        """Shard of the key."""
        return int(self._shards[self.index])

    def put(self, key: bytes, value: bytes | None) -> None:
        """Change what the key's shard holds under ``key``, which is not the value of a variable."""
        self._task().put_one(self.shard, key, value)

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return what the key's shard holds under ``keys``."""
        shards = np.full(len(keys), self.shard, np.int32)
        found: list[bytes | None] = self._task().fetch(shards, pa.array(keys, BYTES)).to_pylist()
        return found

    def fetch_chunk(self, prefix: bytes) -> list[bytes | None]:
        """Return for every key of the chunk what its shard holds under ``prefix`` and the key."""
        keys = with_prefix(prefix, self._keys)
        found: list[bytes | None] = self._task().fetch(self._shards, keys).to_pylist()
        return found

    def _task(self) -> TaskState:
        if self._state is None:
            raise NoKeyError(self._operator, "")
        return self._state


def is_live(packed: bytes, now: int) -> bool:
    """Whether a packed value has not expired: it does so at its expiry, as in Spark, not a moment later."""
    return packed[0] < 0x80 or (expiry_of(packed) or 0) > now
