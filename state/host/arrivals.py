"""The shards that move to this host: restored ahead, kept up with their owners, taken over between two batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import attrs

from ...storage.logs import logger
from ..errors import MoveGivenUpError
from ..rpc.messages import Control, HandOver, MoveReport, MoveStep, OpenAhead, RestoreSource, Settle, TakeOver
from .cache import Value
from .shard import Shard
from .shard_key import ShardKey

_log = logger(__name__)
_THREADS: Final = 2

Batches = Iterable[tuple[int, dict[bytes, Value]]]
Fetch = Callable[[str, HandOver], tuple[int, Batches]]
"""Asks the host at an address; returns where the shard stands there, and the batches."""


@attrs.define(eq=False)
class _Arrival:
    """A shard that follows its owner."""

    order: OpenAhead
    key: ShardKey
    shard: Shard
    after: int
    """The last batch that it has."""


class Arrivals:
    """Carries the orders of moves out, one after the other for each shard. Until one is taken over no task gets it.

    Args:
        host: id of this host.
        control: the coordinator.
        open_shard: restores a shard.
        fetch: asks another host for the rest.
        set_aside: keeps a shard that was taken over until the coordinator says whose it is.
    """

    def __init__(
        self,
        host: str,
        control: Control,
        open_shard: Callable[[ShardKey, RestoreSource], Shard],
        fetch: Fetch,
        set_aside: Callable[[ShardKey, Shard], None],
    ) -> None:
        self._host = host
        self._control = control
        self._open_shard = open_shard
        self._fetch = fetch
        self._set_aside = set_aside
        self._lock = threading.Lock()
        self._arrivals: dict[int, _Arrival] = {}
        self._wanted: dict[int, ShardKey] = {}
        """The moves that go on, by what moves."""
        self._pool: ThreadPoolExecutor | None = None

    def open(self, order: OpenAhead) -> None:
        """Restore a shard in the background, and follow its owner."""
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        with self._lock:
            self._wanted[order.move] = key
        self._submit(order.move, lambda: self._open(order, key))

    def take_over(self, order: TakeOver) -> None:
        """Take the rest of a shard over in the background."""
        self._submit(order.move, lambda: self._take_over(order))

    def settle(self, order: Settle) -> None:
        """Give up what has not been taken over: the move has ended."""
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        self._give_up(lambda one: one == key)

    def release(self, query_id: str) -> None:
        """Give up all shards of a query that has ended."""
        self._give_up(lambda one: one.query_id == query_id)

    def close(self) -> None:
        """Close all shards."""
        self._give_up(lambda one: True)
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _submit(self, move: int, work: Callable[[], MoveReport]) -> None:
        # Made when first needed: where there is one host, there are no moves.
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "chandy-move")
        self._pool.submit(self._report, move, work)

    def _report(self, move: int, work: Callable[[], MoveReport]) -> None:
        try:
            report = work()
        except Exception as error:  # noqa: BLE001 - every failure ends the move
            _log.warning("a shard does not move here", move=move, error=repr(error))
            report = MoveReport(self._host, move, MoveStep.FAILED, why=str(error) or repr(error))
            with self._lock:
                key = self._wanted.get(move)
            self._give_up(lambda one: one == key)
        try:
            self._control.moved(report)
        except Exception as error:  # noqa: BLE001 - the coordinator gives the move up in time
            _log.warning("a move is not reported", move=move, error=repr(error))

    def _open(self, order: OpenAhead, key: ShardKey) -> MoveReport:
        shard = self._open_shard(key, order.source)
        arrival = _Arrival(order, key, shard, order.source.batch)
        with self._lock:
            if is_wanted := order.move in self._wanted:
                self._arrivals[order.move] = arrival
        if not is_wanted:
            shard.destroy()
            raise MoveGivenUpError(order.move)
        # Most of what the owner has is here before any batch waits for it.
        self._follow(arrival)
        return MoveReport(self._host, order.move, MoveStep.OPENED)

    def _take_over(self, order: TakeOver) -> MoveReport:
        with self._lock:
            arrival = self._arrivals.get(order.move)
        if arrival is None:
            raise MoveGivenUpError(order.move)
        position, batches = self._ask(arrival, order.cut)
        arrival.shard.take_over(batches, position)
        arrival.shard.term = order.term
        with self._lock:
            is_wanted = self._arrivals.pop(order.move, None) is not None
            self._wanted.pop(order.move, None)
            if is_wanted:
                self._set_aside(arrival.key, arrival.shard)
        if not is_wanted:
            raise MoveGivenUpError(order.move)
        _log.info("a shard has moved here", shard=str(arrival.key), batch=position, term=order.term)
        return MoveReport(self._host, order.move, MoveStep.TAKEN, order.term)

    def _follow(self, arrival: _Arrival) -> None:
        _, batches = self._ask(arrival, None)
        arrival.shard.replay(self._counted(arrival, batches))

    def _ask(self, arrival: _Arrival, cut: int | None) -> tuple[int, Batches]:
        order = arrival.order
        return self._fetch(
            order.owner, HandOver(order.query_id, order.shard, order.owner_term, arrival.after, cut)
        )

    @staticmethod
    def _counted(arrival: _Arrival, batches: Batches) -> Iterator[tuple[int, dict[bytes, Value]]]:
        for batch, entries in batches:
            yield batch, entries
            arrival.after = batch

    def _give_up(self, which: Callable[[ShardKey], bool]) -> None:
        with self._lock:
            moves = [move for move, key in self._wanted.items() if which(key)]
            for move in moves:
                del self._wanted[move]
            gone = [self._arrivals.pop(move) for move in moves if move in self._arrivals]
        for arrival in gone:
            arrival.shard.destroy()
