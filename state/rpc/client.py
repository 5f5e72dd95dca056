"""The task's side of a state host: begins a batch, fetches values, scans, applies changes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, repeat
from types import MappingProxyType, TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ...storage.codec import to_json
from ..errors import HostLostError, ShardMissingError, StateAccessError
from ..format.arrow import BYTES, from_numpy
from ..format.columns import Columns
from ..shards import Term
from .access import Entries, ShardColumn
from .calls import ActionClient
from .liveness import Liveness
from .messages import AskHost, BatchTimes, BeginTask, Begun, Forward, HandOver, HostName, TaskFailure
from .metrics import OperatorMetrics
from .tls import Identity
from .wire import APPLY, COMMIT, FETCH, REQUEST, SCAN, HandedOver, ScanPage, messages, pack_changes

_HAND_OVER_SECONDS: Final = 30.0
"""How long a host may take to send what another one does not have of a shard yet."""
_FORWARD_SECONDS: Final = 5.0
"""How long a standby may take to have what a task has staged. The task waits for it."""
_LOOK_SECONDS: Final = 5.0
"""How long a host may take to say that it lives, and the host beside a task to begin a batch before it is asked."""
_BEGIN_SECONDS: Final = (1.0, 2.0, 5.0)
"""How long another host may take to begin a batch before it is asked whether it lives: at first, then, and ever after.

A host that restores shards takes long. But if its machine has lost its power, another host may own them by now, and the
batch waits for a task that waits for the lost one."""
_BEGIN_LOOK_SECONDS: Final = 2.0
"""How long that host may take to say that it lives. If it is only busy, the task begins once more."""
_HOPS: Final = 4
"""How often the owner of a shard is looked for before the search is given up."""
T = TypeVar("T")
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Exchange(Protocol):
    """The shards of one task on one host: what the task asks and changes, in the pieces that a host is sent.

    All calls raise ``HostLostError`` if the host does not answer, or what it raises.
    """

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> list[pa.Array]:
        """Return the values of keys, in their order, in pieces."""
        ...

    def scan(self, shards: ShardColumn, first: bytes, start: bytes, stop: bytes) -> ScanPage:
        """Return a page of a scan: from ``first`` in the first shard, from ``start`` in the others."""
        ...

    def send(self, entries: Entries) -> None:
        """Send changes."""
        ...

    def commit(self, metrics: OperatorMetrics) -> None:
        """Have all changes staged."""
        ...

    def close(self) -> None:
        """End it, and discard what was not staged."""
        ...


class HostLink(Protocol):
    """The connection to one state host, for use from many threads."""

    def call(self, action: str, request: object, answer: type[T], timeout: float | None = None) -> T:
        """Call an action that returns one value, which may take so many seconds."""
        ...

    def tell(self, action: str, request: object) -> None:
        """Call an action that returns nothing."""
        ...

    def exchange(self, task: BeginTask, liveness: Liveness | None) -> Exchange:
        """Begin to exchange data of a task. ``liveness`` ends what waits for a host that is gone."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class _FlightLink(ActionClient):
    """``HostLink`` over Arrow Flight."""

    def exchange(self, task: BeginTask, liveness: Liveness | None) -> Exchange:
        return _FlightExchange(self, task, liveness)


class TaskClient:
    """Calls one state host and those that it names as owners of shards. It may be used from many threads.

    Args:
        address: where the host is.
        connect: connects to the host at an address.
        looks: whether hosts are asked, while a task waits for them, if they live: what waits fails if they do not. It
            is of no use where the pipeline goes back with every host that is lost.
    """

    def __init__(self, address: str, connect: Callable[[str], HostLink], *, looks: bool = False) -> None:
        self.address = address
        self._connect = connect
        self._links: dict[str, HostLink] = {}
        self._liveness = Liveness(self._lives) if looks else None

    @classmethod
    def over_flight(
        cls, address: str, token: str, identity: Identity | None = None, *, looks: bool = False
    ) -> Self:
        """Return a client over Arrow Flight.

        Args:
            address: Arrow Flight location of the host.
            token: what it wants of every call.
            identity: what hosts on other machines want.
            looks: as for the constructor.
        """
        return cls(address, lambda to: _FlightLink(to, token, HostLostError, identity=identity), looks=looks)

    def begin(self, task: BeginTask) -> RemoteBatchAccess:
        """Make the task's shards ready for the batch, on whichever hosts they are.

        Raises:
            CannotGoBackError: the state before the batch is gone.
            StateAccessError: no host owns some of the shards.
            HostLostError: the host, or the owner of a shard, does not answer.
            ChandyError: the coordinator refused, or a shard could not be restored.
        """
        owners: dict[str, list[int]] = {}
        fresh: set[int] = set()
        terms: dict[int, Term] = {}
        times = BatchTimes()
        pending = {self.address: task.shards}
        for _ in range(_HOPS):
            elsewhere: dict[str, list[int]] = {}
            for address, shards in pending.items():
                begun = self._begin(address, _with_shards(task, shards))
                here = [shard for shard in shards if shard not in begun.elsewhere]
                owners.setdefault(address, []).extend(here)
                fresh.update(begun.fresh)
                terms.update(begun.terms)
                # The same on every host: they come from the coordinator.
                times = begun.times
                for shard, other in begun.elsewhere.items():
                    elsewhere.setdefault(other, []).append(shard)
            if not elsewhere:
                exchanges = {
                    self._link(address).exchange(_with_shards(task, tuple(here), terms), self._liveness): here
                    for address, here in owners.items()
                    if here
                }
                access = RemoteBatchAccess(task, times, frozenset(fresh), exchanges)
                access.metrics.shards = len(task.shards)
                access.metrics.remote_shards = len(task.shards) - len(owners[self.address])
                return access
            pending = {address: tuple(sorted(shards)) for address, shards in elsewhere.items()}
        lost = sorted(shard for shards in pending.values() for shard in shards)
        raise StateAccessError(
            f"no state host owns shards {lost} of operator {task.uid!r}",
            "each shard on one host",
            "hosts that name each other as the owner",
            "run the batch again",
        )

    def _begin(self, address: str, task: BeginTask) -> Begun:
        link = self._link(address)
        if self._liveness is None:
            return link.call("begin", task, Begun)
        waits: Iterator[float] = chain(_BEGIN_SECONDS, repeat(_BEGIN_SECONDS[-1]))
        within = _BEGIN_LOOK_SECONDS
        if address == self.address:
            # A task may kill it as silent, so it is not taken for that because it is busy for a moment.
            waits, within = repeat(_LOOK_SECONDS), _LOOK_SECONDS
        while True:
            try:
                return link.call("begin", task, Begun, next(waits))
            except HostLostError as error:
                is_late = isinstance(error.__cause__, flight.FlightTimedOutError)
                # It may be restoring. To begin again costs nothing.
                if not (is_late and self._lives(address, within)):
                    raise

    def _lives(self, address: str, within: float = _LOOK_SECONDS) -> bool:
        try:
            self._link(address).call("host", AskHost(), HostName, within)
        except HostLostError:
            return False
        return True

    def report(self, failure: TaskFailure) -> None:
        """Tell the coordinator that a processor raised."""
        self._link(self.address).tell("report", failure)

    def close(self) -> None:
        """Close the connections."""
        for link in self._links.values():
            link.close()

    def _link(self, address: str) -> HostLink:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = self._connect(address)
        return link


class HostClient:
    """Asks another state host for a shard that moves from there, and forwards to the standbys on it.

    It may be used from many threads.
    """

    def __init__(self, token: str, identity: Identity | None) -> None:
        self._token = token
        self._identity = identity
        self._lock = threading.Lock()
        self._standbys: dict[str, ActionClient] = {}
        """By the address of their host."""

    def forward(self, address: str, request: Forward, changes: Mapping[int, Columns]) -> None:
        """Have the standbys on a host stage what a task has staged on their shards; return when they have.

        Raises:
            HostLostError: the host does not answer in time.
            ChandyError: a standby has missed something, or has ended.
        """
        with self._lock:
            client = self._standbys.get(address)
            if client is None:
                client = self._standbys[address] = ActionClient(
                    address, self._token, HostLostError, identity=self._identity, timeout=_FORWARD_SECONDS
                )
        with client.errors():
            descriptor = flight.FlightDescriptor.for_command(to_json(request))
            writer, _ = client.flight.do_put(descriptor, REQUEST, client.options)
            # To close it waits for the host, and raises what that raised.
            with contextlib.closing(writer):
                for rows in pack_changes(changes):
                    writer.write_batch(rows)

    def hand_over(self, address: str, request: HandOver) -> HandedOver:
        """Return what another host has of a shard.

        Raises:
            HostLostError: the host does not answer.
            ChandyError: it does not have the shard, or cannot hand it over.
        """
        client = ActionClient(
            address, self._token, HostLostError, identity=self._identity, timeout=_HAND_OVER_SECONDS
        )
        try:
            with client.errors():
                reader = client.flight.do_get(flight.Ticket(to_json(request)), client.options)
                return HandedOver.unpack(reader.schema, (chunk.data for chunk in reader))
        finally:
            client.close()


class RemoteBatchAccess:
    """``StateAccess`` over the state hosts that own the task's shards.

    A context manager: leaving it without ``apply`` discards all changes.
    """

    def __init__(
        self, task: BeginTask, times: BatchTimes, fresh: frozenset[int], exchanges: dict[Exchange, list[int]]
    ) -> None:
        self.task = task
        self._times = times
        self._fresh = fresh
        self.metrics = OperatorMetrics(tasks=1)
        self._begun = time.perf_counter()
        self._open = True
        self._exchanges = list(exchanges)
        # The number of the exchange by shard, to be looked up for whole columns at a time.
        self._routes = np.full(max(task.shards, default=-1) + 1, -1, np.int16)
        for number, shards in enumerate(exchanges.values()):
            self._routes[shards] = number

    @property
    def times(self) -> BatchTimes:  # noqa: D102 - see StateAccess
        return self._times

    @property
    def fresh(self) -> frozenset[int]:  # noqa: D102 - see StateAccess
        return self._fresh

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> pa.Array:
        """As in ``StateAccess``.

        Raises:
            ShardMissingError: a shard is not one of the task's.
            HostLostError: a host does not answer.
            StateAccessError: after ``apply`` or ``close``.
        """
        self._check(shards, keys)
        if not len(keys):
            return pa.nulls(0, BYTES)
        with self.metrics.on_state():
            if len(self._exchanges) == 1:
                return _joined(self._exchanges[0].fetch(shards, keys))
            parts: list[pa.Array] = []
            places: list[Rows] = []
            for exchange, rows in self._split(shards):
                parts += exchange.fetch(shards[rows], keys.take(rows))
                places.append(rows)
            return _joined(parts).take(np.argsort(np.concatenate(places)))

    def scan(self, start: bytes, stop: bytes) -> Iterator[Entries]:
        """As in ``StateAccess``.

        Raises:
            HostLostError, StateAccessError: as for ``fetch``.
        """
        for number, exchange in enumerate(self._exchanges):
            shards = np.flatnonzero(self._routes == number).astype(np.int32)
            first, complete = start, not len(shards)
            while not complete:
                self._check_open()
                with self.metrics.on_state():
                    page = exchange.scan(shards, first, start, stop)
                complete = page.complete
                if len(page.entries):
                    if not complete:
                        # The next page begins in the same shard, after the last key.
                        shards = shards[np.searchsorted(shards, page.entries.shards[-1]) :]
                        first = page.entries.keys[-1].as_py() + b"\x00"
                    yield page.entries

    def apply(self, changes: Iterable[Entries]) -> None:
        """As in ``StateAccess``, on each shard as a whole.

        Raises:
            ShardRefusedError: Spark has gone on without this attempt.
            ShardMissingError, HostLostError, StateAccessError: as for ``fetch``.
        """
        self._check_open()
        try:
            for entries in changes:
                self._check(entries.shards, entries.keys)
                with self.metrics.on_state():
                    self._send(entries)
            self.metrics.seconds = time.perf_counter() - self._begun
            # Only one of the hosts gets the metrics, so that they are counted once.
            for exchange, metrics in zip(
                self._exchanges, chain([self.metrics], repeat(OperatorMetrics())), strict=False
            ):
                exchange.commit(metrics)
        finally:
            self.close()

    def close(self) -> None:
        """End the access and discard what was not applied. Closing twice is no error."""
        self._open = False
        for exchange in self._exchanges:
            exchange.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise StateAccessError(
                f"the access to batch {self.task.batch} has ended",
                "no use of its shards after apply or close",
                "another call",
                "begin the batch again",
            )

    def _check(self, shards: ShardColumn, keys: pa.Array) -> None:
        self._check_open()
        if len(shards) != len(keys):
            raise ValueError(f"expected a shard for each of {len(keys)} keys, found {len(shards)}")
        if len(shards):
            unknown = (shards < 0) | (shards >= len(self._routes))
            unknown[~unknown] = self._routes[shards[~unknown]] < 0
            if unknown.any():
                raise ShardMissingError(f"{self.task.uid}/{shards[unknown][0]}", "(this task)")

    def _send(self, entries: Entries) -> None:
        if len(self._exchanges) == 1:
            self._exchanges[0].send(entries)
            return
        for exchange, rows in self._split(entries.shards):
            some = Entries(entries.shards[rows], entries.keys.take(rows), entries.values.take(rows))
            exchange.send(some)

    def _split(self, shards: ShardColumn) -> Iterator[tuple[Exchange, Rows]]:
        routes = self._routes[shards]
        for number, exchange in enumerate(self._exchanges):
            rows = np.flatnonzero(routes == number)
            if len(rows):
                yield exchange, rows


class _FlightExchange:
    """``Exchange`` over a stream, opened when it is first needed."""

    def __init__(self, client: ActionClient, task: BeginTask, liveness: Liveness | None) -> None:
        self._client = client
        self._task = task
        self._liveness = liveness
        self._stream: tuple[flight.FlightStreamWriter, flight.FlightStreamReader] | None = None

    def fetch(self, shards: ShardColumn, keys: pa.Array) -> list[pa.Array]:
        values: list[pa.Array] = []
        with self._waiting():
            writer, reader = self._opened()
            # One message at a time: with more, both sides could wait for the other to read.
            for start, stop in messages(keys):
                rows = stop - start
                request = [from_numpy(shards[start:stop]), keys.slice(start, rows), pa.nulls(rows, BYTES)]
                writer.write_with_metadata(pa.record_batch(request, schema=REQUEST), FETCH)
                while rows > 0:
                    values.append(reader.read_chunk().data.column(0))
                    rows -= len(values[-1])
        return values

    def scan(self, shards: ShardColumn, first: bytes, start: bytes, stop: bytes) -> ScanPage:
        starts = [first, *[start] * (len(shards) - 1)]
        request = [pa.array(shards), pa.array(starts, BYTES), pa.array([stop] * len(shards), BYTES)]
        with self._waiting():
            writer, reader = self._opened()
            writer.write_with_metadata(pa.record_batch(request, schema=REQUEST), SCAN)
            answer = reader.read_chunk()
            return ScanPage.unpack(answer.data, answer.app_metadata.to_pybytes())

    def send(self, entries: Entries) -> None:
        columns = [from_numpy(entries.shards), entries.keys, entries.values]
        request = pa.record_batch(columns, schema=REQUEST)
        with self._waiting():
            writer, reader = self._opened()
            try:
                for start, stop in messages(entries.keys, entries.values):
                    writer.write_with_metadata(request.slice(start, stop - start), APPLY)
            except pa.ArrowInvalid as error:
                raise StateAccessError(
                    f"the changes of batch {self._task.batch} cannot be sent to their state host",
                    "keys with values that a message can hold",
                    str(error),
                ) from error
            except (flight.FlightError, pa.ArrowException, OSError):
                # If the host has ended the stream, reading an answer raises its error. If it has not, it waits for more
                # as long as this end is open.
                with contextlib.suppress(flight.FlightError, pa.ArrowException, OSError):
                    writer.done_writing()
                with contextlib.suppress(StopIteration):
                    reader.read_chunk()
                raise

    def commit(self, metrics: OperatorMetrics) -> None:
        with self._waiting():
            writer, reader = self._opened()
            writer.write_metadata(COMMIT + to_json(metrics))
            reader.read_chunk()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        with self._client.errors():
            if self._liveness is None:
                yield
                return
            with self._liveness.watching(self._client.address, self._cancel):
                yield

    def _cancel(self) -> None:
        if (stream := self._stream) is not None:
            stream[1].cancel()

    def close(self) -> None:
        if self._stream is None:
            return
        writer, _ = self._stream
        self._stream = None
        # The caller that needed this stream has got its error already.
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


def _joined(parts: list[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _with_shards(
    task: BeginTask, shards: tuple[int, ...], terms: Mapping[int, Term] = MappingProxyType({})
) -> BeginTask:
    own = {shard: terms[shard] for shard in shards if shard in terms}
    return BeginTask(task.query_id, task.batch, task.uid, shards, own)
