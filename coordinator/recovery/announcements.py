"""Makes the events that users are told of out of what the supervisor meets."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from ...storage.checkpoints.manifest import Manifest
from ...storage.errors import ChandyError
from ..checkpoint import Checkpoint
from ..protocol.decisions import RestartInPlace, RollBack
from ..protocol.errors import CheckpointError
from ..protocol.statistics import CheckpointStatistics
from ..verdict import Finding
from .metrics import START, RecoveryMetrics
from .pipeline_events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointMeasured,
    HostReplaced,
    PipelineEnded,
    PipelineEvent,
    Recovered,
    Recovering,
    ShadowDiffers,
    StartRefused,
)

Tell = Callable[[PipelineEvent], object]
"""Takes an event. It waits for nothing, and raises nothing."""


def tell_nobody(event: PipelineEvent) -> None:
    """Take an event of which nobody wants to know."""


def both(first: Tell, second: Tell) -> Tell:
    """Return what tells two listeners."""

    def tell(event: PipelineEvent) -> None:
        first(event)
        second(event)

    return tell


@attrs.define
class Announcements:
    """What a pipeline tells of itself."""

    _tell: Tell
    _clock: Callable[[], float]
    """Seconds since 1970."""
    _end: PipelineEnded | None = attrs.field(default=None, init=False)
    """The end, once it has come."""
    is_held_back: bool = attrs.field(default=False, init=False)
    """Whether the end is not to be told, because the pipeline may go on under another supervisor."""

    def completed(self, manifest: Manifest, root: str) -> None:
        """Tell of a checkpoint that is complete at a URI."""
        self._tell(CheckpointCompleted(at=self._clock(), checkpoint=Checkpoint.of(manifest, root)))

    def failed(self, error: CheckpointError) -> None:
        """Tell of a checkpoint that has failed, or was refused."""
        self._tell(CheckpointFailed(at=self._clock(), id=error.id, reason=error.reason, detail=error.detail))

    def measured(self, statistics: CheckpointStatistics) -> None:
        """Tell what a checkpoint that has ended took."""
        self._tell(CheckpointMeasured(at=self._clock(), statistics=statistics))

    def refused(self, error: ChandyError) -> None:
        """Tell that something of the program was not started."""
        self._tell(StartRefused(at=self._clock(), why=str(error)))

    def recovering(self, decision: RestartInPlace | RollBack) -> None:
        """Tell of an attempt to start queries again."""
        in_place = isinstance(decision, RestartInPlace)
        self._tell(Recovering(at=self._clock(), cause=str(decision.cause), in_place=in_place))

    def recovered(self, query: str, metrics: RecoveryMetrics) -> None:
        """Tell of the first commit of a query, unless it was started for the first time."""
        if metrics.kind != START:
            # A copy: the others of the same recovery add to it.
            self._tell(Recovered(at=self._clock(), query=query, recovery=attrs.evolve(metrics)))

    def host_replaced(self, why: str, promoted: int, reopened: int) -> None:
        """Tell that others are about to take the shards of a lost host over; see ``News``."""
        self._tell(HostReplaced(at=self._clock(), why=why, promoted=promoted, reopened=reopened))

    def ended(self, error: Exception | None) -> None:
        """Tell of the end of the pipeline, once."""
        if self._end is None:
            self._end = PipelineEnded(at=self._clock(), error=error)
            if not self.is_held_back:
                self._tell(self._end)

    def hold_back(self) -> None:
        """Do not tell of an end from now on."""
        self.is_held_back = True

    def tell_held_back(self, error: Exception | None) -> None:
        """Tell of the end if it has come, or of an error that is it."""
        self.is_held_back = False
        if self._end is not None:
            self._tell(self._end if error is None else attrs.evolve(self._end, error=error))

    def shadow_differs(self, shadow: str, finding: Finding) -> None:
        """Tell what the shadow that this driver is has found."""
        self._tell(ShadowDiffers(at=self._clock(), shadow=shadow, finding=finding))
