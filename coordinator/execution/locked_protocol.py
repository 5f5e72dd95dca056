"""The state machine under its lock: events go in one at a time, and their instructions come out in one order.

Nothing that may wait happens under the lock: no I/O, no user's callback, no call to another process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

import attrs

from ...storage import runtime
from ...storage.logs import logger
from ..protocol.event_log import EventLog, LoggedEvent
from ..protocol.events import Answer, Event
from ..protocol.instructions import Instruction
from ..protocol.state_machine import PipelineStateMachine
from ..protocol.user_requests import UserRequest
from .questions import Questions

log = logger(__name__)

T = TypeVar("T")


@attrs.frozen
class CausedInstruction:
    """An instruction to carry out, and the id of the event that it follows from."""

    instruction: Instruction
    cause: int


class LockedProtocol(Questions):
    """The state machine of one pipeline, for all threads.

    Args:
        state: from now on only this object touches it.
        clock: seconds since 1970, never going back.
    """

    def __init__(self, state: PipelineStateMachine, clock: Callable[[], float]) -> None:
        self.pipeline = state.pipeline
        self.generation = state.generation
        self.root = state.root
        self.versions = state.versions
        self.instructions: runtime.Queue[CausedInstruction | runtime.Flag | None] = runtime.simple_queue()
        """What is to be carried out. A ``threading.Event`` among them is set once all manifests before it are written;
        None is the end."""
        self._state = state
        self._clock = clock
        self._log = EventLog()
        self.changed = runtime.condition()
        """The lock. It is notified after every event."""
        self._watchers: list[runtime.Flag] = []

    def handle(self, event: Event[Answer], before: Callable[[Answer], None] | None = None) -> Answer:
        """Pass an event to the state machine; return its answer. The instructions are carried out later.

        Args:
            event: what has happened.
            before: called with the answer before any instruction can be carried out. It is under the lock.

        Raises:
            ChandyError: the state machine refuses the event.
        """
        answer = self._change(event, before)
        self.wake_watchers()
        return answer

    def handle_often(self, event: Event[Answer]) -> Answer:
        """As ``handle``, for what comes with every batch of every host: watchers are woken only if something follows.

        A deadline comes with an instruction: to do what has the deadline.
        """
        return self._change(event, None)

    def read(self, value: Callable[[PipelineStateMachine], T]) -> T:
        """Return a value of the state machine. ``value`` must not change anything."""
        with self.changed:
            return value(self._state)

    def wait_until(self, holds: Callable[[PipelineStateMachine], bool], seconds: float | None) -> bool:
        """Wait until something holds of the state machine, None: however long; return whether it does now."""
        with self.changed:
            return self.changed.wait_for(lambda: holds(self._state), seconds)

    def await_outcome(self, request: UserRequest) -> None:
        """Wait until a request has ended; raise its error if it is not done."""
        with self.changed:
            self.changed.wait_for(lambda: request.is_over)
        request.check()

    @property
    def events(self) -> tuple[LoggedEvent, ...]:
        """The last events, oldest first, to find out what led to a state; see ``event_log.replay``."""
        with self.changed:
            return tuple(self._log)

    def watcher(self) -> runtime.Flag:
        """Return what is set when there may be an earlier deadline, or a commit to watch for."""
        wake = runtime.flag()
        self._watchers.append(wake)
        return wake

    def wake_watchers(self) -> None:
        """Have those who watch look again."""
        for wake in self._watchers:
            wake.set()

    def _change(self, event: Event[Answer], before: Callable[[Answer], None] | None) -> Answer:
        with self.changed:
            now = self._clock()
            logged = self._log.add(event, now)
            outcome = self._state.handle(event, now)
            if before is not None:
                before(outcome.answer)
            for instruction in outcome.instructions:
                self.instructions.put(CausedInstruction(instruction, logged.id))
            self.changed.notify_all()
        if outcome.instructions:
            self.wake_watchers()
            kinds = Counter(type(instruction).__name__ for instruction in outcome.instructions)
            log.debug("the protocol goes on", event_id=logged.id, kind=type(event).__name__, **kinds)
        return outcome.answer
