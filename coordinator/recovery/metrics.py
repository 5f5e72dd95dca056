"""Metrics of recoveries: how long each took, and for what."""

from __future__ import annotations

from typing import Final

import attrs

from ...state.rpc.messages import ShardsRestored
from ...storage.errors import ChandyError
from ...storage.ids import CheckpointId
from ...storage.times import rounded, shown
from ..errors import RescaledError

START: Final = "start"
"""The cause of a query's first start in a coordinator's life."""
RESCALE: Final = "rescale"
"""The kind of a restart that nothing but another number of tasks was the cause of."""


def _first_line(text: str) -> str:
    return repr(text.partition("\n")[0])


def _seconds(value: float | None) -> str:
    return "None" if value is None else rounded(value)


@attrs.define
class RecoveryMetrics:
    """One recovery: all queries were started from a checkpoint, or one was restarted in place, also to rescale it.

    The parts are durations in seconds.
    """

    cause: str = attrs.field(repr=_first_line)
    """Why the queries were started: the failure, what was rescaled, or "start"."""
    checkpoint: CheckpointId | None
    """The checkpoint that the state was restored from; None if it was not restored, or began empty."""
    in_place: bool
    """Whether the queries went on after their newest committed batch, and not from the checkpoint."""
    begun_at: float = attrs.field(repr=shown)
    """Time at which the recovery began, in seconds since 1970. ``waiting`` is before it, the other parts after."""
    waiting: float = attrs.field(default=0.0, repr=_seconds)
    """From the detection of the failure to ``begun_at``: the delay of the restart strategy, and failed attempts.
    0 for a start."""
    stopping: float = attrs.field(default=0.0, repr=_seconds)
    """To stop the queries that were still running."""
    restoring: float = attrs.field(default=0.0, repr=_seconds)
    """To restore the queries' progress and create their working directories."""
    starting: float = attrs.field(default=0.0, repr=_seconds)
    """For Spark to start the queries."""
    first_batch: float | None = attrs.field(default=None, repr=_seconds)
    """From there to the first commit: planning by Spark, restoring of shards, the batch itself; None: not yet."""
    ahead: float = attrs.field(default=0.0, repr=_seconds)
    """For shards that were restored before a task needed them. It overlaps with other parts and is not one of them."""
    files: float = attrs.field(default=0.0, repr=_seconds)
    """Part of ``first_batch``: to find or download the state's files and verify them. Shards are restored in parallel:
    it is that of the task that waited longest, and so is ``opening``."""
    opening: float = attrs.field(default=0.0, repr=_seconds)
    """Part of ``first_batch``: to open RocksDB."""
    found_bytes: int = 0
    """Bytes of the state's files that the machines already had."""
    downloaded_bytes: int = 0
    """Bytes of the state's files that came from the store."""
    is_rescale: bool = False
    """Whether nothing had failed: an operator was rescaled."""

    @classmethod
    def begun(
        cls, cause: str | ChandyError, noticed_at: float, now: float, *, in_place: bool
    ) -> RecoveryMetrics:
        """Return those of a recovery that begins now.

        Args:
            cause: the failure, or what was asked for.
            noticed_at, now: when it was detected and what time it is, in seconds since 1970.
            in_place: whether the queries go on where they are.
        """
        is_rescale = in_place and isinstance(cause, RescaledError)
        return cls(str(cause), None, in_place, now, waiting=now - noticed_at, is_rescale=is_rescale)

    @property
    def kind(self) -> str:
        """How the queries were started: for the first time, in place, from a checkpoint, or to rescale an operator."""
        if self.cause == START:
            return START
        if self.is_rescale:
            return RESCALE
        return "in place" if self.in_place else "from checkpoint"

    @property
    def noticed_at(self) -> float:
        """When the failure was detected, in seconds since 1970."""
        return self.begun_at - self.waiting

    def restored(self, shards: ShardsRestored) -> None:
        """Record that shards were restored."""
        if shards.files + shards.opening > self.files + self.opening:
            self.files, self.opening = shards.files, shards.opening
        self.ahead = max(self.ahead, shards.ahead)
        self.found_bytes += shards.found_bytes
        self.downloaded_bytes += shards.downloaded_bytes

    @property
    def total(self) -> float | None:
        """Seconds from the start, or from the detection of the failure, to the first commit; None: not yet."""
        parts = self.waiting + self.stopping + self.restoring + self.starting
        return None if self.first_batch is None else parts + self.first_batch
