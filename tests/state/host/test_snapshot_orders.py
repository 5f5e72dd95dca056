from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from chandy.state.host import snapshot_orders
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.snapshot_orders import AcceptedOrder, OrderPhase, SnapshotOrders
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import ShardId

from ...effort import examples


def order(checkpoint: int = 1, query_id: str = "q", cut: int = 0, shards: int = 2) -> SnapshotOrder:
    ids = tuple(ShardId("op", number) for number in range(shards))
    return SnapshotOrder(checkpoint, "query", query_id, cut, ids, "memory://", None, 0.0, 60.0)


def key(shard: int, query_id: str = "q") -> ShardKey:
    return ShardKey(query_id, "op", shard)


def test_each_shard_of_an_order_is_snapshotted_by_whoever_asks_first() -> None:
    accepted = AcceptedOrder(order())
    assert accepted.shards == (key(0), key(1))
    assert [accepted.begin(key(0)), accepted.begin(key(0)), accepted.begin(key(1))] == [True, False, True]


@pytest.mark.parametrize("other", [key(2), key(0, "another"), ShardKey("q", "another", 0)])
def test_a_shard_that_the_order_does_not_name_is_not_snapshotted(other: ShardKey) -> None:
    assert not AcceptedOrder(order()).begin(other)


def test_an_order_is_acknowledged_once() -> None:
    accepted = AcceptedOrder(order())
    assert accepted.is_open
    assert accepted.succeed()
    assert not accepted.is_open
    assert not accepted.succeed()
    assert not accepted.begin(key(0))


def test_an_order_that_failed_is_declined_and_not_acknowledged() -> None:
    accepted = AcceptedOrder(order())
    assert accepted.fail()
    assert not accepted.is_open
    assert not accepted.succeed()


def test_an_acknowledgement_that_cannot_be_delivered_becomes_a_decline() -> None:
    accepted = AcceptedOrder(order())
    accepted.succeed()
    assert accepted.fail()


@pytest.mark.parametrize("answered", [False, True])
def test_the_coordinator_hears_nothing_about_an_aborted_order(answered: bool) -> None:
    accepted = AcceptedOrder(order())
    if answered:
        accepted.succeed()
    accepted.abort()
    assert not accepted.is_open
    assert not accepted.begin(key(0))
    assert not accepted.succeed()
    assert not accepted.fail()
    assert accepted.phase is OrderPhase.ABORTED


def test_an_order_that_comes_twice_is_one_order() -> None:
    orders = SnapshotOrders()
    assert orders.accept(order()) is orders.accept(order())
    others = {orders.accept(order(checkpoint, query_id)) for checkpoint in (1, 2) for query_id in "qr"}
    assert len(others) == 4


def test_an_abort_ends_all_orders_of_its_checkpoint_and_those_that_come_later() -> None:
    orders = SnapshotOrders()
    first, other = orders.accept(order(1, "q")), orders.accept(order(2, "q"))
    orders.abort(1)
    late = orders.accept(order(1, "r"))
    assert [accepted.is_open for accepted in (first, late, other)] == [False, False, True]


def test_the_shards_of_a_checkpoint_are_those_of_its_orders_with_their_cuts() -> None:
    orders = SnapshotOrders()
    orders.accept(order(1, "q", cut=4))
    orders.accept(order(1, "r", cut=7, shards=1))
    orders.accept(order(2, "q", cut=5))
    assert orders.included(1) == [(key(0), 4), (key(1), 4), (key(0, "r"), 7)]
    assert orders.included(3) == []


def test_only_the_latest_orders_and_aborts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_orders, "_KEPT", 2)
    orders = SnapshotOrders()
    for checkpoint in (1, 2, 3):
        orders.accept(order(checkpoint))
        orders.abort(checkpoint + 10)
    assert [orders.included(checkpoint) != [] for checkpoint in (1, 2, 3)] == [False, True, True]
    assert [orders.accept(order(checkpoint)).is_open for checkpoint in (11, 12, 13)] == [True, False, False]


ORDERS = st.builds(order, checkpoint=st.integers(1, 3), query_id=st.sampled_from("qr"))


class OrdersInAnyOrder(RuleBasedStateMachine):
    """Orders, aborts, tasks and uploads come in any order."""

    @initialize()
    def start(self) -> None:
        self.orders = SnapshotOrders()
        self.begun: Counter[tuple[int, ShardKey]] = Counter()
        self.acknowledged: Counter[tuple[int, str]] = Counter()
        self.aborted: set[int] = set()

    @rule(given=ORDERS)
    def an_order_comes(self, given: SnapshotOrder) -> None:
        self.orders.accept(given)

    @rule(given=ORDERS, shard=st.integers(0, 3))
    def a_shard_is_ready(self, given: SnapshotOrder, shard: int) -> None:
        accepted = self.orders.accept(given)
        if accepted.begin(key(shard, given.query_id)):
            assert given.checkpoint not in self.aborted
            self.begun[given.checkpoint, key(shard, given.query_id)] += 1

    @rule(given=ORDERS)
    def everything_is_stored(self, given: SnapshotOrder) -> None:
        if self.orders.accept(given).succeed():
            assert given.checkpoint not in self.aborted
            self.acknowledged[given.checkpoint, given.query_id] += 1

    @rule(given=ORDERS)
    def something_fails(self, given: SnapshotOrder) -> None:
        assert self.orders.accept(given).fail() == (given.checkpoint not in self.aborted)

    @rule(checkpoint=st.integers(1, 3))
    def a_checkpoint_is_aborted(self, checkpoint: int) -> None:
        self.orders.abort(checkpoint)
        self.aborted.add(checkpoint)

    @invariant()
    def nothing_happens_twice(self) -> None:
        if hasattr(self, "orders"):
            assert all(count == 1 for count in (self.begun | self.acknowledged).values())
            assert all(shard.shard < 2 for _, shard in self.begun)


OrdersInAnyOrder.TestCase.settings = settings(
    max_examples=examples(12), stateful_step_count=40, deadline=None
)
TestOrdersInAnyOrder = OrdersInAnyOrder.TestCase
