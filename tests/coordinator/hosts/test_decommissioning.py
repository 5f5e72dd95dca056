"""Executors that Spark decommissions are emptied: the real executor of the protocol, hosts that answer at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.hosts.decommissioning import Decommissioning
from chandy.coordinator.protocol import events
from chandy.state.rpc.messages import CopyReport, CopyStep, Decline
from chandy.state.rpc.orders import OpenAhead, Order, SnapshotOrder, StopHost, TakeOver

from ...waiting import eventually
from ..execution.one_life import FakeHost, OneLife


class Leaving:
    """A host with all shards, another one, and which executors Spark decommissions."""

    def __init__(self, folder: Path) -> None:
        self.setup = OneLife(folder)
        self.executor = self.setup.executor
        self.leaving: set[str] = set()
        self.declines = False
        self.asked = 0
        self.orders: list[Order] = []
        self.target = FakeHost(self.executor, "target", "other", "elsewhere")
        self.setup.host.on_order, self.target.on_order = self.own, self.take
        (hello,) = self.executor.protocol.read(
            lambda state: [one for one in state.members.hosts.values() if one.host == "host"]
        )
        self.hello = attrs.evolve(hello, spark_executor="3")
        self.executor.protocol.handle(events.HostJoined(self.hello))
        self.watch = Decommissioning(self.executor, lambda: frozenset(self.leaving))

    def own(self, order: Order) -> None:
        self.orders.append(order)
        if isinstance(order, SnapshotOrder):
            self.asked += 1
            if self.declines:
                self.executor.hosts.decline(
                    Decline("host", order.checkpoint, order.query_id, "the disk is full")
                )
            else:
                self.executor.hosts.ack(self.setup.host.ack_of(order))

    def take(self, order: Order) -> None:
        match order:
            case OpenAhead(move):
                self.executor.hosts.moved(CopyReport("target", move, CopyStep.OPENED))
            case TakeOver(move, _, term):
                self.executor.hosts.moved(CopyReport("target", move, CopyStep.TAKEN, term))

    def left(self) -> int:
        """How many shards the host has."""
        return len(self.executor.protocol.read(lambda state: state.placement.shards_on("machine")))

    def look_until_idle(self) -> None:
        """Look until nothing is asked for any more."""
        self.watch.look()
        eventually(lambda: not self.executor.protocol.read(lambda state: state.checkpoints.pending))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Leaving]:
    made = Leaving(tmp_path)
    yield made
    made.executor.close()


def test_a_decommissioned_executor_loses_its_shards_to_others(cluster: Leaving) -> None:
    cluster.watch.look()
    assert (cluster.left(), cluster.asked) == (2, 0)
    cluster.leaving.add("3")

    def is_empty() -> bool:
        cluster.watch.look()
        return cluster.left() == 0

    eventually(is_empty)
    assert StopHost() not in cluster.orders, "a state host ends before its executor"
    # The executor has ended; its state host still lives, and nothing more is asked for.
    cluster.leaving.clear()
    asked = cluster.asked
    cluster.look_until_idle()
    cluster.look_until_idle()
    assert cluster.asked == asked
    eventually(lambda: StopHost() in cluster.orders, "the empty state host is told to end")
    cluster.watch.look()
    assert cluster.orders.count(StopHost()) == 1
    # It has not heard it if its connection was lost, and it is back.
    eventually(lambda: not cluster.executor.protocol.read(lambda state: "host" in state.members.hosts))
    cluster.watch.look()
    FakeHost(cluster.executor).on_order = cluster.own
    cluster.executor.protocol.handle(events.HostJoined(cluster.hello))
    cluster.watch.look()
    eventually(lambda: cluster.orders.count(StopHost()) == 2, "it is told again")


def test_a_state_host_that_still_has_shards_does_not_end_with_its_executor(
    cluster: Leaving,
) -> None:
    cluster.declines = True
    cluster.leaving.add("3")
    cluster.look_until_idle()
    cluster.leaving.clear()
    cluster.look_until_idle()
    assert cluster.left() == 2
    assert StopHost() not in cluster.orders


def test_an_executor_without_a_state_host_is_nobodys_concern(cluster: Leaving) -> None:
    cluster.leaving.add("9")
    cluster.look_until_idle()
    cluster.look_until_idle()
    assert (cluster.left(), cluster.asked) == (2, 0)
