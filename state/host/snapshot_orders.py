"""How far a host's snapshot orders are: pure decisions. What is snapshotted, and what the coordinator is told."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import Final

import attrs

from ...storage.ids import BatchId, CheckpointId
from ..rpc.orders import SnapshotOrder
from .shard_key import ShardKey

_KEPT: Final = 1000


class OrderPhase(Enum):
    """How far a snapshot order is."""

    OPEN = auto()
    ANSWERED = auto()
    """It was acknowledged or declined, or is about to be."""
    ABORTED = auto()
    """Its checkpoint was aborted. The coordinator is told nothing more about it."""


@attrs.define(eq=False)
class AcceptedOrder:
    """A snapshot order that this host carries out. Each of its shards is snapshotted once."""

    order: SnapshotOrder
    phase: OrderPhase = OrderPhase.OPEN
    shards: tuple[ShardKey, ...] = attrs.field(init=False)
    """The shards that the order names."""
    _begun: set[ShardKey] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        query_id = self.order.query_id
        self.shards = tuple(ShardKey(query_id, shard.uid, shard.shard) for shard in self.order.shards)

    @property
    def is_open(self) -> bool:
        """Whether snapshots for the order are still of use."""
        return self.phase is OrderPhase.OPEN

    def begin(self, shard: ShardKey) -> bool:
        """Decide whether the caller has to snapshot a shard now. Only the first one that asks has to."""
        if not self.is_open or shard in self._begun or shard not in self.shards:
            return False
        self._begun.add(shard)
        return True

    def succeed(self) -> bool:
        """Record that all snapshots are durable; return whether to acknowledge the order."""
        acknowledges = self.is_open
        if acknowledges:
            self.phase = OrderPhase.ANSWERED
        return acknowledges

    def fail(self) -> bool:
        """Record that the order cannot be carried out or acknowledged; return whether to decline it."""
        declines = self.phase is not OrderPhase.ABORTED
        if declines:
            self.phase = OrderPhase.ANSWERED
        return declines

    def abort(self) -> None:
        """Record that the checkpoint was aborted."""
        self.phase = OrderPhase.ABORTED


class SnapshotOrders:
    """The orders that a host has been given, by checkpoint and query.

    An order comes with the answer for a batch or by itself, or both ways; it is carried out once. The abort of a
    checkpoint may come before its order.
    """

    def __init__(self) -> None:
        self._orders: OrderedDict[tuple[int, str], AcceptedOrder] = OrderedDict()
        self._aborted: OrderedDict[int, None] = OrderedDict()

    def accept(self, order: SnapshotOrder) -> AcceptedOrder:
        """Return an order as far as it is. One of a checkpoint that was aborted already is never open."""
        key = order.checkpoint, order.query_id
        if key not in self._orders:
            phase = OrderPhase.ABORTED if order.checkpoint in self._aborted else OrderPhase.OPEN
            self._orders[key] = AcceptedOrder(order, phase)
            if len(self._orders) > _KEPT:
                self._orders.popitem(last=False)
        return self._orders[key]

    def abort(self, checkpoint: CheckpointId) -> None:
        """Abort the orders of a checkpoint, also those that are still to come."""
        self._aborted[checkpoint] = None
        if len(self._aborted) > _KEPT:
            self._aborted.popitem(last=False)
        for accepted in self._of(checkpoint):
            accepted.abort()

    def included(self, checkpoint: CheckpointId) -> list[tuple[ShardKey, BatchId]]:
        """Return the shards of this host that are part of a checkpoint, each with its cut."""
        return [(shard, found.order.cut) for found in self._of(checkpoint) for shard in found.shards]

    def _of(self, checkpoint: CheckpointId) -> list[AcceptedOrder]:
        return [accepted for (number, _), accepted in self._orders.items() if number == checkpoint]
