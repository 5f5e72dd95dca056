"""The state of a task's shards while one batch runs: what it reads, and the changes that it collects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from ..format.arrow import BYTES, from_numpy
from ..rpc.access import Entries, ShardColumn, StateAccess
from .entry_sizes import EntrySizes


class TaskState:
    """The state of a task's shards in one batch, as the task reads and changes it; reads see the task's own changes."""

    def __init__(self, access: StateAccess, sizes: EntrySizes) -> None:
        self._access = access
        self._sizes = sizes
        self._failure: Exception | None = None
        """Why state could not be read."""
        self._columns: list[Entries] = []
        self._rows: dict[tuple[int, bytes], bytes | None] = {}
        """The single changes since the last columns: only the last one of each key, which may have very many."""
        self._overlay: dict[bytes, bytes | None] = {}
        self._overlaid = 0

    @property
    def fresh(self) -> frozenset[int]:
        """The shards of the task to which no batch has ever been applied."""
        return self._access.fresh

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return the values of keys, null for a key that has none.

        Args:
            shards: the shard of each key; the keys of one shard are adjacent.
            keys: of type ``BYTES``.
        """
        found = self.fetch_before(shards, keys)
        changed = self._changed_columns()
        if not changed and not self._rows:
            return found
        # Only operators with timers, initial state or large collections come here: they read after they have written.
        missing, rows = object(), self._rows
        # Single changes are later than columns. They are not flushed here: a large list makes every key come here.
        own = [
            rows[shard, key] if (shard, key) in rows else changed.get(key, missing)
            for shard, key in zip(shards.tolist(), keys.to_pylist(), strict=True)
        ]
        if all(value is missing for value in own):
            return found
        merged = [
            held if value is missing else value for value, held in zip(own, found.to_pylist(), strict=True)
        ]
        return pa.array(merged, BYTES)

    def fetch_before(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """Return what ``fetch`` returns, as it was before the batch: without the task's own changes."""
        with self._noting():
            return self._access.fetch(shards, keys)

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """Yield entries as they were before the batch, as ``StateAccess.scan`` does, without the task's own changes."""
        with self._noting():
            yield from self._access.scan(start, stop)

    def put(self, entries: Entries) -> None:
        """Record changes, as columns; a null value deletes the key.

        Raises:
            StateTooLargeError: a value is too large to be stored. Nothing was recorded.
        """
        if len(entries):
            self._sizes.check(entries)
            self._flush_rows()
            self._columns.append(entries)

    def put_one(self, shard: int, key: bytes, value: bytes | None) -> None:
        """Record one change; None deletes the key.

        Raises:
            StateTooLargeError: as for ``put``.
        """
        self._sizes.check_one(key, value)
        self._rows[shard, key] = value

    def mark(self) -> int:
        """Return where the changes have come to, for ``go_back``."""
        self._flush_rows()
        return len(self._columns)

    def go_back(self, mark: int) -> None:
        """Forget all changes since a mark."""
        self._rows = {}
        del self._columns[mark:]
        if self._overlaid > mark:
            self._overlay, self._overlaid = {}, 0

    @property
    def was_read(self) -> bool:
        """Whether everything that was to be read could be read."""
        return self._failure is None

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Raise the error of a read that has failed inside, whatever a user's code has made of it.

        A state host that is lost is no fault of the code that wanted to read, and code that ignores the error has gone
        on with state that is not the key's.
        """
        try:
            yield
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    def changes(self) -> list[Entries]:
        """Return all recorded changes, in order."""
        self._flush_rows()
        return self._columns

    def _flush_rows(self) -> None:
        if self._rows:
            shards, keys = zip(*self._rows, strict=True)
            values = pa.array(list(self._rows.values()), BYTES)
            self._columns.append(sorted_by_shard(np.asarray(shards, np.int32), pa.array(keys, BYTES), values))
            self._rows = {}

    def _changed_columns(self) -> dict[bytes, bytes | None]:
        for entries in self._columns[self._overlaid :]:
            self._overlay.update(zip(entries.keys.to_pylist(), entries.values.to_pylist(), strict=True))
        self._overlaid = len(self._columns)
        return self._overlay


def sorted_by_shard(shards: ShardColumn, keys: pa.Array, values: pa.Array) -> Entries:
    """Return entries sorted by shard; entries of one shard stay in order, so a later change of a key stays later."""
    if (np.diff(shards) >= 0).all():
        return Entries(shards, keys, values)
    order = np.argsort(shards, kind="stable")
    at = from_numpy(order)
    return Entries(shards[order], keys.take(at), values.take(at))
