"""State hosts that join, leave and go silent, and what they are told.

Here a notice is an order in a mailbox. A notice cannot be delivered if its host is gone.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chandy.coordinator.execution import connected_hosts
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.reasons import Reason
from chandy.state.errors import HostDismissedError
from chandy.state.rpc import messages
from chandy.state.rpc.messages import Ack, AskBatch, BatchTimes, ClaimShards, DiskSpace, HostHello, HostPulse
from chandy.state.rpc.orders import AbortOrder, StopHost
from chandy.state.shards import ShardId

from ...waiting import DEADLINE, eventually
from ..life_events import going_back
from .one_life import FakeHost, OneLife


def test_an_order_to_a_host_that_has_only_just_joined_reaches_it(
    setup: OneLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = setup.executor.protocol.handle

    def order_at_once(event: events.Event[Any]) -> Any:
        answer = handle(event)
        if isinstance(event, events.HostJoined):
            setup.executor.hosts.send(event.hello.host, AbortOrder(7, None))
        return answer

    monkeypatch.setattr(setup.executor.protocol, "handle", order_at_once)
    host = FakeHost(setup.executor, "new", "new")
    eventually(lambda: host.heard == [AbortOrder(7, None)])


def test_a_host_that_is_gone_when_its_checkpoint_completes_does_not_undo_it(setup: OneLife) -> None:
    future = setup.request_held()
    setup.host.leave.set()
    setup.host.thread.join(DEADLINE)
    eventually(lambda: setup.lost == ["state host host on machine is gone"])
    setup.store.open.set()
    assert future.result(DEADLINE).id == 1
    latest = setup.catalog.latest()
    assert latest is not None
    assert latest.id == 1


def test_every_message_of_a_host_is_handled(setup: OneLife) -> None:
    defined = {
        one
        for one in vars(messages).values()
        if isinstance(one, type) and issubclass(one, messages.Message) and one is not messages.Message
    }
    assert setup.executor.hosts.handlers.keys() == defined


def test_a_host_that_opens_its_stream_again_is_not_lost_when_the_broken_one_ends(setup: OneLife) -> None:
    again = FakeHost(setup.executor)
    setup.host.leave.set()
    setup.host.thread.join(DEADLINE)
    assert setup.executor.protocol.read(lambda p: list(p.members.hosts)) == ["host"]
    setup.host = again
    assert setup.completed().id == 1
    assert not any(isinstance(logged.event, events.HostLeft) for logged in setup.executor.protocol.events)
    assert setup.lost == []


def test_a_new_host_in_the_place_of_one_that_had_state_sends_the_pipeline_back(setup: OneLife) -> None:
    FakeHost(setup.executor, "another")
    eventually(lambda: len(setup.lost) == 1)


# --- hosts that go silent -----------------------------------------------------------------------------------


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hosts whose processes were killed."""
    hosts: list[str] = []
    monkeypatch.setattr(connected_hosts, "end_host", lambda hello: hosts.append(hello.host) or True)
    return hosts


def let_time_pass(setup: OneLife) -> None:
    setup.now += 0.5
    setup.executor.protocol.handle(events.Tick())


def test_a_host_that_says_nothing_is_taken_for_lost_and_killed_and_its_checkpoint_ends(
    setup: OneLife, killed: list[str]
) -> None:
    future = setup.request()
    setup.host.ordered(1)

    def is_killed() -> bool:
        let_time_pass(setup)
        return killed == ["host"]

    eventually(is_killed)
    eventually(lambda: setup.lost == ["state host host on machine is gone"])
    assert setup.now >= 1060
    # It hears that it is to end, should it come back.
    eventually(lambda: setup.host.heard_of(StopHost) == [StopHost()])
    setup.executor.protocol.handle(going_back("a host is gone"))
    assert setup.error(future).reason is Reason.JOB_FAILOVER


def test_nothing_counts_that_a_host_does_which_was_taken_for_lost(setup: OneLife, killed: list[str]) -> None:
    def is_killed() -> bool:
        let_time_pass(setup)
        return bool(killed)

    eventually(is_killed)
    for call in (
        lambda: setup.executor.hosts.ask(AskBatch("host", "id", 5)),
        lambda: setup.executor.hosts.claim(ClaimShards("host", "id", "op", (0,))),
        lambda: setup.executor.hosts.ack(Ack("host", 1, "id", ())),
    ):
        with pytest.raises(HostDismissedError, match="host_timeout"):
            call()
    setup.executor.hosts.pulse(HostPulse("host", None))
    again = setup.executor.hosts.orders(HostHello("host", "address", "machine", "executor", 1))
    assert list(again) == [StopHost()]
    assert setup.executor.protocol.read(lambda state: list(state.members.hosts)) == []


def test_a_host_that_says_that_it_lives_stays(setup: OneLife, killed: list[str]) -> None:
    while setup.now < 1200:
        setup.executor.hosts.pulse(HostPulse("host", None))
        let_time_pass(setup)
    assert setup.executor.protocol.read(lambda state: list(state.members.hosts)) == ["host"]
    assert killed == []


# --- times of batches ---------------------------------------------------------------------------------------


def test_the_answer_to_begin_batch_says_when_the_batch_is(setup: OneLife) -> None:
    answer = setup.executor.hosts.ask(AskBatch("host", "id", 5))
    assert answer.times == BatchTimes(5000, 50, 40)
    assert setup.executor.hosts.ask(AskBatch("host", "id", 5)) == answer


def test_the_times_of_a_batch_are_not_read_under_the_lock(setup: OneLife) -> None:
    seen: list[int] = []
    # It would wait for ever.
    setup.queries.on_times = lambda: seen.append(setup.executor.protocol.read(lambda p: p.generation))
    setup.executor.hosts.ask(AskBatch("host", "id", 5))
    assert seen == [setup.generation]


def test_a_disk_that_fills_up_is_warned_of_as_long_as_its_host_is_there(
    setup: OneLife, caplog: pytest.LogCaptureFixture
) -> None:
    hosts = setup.executor.hosts
    for number in range(15):
        setup.now += 45
        hosts.pulse(HostPulse("host", DiskSpace(1_000 - 10 * number, 1_000)))
    (warned,) = [one.getMessage() for one in caplog.records if "fills up" in one.getMessage()]
    assert "machine=machine host=host" in warned
    assert hosts.disks.by_machine() == {"machine": DiskSpace(860, 1_000)}
    hosts.pulse(HostPulse("nobody", DiskSpace(0, 1_000)))
    assert set(hosts.disks.by_machine()) == {"machine"}
    hosts.pulse(HostPulse("host", None))
    assert hosts.disks.by_machine() == {"machine": DiskSpace(860, 1_000)}
    setup.host.leave.set()
    eventually(lambda: hosts.disks.by_machine() == {})


def test_a_host_whose_connection_does_not_end_is_lost_too(setup: OneLife, killed: list[str]) -> None:
    hello, stands_still = HostHello("frozen", "address", "elsewhere", "executor 2", 2), threading.Event()

    def read() -> None:
        for _ in setup.executor.hosts.orders(hello):
            stands_still.wait(DEADLINE)

    def is_killed() -> bool:
        let_time_pass(setup)
        setup.executor.hosts.pulse(HostPulse("host", None))
        return killed == ["frozen"]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: "frozen" in setup.executor.protocol.read(lambda state: state.members.hosts))
        eventually(is_killed)
        eventually(lambda: "frozen" not in setup.executor.protocol.read(lambda state: state.members.hosts))
    finally:
        stands_still.set()
        reader.join()


def test_the_pipeline_hears_of_a_shard_that_cannot_be_opened(setup: OneLife) -> None:
    failed = messages.ShardNotOpened("host", "id", ShardId("op", 0), "boom")
    setup.executor.hosts.handlers[messages.ShardNotOpened](failed)
    assert setup.reports.not_opened == [("id", "boom", failed.code)]
