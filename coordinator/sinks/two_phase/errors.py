"""The errors of transactional sinks."""

from __future__ import annotations

import attrs

from ....storage.errors import ChandyError, RefusedError
from ...errors import SinkTakenError
from ...permit import Permit


class OutputError(RefusedError):
    """A target refuses what is to be published: a row, a schema, a permission. Trying again does not help."""


@attrs.define(eq=False)
class OutputTakenError(SinkTakenError):
    """A target has the output of another pipeline."""

    wanted: Permit = attrs.field(kw_only=True)
    """What a user may permit: to take the output over from that very owner."""


class OutputLostError(RefusedError):
    """A target no longer has what was published: it was deleted, or restored from a backup."""


class OutputAheadError(RefusedError):
    """A target has published what comes after the checkpoint to restore."""


@attrs.define(eq=False)
class BatchInterruptedError(ChandyError):
    """A batch ended because its query was stopped. Nothing of it counts."""

    query: str
    batch: int

    def __str__(self) -> str:
        return f"batch {self.batch} of query {self.query!r} was interrupted: the query is being stopped"


@attrs.define(eq=False)
class TargetUnavailableError(ChandyError):
    """A target cannot be reached, or has not said what it did. It is asked again."""

    target: str
    """What it is, such as ``PostgreSQL at db:5432``."""
    reason: str
    is_understood: bool = False
    """Whether it is known to pass, as a connection that was refused. What is not may be a refusal: the target is asked
    again for five minutes."""

    def __str__(self) -> str:
        return f"{self.target} is not available: {self.reason}"


@attrs.define(eq=False)
class TargetFullError(TargetUnavailableError):
    """A target has no room for what is to be published. It is asked again, because somebody may make some."""

    is_understood: bool = True

    def __str__(self) -> str:
        return f"{self.target} is full: {self.reason}; make room there: what is complete is published then"


@attrs.define(eq=False)
class RewindError(ChandyError):
    """A target cannot take back what it has published."""

    published: int | None
    epoch: int | None

    def __str__(self) -> str:
        return f"what was published up to epoch {self.published} cannot be taken back to {self.epoch}"
