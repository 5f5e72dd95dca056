"""A publisher that a test moves on step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from chandy.coordinator.sinks.two_phase import publisher
from chandy.coordinator.sinks.two_phase.publisher import Publisher


class Paused(BaseException):
    """A publisher waits until it tries again."""


@attrs.define
class Pauses:
    """Stands for the pause between two attempts: a publisher's thread stops there, a start goes on at once."""

    stops: bool = False
    closed: bool = False

    def wait(self, seconds: float) -> bool:
        if self.stops and not self.closed:
            raise Paused
        return self.closed

    def set(self) -> None:
        self.closed = True


@attrs.define
class Tasks:
    """What a publisher has to do. The first task stays until its thread asks for the next one."""

    waiting: deque[Any] = attrs.field(factory=deque)
    began: bool = False

    def put(self, task: object) -> None:
        self.waiting.append(task)

    def get(self) -> Any:
        if self.began:
            self.waiting.popleft()
        self.began = bool(self.waiting)
        return self.waiting[0] if self.waiting else None


class SteppedPublisher(Publisher):
    """The real publisher, whose thread runs when it is told to, up to where it waits."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.tasks, self.pauses = Tasks(), Pauses()
        self._tasks: Any = self.tasks
        self._closing: Any = self.pauses
        self.is_over = self.is_running = False

    def publish(self, epochs: Any, then: Callable[[], None]) -> None:
        self.tasks.put(publisher._Task(tuple(epochs), then))

    def step(self) -> None:
        if self.is_over or self.is_running:
            return
        self.is_running = self.pauses.stops = True
        try:
            self._run()
            self.is_over = bool(self.tasks.waiting)
        except Paused:
            # The task is not done: it is the next one again.
            self.tasks.began = False
        finally:
            self.is_running = self.pauses.stops = False

    def close(self, seconds: float) -> bool:
        self.step()
        return super().close(seconds)
