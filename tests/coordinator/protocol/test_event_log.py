"""The record of events. Worlds check that a replay leads to the same state."""

from __future__ import annotations

from chandy.coordinator.protocol import events
from chandy.coordinator.protocol.event_log import EventLog, LoggedEvent
from chandy.state.rpc.messages import Ack, ShardSnapshot
from chandy.state.shards import ShardId
from chandy.storage.checkpoints.manifest import Handle


def ack(shards: int) -> events.Acked:
    snapshots = (
        ShardSnapshot(ShardId("op", n), Handle(), 1, 0.0, 0.0, 0.0, entries=1) for n in range(shards)
    )
    return events.Acked(Ack("host", 1, "id", tuple(snapshots)))


def test_the_last_events_are_kept_with_their_ids_and_times() -> None:
    log = EventLog(limit=2)
    for number in range(4):
        log.add(events.PlanningDone(number), 10.0 + number)
    assert list(log) == [
        LoggedEvent(2, 12.0, events.PlanningDone(2)),
        LoggedEvent(3, 13.0, events.PlanningDone(3)),
    ]


def test_large_events_push_out_earlier_ones_but_the_last_one_is_always_kept() -> None:
    log = EventLog(shard_limit=10)
    for event in (events.Tick(), ack(6), events.Tick(), ack(4)):
        log.add(event, 1.0)
    assert len(list(log)) == 4
    log.add(ack(1), 2.0)
    assert [logged.event for logged in log] == [events.Tick(), ack(4), ack(1)]
    log.add(ack(11), 3.0)
    assert [logged.event for logged in log] == [ack(11)]
    log.add(events.Tick(), 4.0)
    assert [logged.event for logged in log] == [events.Tick()]
