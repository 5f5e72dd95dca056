from __future__ import annotations

from chandy.coordinator.execution.order_streams import OrderStreams
from chandy.state.rpc.orders import AbortOrder, Heartbeat, StopHost


def test_a_host_hears_its_orders_in_their_order_up_to_the_one_to_stop() -> None:
    streams = OrderStreams()
    with streams.connected("a") as orders, streams.connected("b") as others:
        streams.send("a", AbortOrder(1, None))
        streams.send("a", AbortOrder(2, None))
        streams.stop_all()
        streams.send("a", AbortOrder(3, None))
        assert list(orders) == [Heartbeat(), AbortOrder(1, None), AbortOrder(2, None), StopHost()]
        assert list(others) == [Heartbeat(), StopHost()]


def test_an_order_that_is_sent_before_a_host_begins_to_read_is_not_lost() -> None:
    streams = OrderStreams()
    with streams.connected("host") as orders:
        streams.send("host", AbortOrder(1, None))
        assert [next(orders), next(orders)] == [Heartbeat(), AbortOrder(1, None)]


def test_a_host_that_connects_after_all_were_told_to_stop_is_told_so_too() -> None:
    streams = OrderStreams()
    streams.stop_all()
    with streams.connected("host") as orders:
        assert list(orders) == [Heartbeat(), StopHost()]


def test_a_host_that_connects_again_keeps_its_new_mailbox_when_the_broken_stream_ends() -> None:
    streams = OrderStreams()
    broken = streams.connected("host")
    broken.__enter__()
    with streams.connected("host") as orders:
        broken.__exit__(None, None, None)
        streams.send("host", AbortOrder(1, None))
        assert [next(orders), next(orders)] == [Heartbeat(), AbortOrder(1, None)]


def test_an_order_to_a_host_that_is_gone_is_dropped() -> None:
    streams = OrderStreams()
    with streams.connected("host"):
        pass
    streams.send("host", AbortOrder(1, None))
    with streams.connected("host") as orders:
        assert next(orders) == Heartbeat()
        streams.stop_all()
        assert list(orders) == [StopHost()]
