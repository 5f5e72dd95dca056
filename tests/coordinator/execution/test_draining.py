"""A machine is emptied while batches go on: the real executor with its threads, hosts that answer at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.errors import DrainError
from chandy.coordinator.protocol.user_requests import UserRequest
from chandy.state.rpc.messages import AskBatch, CopyReport, CopyStep
from chandy.state.rpc.orders import OpenAhead, Order, SnapshotOrder, TakeOver

from ...waiting import DEADLINE, eventually
from .one_life import FakeHost, OneLife


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[OneLife]:
    made = OneLife(tmp_path)

    def acknowledge(order: Order) -> None:
        if isinstance(order, SnapshotOrder):
            made.executor.hosts.ack(made.host.ack_of(order))

    made.host.on_order = acknowledge
    yield made
    made.executor.close()


def target(setup: OneLife, takes_over: bool = True) -> FakeHost:
    """A host on another machine, to which shards move."""
    host = FakeHost(setup.executor, "target", "other", "elsewhere")

    def answer(order: Order) -> None:
        match order:
            case OpenAhead(move):
                setup.executor.hosts.moved(CopyReport("target", move, CopyStep.OPENED))
            case TakeOver(move, _, term) if takes_over:
                setup.executor.hosts.moved(CopyReport("target", move, CopyStep.TAKEN, term))

    host.on_order = answer
    return host


def ask_to_drain(setup: OneLife, seconds: float = 60.0) -> UserRequest:
    return setup.executor.protocol.handle(events.DrainRequested("machine", seconds))


def test_a_drained_machine_has_no_shards(setup: OneLife) -> None:
    target(setup)
    setup.executor.protocol.await_outcome(ask_to_drain(setup))
    assert setup.executor.protocol.read(lambda state: state.placement.shards_on("machine")) == []
    assert len(setup.executor.protocol.read(lambda state: state.placement.shards_on("elsewhere"))) == 2


def test_whoever_waits_is_told_when_the_time_is_up_and_when_the_pipeline_ends(setup: OneLife) -> None:
    target(setup, takes_over=False)
    late, cut_short = ask_to_drain(setup, 60.0), ask_to_drain(setup, 600.0)
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(setup.executor.protocol.await_outcome, one) for one in (late, cut_short)]
        setup.now += 60.0
        setup.executor.protocol.handle(events.Tick())
        with pytest.raises(DrainError, match=r"'machine' is not drained yet.* 2: shard 0 of 'op'"):
            ends[0].result(DEADLINE)
        assert not cut_short.is_over
        setup.executor.close()
        with pytest.raises(DrainError, match="COORDINATOR_SHUTDOWN"):
            ends[1].result(DEADLINE)


def test_a_batch_that_waits_for_a_move_goes_on_when_the_move_ends(setup: OneLife) -> None:
    host = target(setup, takes_over=False)
    ask_to_drain(setup)
    eventually(lambda: len(host.heard_of(TakeOver)) == 1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(setup.executor.hosts.ask, AskBatch("host", "id", 5))
        for number, step in enumerate((CopyStep.FAILED, CopyStep.TAKEN), 1):
            eventually(lambda number=number: len(host.heard_of(TakeOver)) == number)
            assert not asked.done()
            order = host.heard_of(TakeOver)[-1]
            assert isinstance(order, TakeOver)
            setup.executor.hosts.moved(CopyReport("target", order.copy_id, step, order.term))
        assert asked.result(DEADLINE).orders == ()
    assert len(setup.executor.protocol.read(lambda state: state.placement.shards_on("machine"))) == 1
