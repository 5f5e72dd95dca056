"""What a task does with the shards that it has begun on a host: fetch, scan, collect changes, commit them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa

from ..errors import ShardMissingError
from ..format.arrow import BYTES
from ..rpc.messages import BeginTask
from ..rpc.metrics import BatchMetrics, OperatorMetrics
from ..rpc.wire import ANSWER, ROWS, SIZE, ScanPage, messages, runs, unpack_changes
from .changes import Changes
from .shard import Shard
from .state_host import StateHost


class TaskAccess:
    """The shards of one task and the changes that it has sent so far."""

    def __init__(self, task: BeginTask, state_host: StateHost) -> None:
        self._task = task
        self._state_host = state_host
        self._shards = state_host.shards(task)
        self._changes: dict[int, Changes] = {}

    def fetch(self, request: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the values of the request's keys in their order."""
        keys = request.column(1).to_pylist()
        found = [
            self._shard(shard).fetch(keys[start:stop])
            for shard, start, stop in runs(request.column(0).to_numpy())
        ]
        values = pa.array(found[0] if len(found) == 1 else list(chain.from_iterable(found)), BYTES)
        for start, stop in messages(values):
            yield pa.record_batch([values.slice(start, stop - start)], schema=ANSWER)

    def scan(self, request: pa.RecordBatch) -> ScanPage:
        """Return the first page of the request's ranges."""
        shards: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for shard, start, stop in zip(*(column.to_pylist() for column in request.columns), strict=True):
            with contextlib.closing(self._shard(shard).scan(start, stop)) as entries:
                for key, value in entries:
                    if len(keys) == ROWS or size > SIZE:
                        return ScanPage.of(shards, keys, values, complete=False)
                    shards.append(shard)
                    keys.append(key)
                    values.append(value)
                    size += len(key) + len(value)
        return ScanPage.of(shards, keys, values, complete=True)

    def collect(self, request: pa.RecordBatch) -> None:
        """Add changes to those that wait for ``commit``."""
        for shard, columns in unpack_changes(request):
            changes = self._changes.setdefault(shard, Changes(self._shard(shard).name))
            changes.add(columns)

    def commit(self, measured: OperatorMetrics) -> None:
        """Stage the changes on each shard as a whole, also on those that the batch has not changed.

        Args:
            measured: what the task has measured.
        """
        begun = time.perf_counter()
        self._state_host.stage(self._task, self._shards, self._changes)
        seconds = time.perf_counter() - begun
        tables = [changes.entries for changes in self._changes.values()]
        changed = sum(map(len, tables))
        removed = sum(list(table.values()).count(None) for table in tables)
        self._changes = {}
        metrics = BatchMetrics(
            batch=self._task.batch,
            tasks=measured,
            shards=len(self._shards),
            updated=changed - removed,
            removed=removed,
            memory=sum(shard.memory for shard in self._shards.values()),
            commit_seconds=seconds,
        )
        self._state_host.metrics(self._task, metrics)

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            raise ShardMissingError(f"{self._task.uid}/{number}", self._state_host.host)
        return shard
