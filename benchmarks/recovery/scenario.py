"""What fails, who takes part, and what a recovery is: the words of this benchmark."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol

import attrs


class Failure(enum.StrEnum):
    """What goes wrong while a stream runs."""

    EXCEPTION = "exception in the query"
    """The sink raises in one batch; the next attempt at that batch would go well. No process dies."""
    HOST = "killed state host"
    """The process that holds the state gets SIGKILL; of a peer, the process that does so there."""
    DRIVER = "killed driver"
    """All processes get SIGKILL; the machine's disk keeps what it had. A new process is started at once."""
    DRIVER_COLD = "killed driver, no local copy"
    """The same, and the local copy of the state is gone; the store is on this machine."""
    MACHINE = "lost machine"
    """All processes get SIGKILL, and nothing is left but what is in a store elsewhere."""

    @property
    def kills_driver(self) -> bool:
        """Whether no process lives on."""
        return self not in (Failure.EXCEPTION, Failure.HOST)


@attrs.frozen
class Course:
    """The stream of one turn: first every key once, then small batches without an end."""

    keys: int
    value_bytes: int = 1000
    touched: int = 1000
    """Rows of each batch after all keys are there."""
    replayed: int = 5
    """Batches that commit after the last checkpoint and before the failure."""

    @property
    def state_bytes(self) -> int:
        """What the values of all keys take."""
        return self.keys * self.value_bytes


@attrs.frozen
class Recovered:
    """One failure, and the way back."""

    failure: Failure
    seconds: float
    """From the failure until the first batch has committed that had not been committed before it."""
    parts: Mapping[str, float]
    """Seconds by part, in the order of time; together they are ``seconds``. Each contestant has parts of its own."""

    @property
    def first_commit(self) -> float:
        """Seconds until any batch has committed, one that is taken again for instance."""
        return self.seconds - sum(self.parts.get(part, 0.0) for part in _AFTER_FIRST)


_AFTER_FIRST: Final = ("replay", "new batch")
"""Parts that follow when the first batch has committed."""


class Contestant(Protocol):
    """One system with one stream over one store. Takes one failure after the other; closed at the end."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What it can be put through."""
        ...

    def fill(self) -> None:
        """Start, take every key of the course once, and return when that state is safe in a completed checkpoint."""
        ...

    def fail(self, failure: Failure) -> Recovered:
        """Let ``replayed`` batches commit after a checkpoint, make it fail, and wait until it has come back."""
        ...

    def rest(self) -> None:
        """End all its processes: whoever has the next turn has the machine for itself."""
        ...

    def wake(self) -> None:
        """Start again after a rest, and return when a batch has committed."""
        ...

    def close(self) -> None:
        """Stop everything and delete all its files; no harm is done by doing it twice."""
        ...
