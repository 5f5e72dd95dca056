"""Bugs in state hosts."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

HOST: Final = (
    text(
        "a snapshot lacks the batch that is staged, although it has committed",
        "state.host.batches:ShardBatches._promote",
        "staged.batch > upto",
        "staged.batch >= upto",
    ),
    text(
        "an attempt at an earlier batch stages its changes",
        "state.host.batches:ShardBatches.check_current",
        "if batch != self.begun:",
        "if False:",
    ),
    text(
        "a snapshot has batches after its cut",
        "state.host.layers:Layers.next",
        "    break\n",
        "    pass\n",
        by=tests("tests/state/host/test_layers.py"),
    ),
    text(
        "a host writes a layer after readers have lost it",
        "state.host.levels:Levels._flush_until",
        "            self._write(layers)\n",
        """            self._layers.drop(len(layers))
            self._write(layers)
            self._layers.freeze(None)
""",
    ),
    text(
        "a shard is handed over without the batch that is staged",
        "state.host.shard:Shard.hand_over",
        "self._batches.seal(cut)",
        "pass",
    ),
    text(
        "a shard that was handed over is served on",
        "state.host.state_host:StateHost.hand_over",
        "self._table.set_aside(key, shard)",
        "pass",
        by=tests("tests/state/host/test_arrivals.py"),
    ),
    text(
        "a host keeps a shard that was set aside, in whatever term",
        "state.host.shard_table:ShardTable.keep_or_delete",
        "is_own = shard.term == term",
        "is_own = True",
        by=tests("tests/state/host/test_arrivals.py"),
    ),
    text(
        "an order is carried out twice",
        "state.host.snapshot_orders:SnapshotOrders.accept",
        "if key not in self._orders:",
        "if True:",
        by=tests("tests/state/host/test_snapshot_orders.py"),
    ),
    text(
        "a shard is snapshotted twice for an order",
        "state.host.snapshot_orders:AcceptedOrder.begin",
        "self._begun.add(shard)",
        "pass",
        by=tests("tests/state/host/test_snapshot_orders.py"),
    ),
    text(
        "a snapshot is not acknowledged",
        "state.host.snapshot_manager:SnapshotManager._run",
        "self._control.send(Ack(self._host, order.checkpoint, order.query_id, snapshots))",
        "pass",
    ),
    text(
        "a host lives on without its driver",
        "state.host.coordinator_client:Lease.renew",
        "self._renewed = self.clock()",
        "self._renewed = self.clock() + 1e9",
        by=tests("tests/world/test_state_hosts.py"),
    ),
    text(
        "a host that is silent is dismissed, and keeps its shards",
        "coordinator.execution.connected_hosts:ConnectedHosts._dismiss",
        "        self._forget_host(hello, is_silent=True)\n",
        "",
        by=tests("tests/coordinator/execution/test_connected_hosts.py"),
    ),
    text(
        "a shard cannot be opened, and its pipeline does not hear of it",
        "coordinator.execution.connected_hosts:ConnectedHosts.not_opened",
        "    self._reports.shards_not_opened(failed.query_id, failed.why, failed.code)\n",
        "",
        by=tests("tests/coordinator/execution/test_connected_hosts.py"),
    ),
)
