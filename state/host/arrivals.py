"""The shards that come to this host from others: they move here, stand by here, or are those of a lost host.

A shard that moves is restored ahead, kept up with its owner, and taken over between two batches. A standby stays, and
stages what its owner forwards, until it is promoted or ended. A shard of a lost host is opened from what that host has
left on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Final

import attrs

from ...storage import runtime
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..errors import CopyGivenUpError
from ..rpc.messages import Control, CopyReport, CopyStep, Forward, HandOver, ShardStandby
from ..rpc.orders import ConfirmOwner, OpenAhead, Promote, Reopen, TakeOver
from ..rpc.wire import HandedOver
from ..shards import CopyId, RestoreSource
from .cache import Value
from .changes import Changes
from .peers import Peers
from .shard import Shard
from .shard_key import ShardKey

_log = logger(__name__)
_THREADS: Final = {"move": 2, "promote": 4, "reopen": 4, "follow": 1}
"""How many there are of each kind. A batch waits for promotions, so these do not wait for shards that are restored."""

Batches = Iterable[tuple[BatchId, dict[bytes, Value]]]


@attrs.define(eq=False)
class _Arrival:
    """A shard that follows its owner."""

    order: OpenAhead
    key: ShardKey
    shard: Shard
    after: BatchId
    """The last batch that it has."""
    is_standby: bool = False
    """Whether the owner forwards what tasks stage. Changed under the lock."""
    catching_up: Future[None] | None = None
    """What is left to do of the batch that was forwarded last."""
    lock: runtime.Lock = attrs.field(factory=runtime.lock)
    """What is forwarded waits until the standby has what comes before it."""


class Arrivals:
    """Carries out the orders of moves and of standbys, one after the other for each shard. No task gets such a shard.

    Args:
        host: id of this host.
        control: the coordinator.
        open_shard: restores a shard.
        reopen_shard: opens the shard of a lost host.
        peers: the other hosts.
        set_aside: keeps a shard that was taken over until the coordinator says whose it is.
        destroy: closes a shard and deletes its files in the background.
    """

    def __init__(
        self,
        host: str,
        control: Control,
        open_shard: Callable[[ShardKey, RestoreSource], Shard],
        reopen_shard: Callable[[ShardKey, Reopen], Shard],
        peers: Peers,
        set_aside: Callable[[ShardKey, Shard], None],
        destroy: Callable[[Shard], None],
    ) -> None:
        self._host = host
        self._control = control
        self._open_shard = open_shard
        self._reopen_shard = reopen_shard
        self._peers = peers
        self._set_aside = set_aside
        self._destroy = destroy
        self._lock = runtime.lock()
        self._arrivals: dict[CopyId, _Arrival] = {}
        self._wanted: dict[CopyId, ShardKey] = {}
        """The moves that go on and the standbys, by what moves or follows."""
        self._pools: dict[str, Executor] = {}

    def open(self, order: OpenAhead) -> None:
        """Restore a shard in the background, and follow its owner."""
        key = self._want(order)
        self._submit("move", order.copy_id, lambda: self._open(order, key))

    def reopen(self, order: Reopen) -> None:
        """Open the shard of a lost host in the background."""
        key = self._want(order)
        self._submit("reopen", order.copy_id, lambda: self._reopen(order, key))

    def _want(self, order: OpenAhead | Reopen) -> ShardKey:
        """Let a shard come here, and return its key."""
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        # What was here of it is of no use any more, although nobody may have said so.
        self._give_up(lambda _, one: one == key)
        with self._lock:
            self._wanted[order.copy_id] = key
        return key

    def take_over(self, order: TakeOver) -> None:
        """Take the rest of a shard over in the background."""
        self._submit("move", order.copy_id, lambda: self._take_over(order))

    def promote(self, order: Promote) -> None:
        """Make a standby the shard, in the background."""
        self._submit("promote", order.copy_id, lambda: self._promote(order))

    def follow(self, request: Forward, changes: Mapping[int, Changes]) -> None:
        """Stage on standbys what the owner of their shards has staged.

        Raises:
            CopyGivenUpError: one is not the standby of this owner, or has ended.
            ShardRefusedError: one has missed something.
        """
        for number, one in request.shards.items():
            arrival = self._arrival(one.copy_id)
            with arrival.lock:
                if not arrival.is_standby:
                    raise CopyGivenUpError(one.copy_id)
                if arrival.catching_up is not None:
                    # A standby whose disk is slower than the batches slows them down, or is dropped for it.
                    arrival.catching_up.result()
                arrival.shard.follow(request.batch, one.position, changes.get(number))
                # The owner's task does not wait for it.
                arrival.catching_up = self._pool("follow").submit(arrival.shard.catch_up)

    def end(self, copy_id: CopyId) -> bool:
        """Delete a standby in the background; return whether it was here."""
        with self._lock:
            key = self._wanted.get(copy_id)
        self._give_up(lambda one, _: one == copy_id)
        return key is not None

    def give_up_copy(self, order: ConfirmOwner) -> None:
        """Give up what has not been taken over: the move has ended."""
        key = ShardKey(order.query_id, order.shard.uid, order.shard.shard)
        self._give_up(lambda _, one: one == key)

    def release(self, query_id: str) -> None:
        """Give up all shards of a query that has ended."""
        self._give_up(lambda _, one: one.query_id == query_id)

    def close(self) -> None:
        """Close all shards."""
        self._give_up(lambda _, one: True)
        with self._lock:
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown(wait=True)

    def _submit(self, what: str, copy_id: CopyId, work: Callable[[], CopyReport]) -> None:
        self._pool(what).submit(self._report, copy_id, work)

    def _pool(self, what: str) -> Executor:
        # Made when first needed: where there is one host, there are no moves.
        with self._lock:
            if what not in self._pools:
                self._pools[what] = runtime.pool(_THREADS[what], f"chandy-{what}")
            return self._pools[what]

    def _report(self, copy_id: CopyId, work: Callable[[], CopyReport]) -> None:
        try:
            report = work()
        except Exception as error:  # noqa: BLE001 - every failure ends the move
            _log.warning("a shard does not move here", copy=copy_id, error=repr(error))
            report = CopyReport(self._host, copy_id, CopyStep.FAILED, why=str(error) or repr(error))
            self._give_up(lambda one, _: one == copy_id)
        try:
            self._control.send(report)
        except Exception as error:  # noqa: BLE001 - the coordinator gives the move up in time
            _log.warning("a move is not reported", copy=copy_id, error=repr(error))

    def _arrival(self, copy_id: CopyId) -> _Arrival:
        """Return a copy that goes on, or raise ``CopyGivenUpError``."""
        with self._lock:
            arrival = self._arrivals.get(copy_id)
        if arrival is None:
            raise CopyGivenUpError(copy_id)
        return arrival

    def _open(self, order: OpenAhead, key: ShardKey) -> CopyReport:
        shard = self._open_shard(key, order.source)
        arrival = _Arrival(order, key, shard, order.source.batch)
        with self._lock:
            if is_wanted := order.copy_id in self._wanted:
                self._arrivals[order.copy_id] = arrival
        if not is_wanted:
            self._destroy(shard)
            raise CopyGivenUpError(order.copy_id)
        # Most of what the owner has is here before any batch waits for it.
        self._follow(arrival)
        if order.standby_at is not None:
            self._join(arrival, ShardStandby(order.copy_id, order.standby_at))
        return CopyReport(self._host, order.copy_id, CopyStep.OPENED)

    def _take_over(self, order: TakeOver) -> CopyReport:
        arrival = self._arrival(order.copy_id)
        found = self._ask(arrival, cut=order.cut)
        arrival.shard.take_over(found.batches, found.position)
        return self._taken(arrival.key, arrival.shard, order)

    def _promote(self, order: Promote) -> CopyReport:
        arrival = self._arrival(order.copy_id)
        with arrival.lock:
            if not arrival.is_standby:
                raise CopyGivenUpError(order.copy_id)
            # What its former owner forwards now is refused.
            arrival.is_standby = False
            arrival.shard.promote(order.cut)
        return self._taken(arrival.key, arrival.shard, order)

    def _reopen(self, order: Reopen, key: ShardKey) -> CopyReport:
        shard = self._reopen_shard(key, order)
        try:
            return self._taken(key, shard, order)
        except CopyGivenUpError:
            self._destroy(shard)
            raise

    def _taken(self, key: ShardKey, shard: Shard, order: TakeOver | Promote | Reopen) -> CopyReport:
        """Keep a shard that has all that its owner had, until the coordinator says whose it is.

        Raises:
            CopyGivenUpError: it is not wanted any more. An arrival has been destroyed with that.
        """
        shard.term = order.term
        with self._lock:
            self._arrivals.pop(order.copy_id, None)
            if is_wanted := self._wanted.pop(order.copy_id, None) is not None:
                self._set_aside(key, shard)
        if not is_wanted:
            raise CopyGivenUpError(order.copy_id)
        _log.info("a shard is here now", shard=str(key), batch=shard.position, term=order.term)
        return CopyReport(self._host, order.copy_id, CopyStep.TAKEN, order.term)

    def _join(self, arrival: _Arrival, standby: ShardStandby) -> None:
        """Have the owner forward what is staged from now on, and get all that was staged before."""
        with arrival.lock:
            arrival.shard.join(self._ask(arrival, standby=standby))
            arrival.is_standby = True

    def _follow(self, arrival: _Arrival) -> None:
        arrival.shard.replay(self._counted(arrival, self._ask(arrival).batches))

    def _ask(
        self, arrival: _Arrival, cut: BatchId | None = None, standby: ShardStandby | None = None
    ) -> HandedOver:
        order = arrival.order
        request = HandOver(order.query_id, order.shard, order.owner_term, arrival.after, cut, standby)
        return self._peers.hand_over(order.owner, request)

    @staticmethod
    def _counted(arrival: _Arrival, batches: Batches) -> Iterator[tuple[BatchId, dict[bytes, Value]]]:
        for batch, entries in batches:
            yield batch, entries
            arrival.after = batch

    def _give_up(self, which: Callable[[CopyId, ShardKey], bool]) -> None:
        with self._lock:
            copies = [one for one, key in self._wanted.items() if which(one, key)]
            for one in copies:
                del self._wanted[one]
            gone = [self._arrivals.pop(one) for one in copies if one in self._arrivals]
        for arrival in gone:
            self._destroy(arrival.shard)
