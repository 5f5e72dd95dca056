"""The Arrow Flight server of a host: JSON actions for calls, one Arrow exchange for a task's data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
from pyarrow import flight

from ...storage.codec import from_json
from ..errors import ShardMissingError, ShardRefusedError
from ..format.arrow import BYTES
from ..rpc.calls import ActionServer, Call, handler_errors
from ..rpc.messages import (
    AskBatches,
    AskHost,
    AskMetrics,
    BeginTask,
    Forward,
    HandOver,
    HostName,
    OpenShards,
    ReadValues,
    TaskFailure,
)
from ..rpc.metrics import BatchMetrics, OperatorMetrics
from ..rpc.tls import Identity
from ..rpc.wire import (
    ANSWER,
    APPLY,
    COMMIT,
    FETCH,
    ROWS,
    SCAN,
    SIZE,
    STAGED,
    Page,
    messages,
    runs,
    unpack_changes,
)
from .changes import Changes
from .shard import Shard
from .state_host import StateHost


class HostServer(ActionServer):
    """Serves the shards of a state host to tasks."""

    def __init__(
        self, location: str, token: str, host: str, state_host: StateHost, identity: Identity | None = None
    ) -> None:
        actions = {
            "begin": Call(BeginTask, state_host.begin),
            "open": Call(OpenShards, state_host.open),
            "read": Call(ReadValues, state_host.read),
            "operator_metrics": Call(AskMetrics, state_host.operator_metrics),
            "batches": Call(AskBatches, state_host.batches),
            "report": Call(TaskFailure, state_host.report),
            "host": Call(AskHost, lambda _: HostName(host)),
        }
        super().__init__(location, token, actions, identity=identity)
        self._host = host
        self._state_host = state_host

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """Serve one task's access as described in ``wire``. The descriptor holds its ``BeginTask``."""
        with handler_errors("exchange"):
            task = from_json(BeginTask, descriptor.command)
            access = _Access(self._host, task, self._state_host)
            writer.begin(ANSWER)
            for message in reader:
                match message.app_metadata.to_pybytes():
                    case value if value == FETCH:
                        for batch in access.fetch(message.data):
                            writer.write_batch(batch)
                    case value if value == SCAN:
                        writer.write_with_metadata(*access.scan(message.data).pack())
                    case value if value == APPLY:
                        access.collect(message.data)
                    case value if value.startswith(COMMIT):
                        measured = from_json(OperatorMetrics, value.removeprefix(COMMIT))
                        self._state_host.metrics(task, access.commit(measured))
                        writer.write_metadata(STAGED)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Serve another host that takes a shard over, as described in ``wire``. The ticket is its ``HandOver``."""
        with handler_errors("hand over"):
            return flight.GeneratorStream(
                *self._state_host.hand_over(from_json(HandOver, ticket.ticket)).pack()
            )

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Stage on standbys what the owner of their shards has staged. The descriptor holds its ``Forward``."""
        with handler_errors("forward"):
            request = from_json(Forward, descriptor.command)
            changes: dict[int, Changes] = {}
            for chunk in reader:
                for shard, columns in unpack_changes(chunk.data):
                    changes.setdefault(shard, Changes(f"{request.uid}/{shard}")).add_packed(columns)
            if (rows := sum(map(len, changes.values()))) != request.rows:
                raise ShardRefusedError(
                    f"batch {request.batch} of {request.uid} is not staged at the standbys",
                    f"{request.rows} changes",
                    f"{rows}, and then the end of the stream",
                )
            self._state_host.follow(request, changes)


class _Access:
    """The shards of one task and the changes that it has sent so far."""

    def __init__(self, host: str, task: BeginTask, state_host: StateHost) -> None:
        self._host = host
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

    def scan(self, request: pa.RecordBatch) -> Page:
        """Return the first page of the request's ranges."""
        shards: list[int] = []
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for shard, start, stop in zip(*(column.to_pylist() for column in request.columns), strict=True):
            with contextlib.closing(self._shard(shard).scan(start, stop)) as entries:
                for key, value in entries:
                    if len(keys) == ROWS or size > SIZE:
                        return Page.of(shards, keys, values, complete=False)
                    shards.append(shard)
                    keys.append(key)
                    values.append(value)
                    size += len(key) + len(value)
        return Page.of(shards, keys, values, complete=True)

    def collect(self, request: pa.RecordBatch) -> None:
        """Add changes to those that wait for ``commit``."""
        for shard, columns in unpack_changes(request):
            changes = self._changes.setdefault(shard, Changes(self._shard(shard).name))
            changes.add(columns)

    def commit(self, measured: OperatorMetrics) -> BatchMetrics:
        """Stage the changes on each shard as a whole, also on those that the batch has not changed.

        Returns:
            What the task has measured, and what was staged here.
        """
        begun = time.perf_counter()
        self._state_host.stage(self._task, self._shards, self._changes)
        seconds = time.perf_counter() - begun
        tables = [changes.entries for changes in self._changes.values()]
        changed = sum(map(len, tables))
        removed = sum(list(table.values()).count(None) for table in tables)
        self._changes = {}
        return BatchMetrics(
            batch=self._task.batch,
            tasks=measured,
            shards=len(self._shards),
            updated=changed - removed,
            removed=removed,
            memory=sum(shard.memory for shard in self._shards.values()),
            commit_seconds=seconds,
        )

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            raise ShardMissingError(f"{self._task.uid}/{number}", self._host)
        return shard
