"""A machine is emptied while batches go on: the real executor with its threads, hosts that answer at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chandy.coordinator.hosts.draining import drain
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.errors import DrainError
from chandy.state.rpc.messages import AskBatch, CopyReport, CopyStep
from chandy.state.rpc.orders import OpenAhead, Order, SnapshotOrder, TakeOver

from ...waiting import DEADLINE, eventually
from ..execution.one_life import FakeHost, Setup


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)

    def acknowledge(order: Order) -> None:
        if isinstance(order, SnapshotOrder):
            made.executor.hosts.ack(made.host.ack_of(order))

    made.host.on_order = acknowledge
    yield made
    made.executor.close()


def target(setup: Setup, takes_over: bool = True) -> FakeHost:
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


def test_a_drained_machine_has_no_shards(setup: Setup) -> None:
    target(setup)
    drain(setup.executor, "machine", 60)
    assert setup.executor.protocol.read(lambda state: state.placement.shards_on("machine")) == []
    assert len(setup.executor.protocol.read(lambda state: state.placement.shards_on("elsewhere"))) == 2


def test_it_takes_no_longer_than_it_may_and_says_what_is_left(setup: Setup) -> None:
    target(setup, takes_over=False)
    with pytest.raises(DrainError, match=r"'machine' is not drained yet.* 2: shard 0 of 'op'"):
        drain(setup.executor, "machine", 0)


def test_a_batch_that_waits_for_a_move_goes_on_when_the_move_ends(setup: Setup) -> None:
    host = target(setup, takes_over=False)
    setup.executor.protocol.handle(on.DrainRequested("machine"))
    setup.request().result(DEADLINE)
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
