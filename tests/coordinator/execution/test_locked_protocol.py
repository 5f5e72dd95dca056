"""The events of a run, which lead to the same state again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from chandy.coordinator.errors import StaleQueryError
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.event_log import replay
from chandy.coordinator.protocol.reasons import Reason
from chandy.state.rpc.messages import AskBatch, ClaimShards, Decline

from ...waiting import eventually
from .one_life import OneLife


def test_the_events_of_a_run_replayed_on_a_new_state_machine_lead_to_the_same_state(
    make: Callable[..., OneLife], tmp_path: Path
) -> None:
    setup = make(interval="10 s", retained=1)
    setup.executor.protocol.handle(events.ScheduleStarted(0.25))
    setup.completed()
    future = setup.request()
    setup.executor.hosts.decline(Decline("host", 2, setup.host.ordered(2).query_id, "no"))
    setup.error(future)
    with pytest.raises(StaleQueryError):
        setup.executor.hosts.ask(AskBatch("host", "nobody", 5))
    setup.completed()
    setup.close()
    happened = setup.executor.protocol.events
    assert [type(logged.event) for logged in happened][:3] == [
        events.QueryAdded,
        events.HostJoined,
        ClaimShards,
    ]
    assert events.BatchAsked(AskBatch("host", "nobody", 5)) in [logged.event for logged in happened]
    again = setup.machine()
    replay(again, happened)
    assert again == setup.executor.protocol.read(lambda state: state)
    assert again.life.why_over is Reason.COORDINATOR_SHUTDOWN
    assert again.checkpoints.history.counts.completed == 2


def test_the_log_has_the_id_of_the_event_with_what_follows_from_it(
    make: Callable[..., OneLife], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="chandy")
    setup = make()
    future = setup.request()
    setup.executor.hosts.decline(Decline("host", 1, setup.host.ordered(1).query_id, "no"))
    setup.error(future)
    (declined,) = [one for one in setup.executor.protocol.events if isinstance(one.event, Decline)]
    eventually(lambda: any("no checkpoint" in line for line in caplog.messages))
    found = [line for line in caplog.messages if f"event_id={declined.id}" in line.split()]
    assert any("kind=Decline" in line and "Reject=1" in line for line in found), found
    assert any("no checkpoint" in line for line in found), found
    ids = [one.id for one in setup.executor.protocol.events]
    assert ids == list(range(len(ids)))


def test_whatever_leads_to_instructions_wakes_those_who_wait_for_a_deadline(
    make: Callable[..., OneLife],
) -> None:
    setup = make(interval="10 s")
    setup.completed()
    setup.close()
    machine = LockedProtocol(setup.machine(), lambda: 0.0)
    watcher, quiet = machine.watcher(), 0
    for logged in setup.executor.protocol.events:
        watcher.clear()
        with contextlib.suppress(StaleQueryError):
            machine.handle_often(logged.event)
        assert watcher.is_set() is not machine.instructions.empty()
        quiet += machine.instructions.empty()
        while not machine.instructions.empty():
            machine.instructions.get()
    assert quiet, "all events have led to something"
