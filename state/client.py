"""A task's side of its state host: begin a batch, fetch values, apply changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ..storage.codec import to_json
from .errors import AppliedTwiceError, HostLostError, RoutingError, ShardMissingError
from .messages import BeginTask, Begun, TaskFailure
from .rpc import ActionClient
from .wire import APPLY, BYTES, COMMIT, FETCH, REQUEST, ROWS

_HOPS: Final = 4

ShardColumn = np.ndarray[Any, np.dtype[np.int32]]


class TaskClient:
    """Calls one state host, and those that it names as owners of shards. It may be used from many threads."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self._token = token
        self._clients = {address: ActionClient(address, token, HostLostError)}

    def begin(self, task: BeginTask) -> BatchAccess:
        """Make the task's shards ready for the batch, wherever they are.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            RoutingError: nobody owns some of the shards.
            HostLostError: the host, or the owner of a shard, does not answer.
            ChandyError: the coordinator refused, or a shard could not be restored.
        """
        owners: dict[str, tuple[int, ...]] = {}
        pending = {self.address: task.shards}
        for _ in range(_HOPS):
            elsewhere: dict[str, list[int]] = {}
            for address, shards in pending.items():
                begun = self._client(address).call("begin", _with_shards(task, shards), Begun)
                here = tuple(shard for shard in shards if shard not in begun.elsewhere)
                owners[address] = owners.get(address, ()) + here
                for shard, other in begun.elsewhere.items():
                    elsewhere.setdefault(other, []).append(shard)
            if not elsewhere:
                return BatchAccess(
                    task,
                    {shard: address for address, shards in owners.items() for shard in shards},
                    {a: _Exchange(self._client(a), _with_shards(task, s)) for a, s in owners.items() if s},
                )
            pending = {address: tuple(sorted(shards)) for address, shards in elsewhere.items()}
        raise RoutingError(task.uid, tuple(sorted(shard for shards in pending.values() for shard in shards)))

    def report(self, failure: TaskFailure) -> None:
        """Tell the coordinator that a processor raised."""
        self._client(self.address).tell("report", failure)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()

    def _client(self, address: str) -> ActionClient:
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = ActionClient(address, self._token, HostLostError)
        return client


class BatchAccess:
    """A task's shards in one batch. Used from one thread; ends with ``apply``, or with nothing changed.

    A context manager: leaving it without ``apply`` gives the batch up.
    """

    def __init__(self, task: BeginTask, owners: dict[int, str], exchanges: dict[str, _Exchange]) -> None:
        self.task = task
        self._exchanges = exchanges
        self._open = True
        # Which exchange serves a shard: looked up for whole columns at a time.
        self._by_number = list(exchanges.values())
        numbers = {address: number for number, address in enumerate(exchanges)}
        self._routes = np.full(max(owners, default=-1) + 1, -1, np.int16)
        for shard, address in owners.items():
            self._routes[shard] = numbers[address]

    def fetch(self, shards: Sequence[int] | ShardColumn, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys as of the batch before, in their order; None for a key that is not there.

        Args:
            shards: the shard of each key; rows of one shard lie together.
            keys: as many.

        Raises:
            ShardMissingError: a shard is not one of the task's.
            HostLostError: a host does not answer.
            AppliedTwiceError: after ``apply`` or ``close``.
        """
        column = self._column(shards, len(keys))
        if not keys:
            return []
        if len(self._by_number) == 1:
            return self._by_number[0].fetch(column, keys)
        values: list[bytes | None] = [None] * len(keys)
        for exchange, rows in self._split(column):
            found = exchange.fetch(column[rows], [keys[row] for row in rows.tolist()])
            for row, value in zip(rows.tolist(), found, strict=True):
                values[row] = value
        return values

    def apply(
        self, shards: Sequence[int] | ShardColumn, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        """Stage all that the task changes, on each of its shards as a whole, and end the access.

        To be called exactly once, at the task's end, with no rows if there is no change.

        Args:
            shards: the shard of each key; rows of one shard lie together.
            keys: as many.
            values: as many; None deletes the key.

        Raises:
            StaleBatchError: Spark has gone on without this attempt.
            ShardMissingError, HostLostError, AppliedTwiceError: as for ``fetch``.
        """
        column = self._column(shards, len(keys))
        try:
            if len(self._by_number) == 1:
                self._by_number[0].send(column, keys, values)
            else:
                for exchange, rows in self._split(column):
                    some = rows.tolist()
                    exchange.send(column[rows], [keys[row] for row in some], [values[row] for row in some])
            for exchange in self._by_number:
                exchange.commit()
        finally:
            self.close()

    def close(self) -> None:
        """End the access; what was not applied is given up. Closing twice is no error."""
        self._open = False
        for exchange in self._by_number:
            exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _column(self, shards: Sequence[int] | ShardColumn, rows: int) -> ShardColumn:
        if not self._open:
            raise AppliedTwiceError(self.task.batch)
        column = np.asarray(shards, np.int32)
        if len(column) != rows:
            raise ValueError(f"expected a shard for each of {rows} keys, found {len(column)}")
        if rows:
            unknown = (column < 0) | (column >= len(self._routes))
            unknown[~unknown] = self._routes[column[~unknown]] < 0
            if unknown.any():
                raise ShardMissingError(f"{self.task.uid}/{column[unknown][0]}", "(this task)")
        return column

    def _split(self, column: ShardColumn) -> Iterator[tuple[_Exchange, np.ndarray[Any, np.dtype[np.int64]]]]:
        routes = self._routes[column]
        for number, exchange in enumerate(self._by_number):
            rows = np.flatnonzero(routes == number)
            if len(rows):
                yield exchange, rows


class _Exchange:
    """The stream to one host; opened when first needed."""

    def __init__(self, client: ActionClient, task: BeginTask) -> None:
        self._client = client
        self._task = task
        self._stream: tuple[flight.FlightStreamWriter, flight.FlightStreamReader] | None = None

    def fetch(self, shards: ShardColumn, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        with self._client.errors():
            writer, reader = self._opened()
            # One message at a time: with more under way, both sides could wait for the other to read.
            for start in range(0, len(keys), ROWS):
                some = keys[start : start + ROWS]
                request = [
                    pa.array(shards[start : start + ROWS]),
                    pa.array(some, pa.binary()),
                    _nulls(len(some)),
                ]
                writer.write_with_metadata(pa.record_batch(request, schema=REQUEST), FETCH)
                while len(values) < start + len(some):
                    values += reader.read_chunk().data.column(0).to_pylist()
        return values

    def send(self, shards: ShardColumn, keys: list[bytes], values: list[bytes | None]) -> None:
        with self._client.errors():
            writer, reader = self._opened()
            try:
                for start, stop in _messages(keys, values):
                    columns = [
                        pa.array(shards[start:stop]),
                        pa.array(keys[start:stop], pa.binary()),
                        pa.array(values[start:stop], pa.binary()),
                    ]
                    writer.write_with_metadata(pa.record_batch(columns, schema=REQUEST), APPLY)
            except (flight.FlightError, pa.ArrowException, OSError):
                # The host has ended the stream, and its reason is where answers are read.
                reader.read_chunk()
                raise

    def commit(self) -> None:
        with self._client.errors():
            writer, reader = self._opened()
            writer.write_metadata(COMMIT)
            reader.read_chunk()

    def close(self) -> None:
        if self._stream is None:
            return
        writer, _ = self._stream
        self._stream = None
        # Whoever needed this stream has had its error already.
        for end in (writer.done_writing, writer.close):
            with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                end()

    def _opened(self) -> tuple[flight.FlightStreamWriter, flight.FlightStreamReader]:
        if self._stream is None:
            descriptor = flight.FlightDescriptor.for_command(to_json(self._task))
            writer, reader = self._client.flight.do_exchange(descriptor, self._client.options)
            self._stream = writer, reader
            writer.begin(REQUEST)
        return self._stream


def _messages(keys: list[bytes], values: list[bytes | None]) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of rows that make a message of moderate size each."""
    for start in range(0, len(keys), ROWS):
        stop = min(start + ROWS, len(keys))
        size, first = 0, start
        if sum(map(len, keys[start:stop])) + sum(map(len, filter(None, values[start:stop]))) <= BYTES:
            yield start, stop
            continue
        for row in range(start, stop):
            size += len(keys[row]) + len(values[row] or b"")
            if size > BYTES:
                yield first, row + 1
                size, first = 0, row + 1
        if first < stop:
            yield first, stop


def _nulls(rows: int) -> pa.Array:
    return pa.nulls(rows, pa.binary())


def _with_shards(task: BeginTask, shards: tuple[int, ...]) -> BeginTask:
    return BeginTask(task.query_id, task.batch, task.uid, shards)
