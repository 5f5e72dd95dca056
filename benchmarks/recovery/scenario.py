"""The terms of this benchmark: failures, contestants and recoveries."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol

import attrs


class Failure(enum.StrEnum):
    """A failure of a running stream."""

    EXCEPTION = "exception in the query"
    """The sink raises in one batch. The next attempt at that batch succeeds. No process dies."""
    HOST = "killed state host"
    """The process that holds the state gets SIGKILL."""
    DRIVER = "killed driver"
    """All processes get SIGKILL. The disk of the machine remains. A new process is started at once."""
    DRIVER_COLD = "killed driver, no local copy"
    """All processes get SIGKILL, and the local copy of the state is lost. The store is on this machine."""
    MACHINE = "lost machine"
    """All processes get SIGKILL, and only a store on another machine remains."""

    @property
    def kills_driver(self) -> bool:
        """Whether the failure kills all processes."""
        return self not in (Failure.EXCEPTION, Failure.HOST)


@attrs.frozen
class Course:
    """The stream of one turn: first every key once, then endless small batches."""

    keys: int
    value_bytes: int = 1000
    touched: int = 1000
    """Rows of each batch after all keys have arrived."""
    replayed: int = 5
    """Batches that commit after the last checkpoint and before the failure."""

    @property
    def state_bytes(self) -> int:
        """The size of the values of all keys."""
        return self.keys * self.value_bytes


@attrs.frozen
class Recovered:
    """One failure and its recovery."""

    failure: Failure
    seconds: float
    """From the failure until the first batch has committed that had not been committed before it."""
    parts: Mapping[str, float]
    """Seconds of each part, in the order of time. They add up to ``seconds``. The parts differ by contestant."""

    @property
    def first_commit(self) -> float:
        """Seconds until any batch has committed, which may be a repeated one."""
        return self.seconds - sum(self.parts.get(part, 0.0) for part in _AFTER_FIRST)


_AFTER_FIRST: Final = ("replay", "new batch")
"""The parts after the first commit."""


class Contestant(Protocol):
    """One system with one stream over one store. It takes one failure after the other."""

    @property
    def name(self) -> str:
        """The name in the report."""
        ...

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The failures that it supports."""
        ...

    def fill(self) -> None:
        """Start, take every key of the course once, and wait until a checkpoint with that state is complete."""
        ...

    def fail(self, failure: Failure) -> Recovered:
        """Let ``replayed`` batches commit after a checkpoint, cause the failure, and wait for the recovery."""
        ...

    def rest(self) -> None:
        """End all its processes, so that the next contestant has the machine for itself."""
        ...

    def wake(self) -> None:
        """Start again after ``rest``, and wait until a batch has committed."""
        ...

    def close(self) -> None:
        """Stop everything and delete all its files. It may be called twice."""
        ...
