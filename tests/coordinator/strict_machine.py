"""The state machine of checkpoints as tests run it."""

from __future__ import annotations

import math
from typing import Final

from chandy.coordinator.protocol.events import Acked, Answer, BatchAsked, Event, ShardsRead
from chandy.coordinator.protocol.invariants import broken_invariants
from chandy.coordinator.protocol.state_machine import Outcome, PipelineStateMachine
from chandy.state.rpc.messages import ShardNotOpened

OFTEN: Final = (Acked, BatchAsked, ShardNotOpened, ShardsRead)
"""What ``LockedProtocol.handle_often`` takes."""


class StrictStateMachine(PipelineStateMachine):
    """A state machine with which a test ends as soon as an invariant does not hold."""

    def handle(self, event: Event[Answer], now: float) -> Outcome[Answer]:
        before = self._deadline() if isinstance(event, OFTEN) else -math.inf
        outcome = super().handle(event, now)
        assert broken_invariants(self) == [], f"after {event}"
        # Nobody would look: it is an instruction that wakes those who wait for a deadline.
        assert outcome.instructions or self._deadline() >= before, f"after {event}"
        return outcome

    def _deadline(self) -> float:
        deadline = self.next_deadline()
        return math.inf if deadline is None else deadline
