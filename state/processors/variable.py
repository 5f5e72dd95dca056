"""A state variable while a task runs: it moves from key to key, and gives and takes the state of one key at a time.

For each key, the operator enters every variable with the stored value, calls the processor, and stores what ``leave``
returns. A variable that the processor does not use is not decoded. State beyond the value that was fetched ahead
(further parts of a large list or map, timers) is read and written through ``CurrentKey``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError

from ..errors import StateUseError
from ..format.arrow import BYTES
from ..format.packing import expiry_of
from ..operators.engine import with_prefix
from ..operators.task_state import TaskState
from ..rpc.access import ShardColumn


class Variable(Protocol):
    """One state variable over the keys of a task."""

    prefix: bytes
    """The prefix of the keys under which a shard has the variable's values."""
    ttl_ms: int | None
    """Milliseconds after which a value that is written now expires; None: never."""

    def enter(self, held: bytes | None) -> None:
        """Enter the current key, for which the shard has stored ``held``."""
        ...

    def leave(self) -> bytes | None:
        """Leave the key; return the value to store for it."""
        ...

    def latest(self, data: bytes | None) -> int | None:
        """Return when the last item of a stored value expires; None if nothing in it expires."""
        ...

    def clean(self) -> int | None:
        """Remove the expired items of the key; return when the next item may expire, None if never."""
        ...


class StateUse(StateUseError, PySparkRuntimeError):
    """A ``StateUseError`` that is also PySpark's error, with its words, for programs that expect that."""

    def __init__(self, what: str, expected: str, found: str, advice: str = "") -> None:
        StateUseError.__init__(self, what, expected, found, advice)
        PySparkRuntimeError.__init__(self, str(self))

    def __str__(self) -> str:
        return StateUseError.__str__(self)


class CurrentKey:
    """The key that a task processes, the batch's time, and access to state that was not fetched ahead."""

    def __init__(self, operator: str) -> None:
        self.now = 0
        """Processing time of the batch, in milliseconds since 1970."""
        self.index = -1
        """The key's position in the chunk; -1 if no key is being processed."""
        self.deleted: set[str] = set()
        """Names of the states that ``init`` has declared and then deleted."""
        self._operator = operator
        self._state: TaskState | None = None
        self._shards: ShardColumn = np.empty(0, np.int32)
        self._keys = pa.array([], BYTES)
        self._key_list: list[bytes] | None = None

    def begin(self, state: TaskState, now: int) -> None:
        """Begin a batch with the state of its task and its processing time in milliseconds."""
        self._state, self.now = state, now

    def chunk(self, shards: ShardColumn, keys: pa.Array) -> None:
        """Begin another chunk of keys, in which ``index`` is a position."""
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
        """Put a value, other than a variable's own, under ``key`` into the current key's shard."""
        self._task().put_one(self.shard, key, value)

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under ``keys`` in the current key's shard."""
        shards = np.full(len(keys), self.shard, np.int32)
        found: list[bytes | None] = self._task().fetch(shards, pa.array(keys, BYTES)).to_pylist()
        return found

    def fetch_chunk(self, prefix: bytes) -> list[bytes | None]:
        """Return for every key of the chunk the value under ``prefix`` and the key."""
        keys = with_prefix(prefix, self._keys)
        found: list[bytes | None] = self._task().fetch(self._shards, keys).to_pylist()
        return found

    def no_state(self, name: str, doing: str) -> StateUse:
        """Return the error for a state that is used and has no value of a key to show.

        Args:
            name: of the state.
            doing: what was tried, as PySpark says it after "Error".
        """
        what = f"state {name!r} of operator {self._operator!r}"
        if name not in self.deleted:
            return no_key(what, doing)
        return StateUse(
            f"Error {doing}: {what} cannot be used",
            "a state that exists",
            "one that init has deleted",
            "remove the call of deleteIfExists, or everything that uses the state",
        )

    def _task(self) -> TaskState:
        if self._state is None:
            raise no_key(f"the state of operator {self._operator!r}", "getting state")
        return self._state


def no_key(what: str, doing: str) -> StateUse:
    """Return the error for state that is used while no key is being processed."""
    return StateUse(
        f"Error {doing}: {what} cannot be used",
        "a key that is being processed",
        "no key",
        "use it in handleInputRows, handleExpiredTimer or handleInitialState, and take values from its iterators there",
    )


def is_live(packed: bytes, now: int) -> bool:
    """Return whether a packed value is live; it expires exactly at its expiry, as in Spark."""
    return packed[0] < 0x80 or (expiry_of(packed) or 0) > now
