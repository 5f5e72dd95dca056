"""What a pipeline tells of itself while it runs: ``CheckpointConfig(on_event=...)`` is called with these values."""

from __future__ import annotations

import attrs

from ...storage.errors import FencedError
from ...storage.times import shown
from ..checkpoint import Checkpoint
from ..protocol.reasons import Reason
from ..protocol.statistics import CheckpointStatistics
from ..verdict import Finding
from .metrics import RecoveryMetrics


@attrs.frozen(kw_only=True)
class PipelineEvent:
    """Something that has happened."""

    at: float = attrs.field(repr=shown)
    """When, in seconds since 1970."""


@attrs.frozen(kw_only=True)
class CheckpointCompleted(PipelineEvent):
    """A checkpoint or a savepoint is complete. Its output may still be about to be published."""

    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class CheckpointFailed(PipelineEvent):
    """A checkpoint has failed or was given up, or a request for one was refused."""

    id: int | None
    """None if it had not begun."""
    reason: Reason = attrs.field(repr=str)
    detail: str


@attrs.frozen(kw_only=True)
class CheckpointMeasured(PipelineEvent):
    """It is known what a checkpoint took that has completed or failed: by phase, and by shard."""

    statistics: CheckpointStatistics


@attrs.frozen(kw_only=True)
class StartRefused(PipelineEvent):
    """An operator, a query or a replica cannot be what the program says. The driver leads the pipeline all the same."""

    why: str


@attrs.frozen(kw_only=True)
class Recovering(PipelineEvent):
    """Queries are about to be started again, for the first time after a failure or once more, or to rescale one."""

    cause: str
    """The failure, or what is rescaled."""
    in_place: bool
    """Whether one query goes on where it was; otherwise all of them go back to a checkpoint, or resume behind it."""


@attrs.frozen(kw_only=True)
class Recovered(PipelineEvent):
    """A query that was started again has committed a batch."""

    query: str
    recovery: RecoveryMetrics
    """Why, from where, and how long its parts took."""


@attrs.frozen(kw_only=True)
class HostReplaced(PipelineEvent):
    """A state host is lost, others are about to take its shards over, and no query restarts.

    If they cannot, the pipeline goes back to a checkpoint, and ``Recovering`` follows.
    """

    why: str
    """What became of the host."""
    promoted: int
    """The number of shards whose standbys take their place."""
    reopened: int
    """The number of shards that another host on the machine opens again, from the changelogs of the lost one."""


@attrs.frozen(kw_only=True)
class ShadowDiffers(PipelineEvent):
    """This driver is the shadow of its pipeline, and has found something that differs."""

    shadow: str
    finding: Finding


@attrs.frozen(kw_only=True)
class PipelineEnded(PipelineEvent):
    """The pipeline has ended: nothing of it runs any more, and nothing is started again."""

    error: Exception | None
    """Why it has failed for good; None if it was stopped."""

    @property
    def is_fenced(self) -> bool:
        """Whether another driver has taken the pipeline over."""
        return isinstance(self.error, FencedError)
