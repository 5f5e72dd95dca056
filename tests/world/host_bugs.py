"""Bugs that are put into state hosts, to see that worlds find them."""

from __future__ import annotations

from typing import Final

from chandy.state.host.batches import ShardBatches
from chandy.state.host.coordinator_client import Lease
from chandy.state.host.layers import Layers
from chandy.state.host.levels import Levels
from chandy.state.host.shard import Shard
from chandy.state.host.shard_table import ShardTable
from chandy.state.host.snapshot_manager import SnapshotManager
from chandy.state.host.snapshot_orders import AcceptedOrder, SnapshotOrders
from chandy.state.host.state_host import StateHost

from .seeded import SeededBug

HOST_BUGS: Final = (
    SeededBug(
        "a snapshot lacks the batch that is staged, although it has committed",
        0,
        ShardBatches,
        "_promote",
        "staged.batch > upto",
        "staged.batch >= upto",
    ),
    SeededBug(
        "an attempt at an earlier batch stages its changes",
        0,
        ShardBatches,
        "check_current",
        "if batch != self.begun:",
        "if False:",
    ),
    SeededBug(
        "a snapshot has batches after its cut",
        0,
        Layers,
        "next",
        "    break\n",
        "    pass\n",
    ),
    SeededBug(
        "a host writes a layer after readers have lost it",
        0,
        Levels,
        "_settle_until",
        "            self._write(layers)\n",
        """            self._layers.drop(len(layers))
            self._write(layers)
            self._layers.freeze(None)
""",
    ),
    SeededBug(
        "a shard is handed over without the batch that is staged",
        0,
        Shard,
        "hand_over",
        "self._batches.seal(cut)",
        "pass",
    ),
    SeededBug(
        "a shard that was handed over is served on",
        0,
        StateHost,
        "hand_over",
        "self._table.set_aside(key, shard)",
        "pass",
    ),
    SeededBug(
        "a host keeps a shard that was set aside, in whatever term",
        0,
        ShardTable,
        "keep_or_delete",
        "is_own = shard.term == term",
        "is_own = True",
    ),
    SeededBug(
        "an order is carried out twice",
        0,
        SnapshotOrders,
        "accept",
        "if key not in self._orders:",
        "if True:",
    ),
    SeededBug(
        "a shard is snapshotted twice for an order",
        0,
        AcceptedOrder,
        "begin",
        "self._begun.add(shard)",
        "pass",
    ),
    SeededBug(
        "a snapshot is not acknowledged",
        0,
        SnapshotManager,
        "_run",
        "self._control.send(Ack(self._host, order.checkpoint, order.query_id, snapshots))",
        "pass",
    ),
    SeededBug(
        "a host lives on without its driver",
        0,
        Lease,
        "renew",
        "self._renewed = self.clock()",
        "self._renewed = self.clock() + 1e9",
    ),
)
"""All of them."""
