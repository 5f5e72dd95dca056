"""The state machine of checkpoints as tests run it."""

from __future__ import annotations

from chandy.coordinator.protocol.events import Answer, Event
from chandy.coordinator.protocol.invariants import broken_invariants
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine, Outcome


class StrictStateMachine(CheckpointStateMachine):
    """A state machine with which a test ends as soon as an invariant does not hold."""

    def handle(self, event: Event[Answer], now: float) -> Outcome[Answer]:
        outcome = super().handle(event, now)
        assert broken_invariants(self) == [], f"after {event}"
        return outcome
