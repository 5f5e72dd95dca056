"""A record of events, and the replay of one.

The state machine is deterministic: the events of a run, replayed on a machine as the run began with, give the same
outcomes and the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from ...storage.errors import ChandyError
from .decisions import BatchOver, RescaleRequested
from .events import Acked, Event, Finalized, NotFinalized, ShardsCopied
from .state_machine import Outcome, PipelineStateMachine
from .user_requests import UserRequest

EVENTS = 1_000
"""How many events are kept."""
SHARDS = 20_000
"""How many shards the kept events name in all: with their files, those are most of the memory of the log."""


@attrs.frozen
class LoggedEvent:
    """An event, its id and its time."""

    id: int
    """How many events the state machine was given before. The log has it as ``event_id`` with what follows from it."""
    at: float
    """Seconds since 1970."""
    event: Event[Any]


@attrs.define
class EventLog:
    """The last events, oldest first. It drops the oldest ones when there are too many or they are too large."""

    limit: int = EVENTS
    shard_limit: int = SHARDS
    _events: deque[LoggedEvent] = attrs.field(factory=deque, init=False)
    _shards: int = attrs.field(default=0, init=False)
    _count: int = attrs.field(default=0, init=False)

    def add(self, event: Event[Any], at: float) -> LoggedEvent:
        """Append an event, and return it with its id."""
        added = LoggedEvent(self._count, at, event)
        self._count += 1
        self._events.append(added)
        self._shards += _shards_of(event)
        while len(self._events) > self.limit or (self._shards > self.shard_limit and len(self._events) > 1):
            self._shards -= _shards_of(self._events.popleft().event)
        return added

    def __iter__(self) -> Iterator[LoggedEvent]:
        return iter(tuple(self._events))


def replay(state: PipelineStateMachine, events: Iterable[LoggedEvent]) -> list[Outcome[Any] | None]:
    """Let a state machine handle events again; return the outcome of each, None if the event is refused.

    Args:
        state: the state machine as it was before the first of the events; it is changed.
        events: what happened.
    """
    outcomes: list[Outcome[Any] | None] = []
    requests: dict[int, UserRequest] = {}
    for logged in events:
        try:
            outcomes.append(state.handle(as_asked(logged.event, requests), logged.at))
        except ChandyError:
            outcomes.append(None)
    return outcomes


def as_asked(event: Event[Any], requests: dict[int, UserRequest]) -> Event[Any]:
    """Return an event with its user's request as it was at first: a request changes in the course of its life.

    Args:
        event: the event.
        requests: the new requests by the ids of the old ones; it is changed.
    """
    if not isinstance(event, RescaleRequested | BatchOver):
        return event
    asked = event.request
    return attrs.evolve(
        event, request=requests.setdefault(id(asked), UserRequest(asked.what, asked.deadline))
    )


def _shards_of(event: Event[Any]) -> int:
    match event:
        case Acked(ack):
            return len(ack.snapshots)
        case ShardsCopied():
            return len(event.handles)
        case Finalized(manifest) | NotFinalized(manifest):
            return manifest.shard_count
        case _:
            return 0
