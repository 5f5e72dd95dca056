"""Whether queries can resume after the last batch of their last runs: values and the rule, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ...state.shards import ResumePoint
from ...storage.ids import BatchId


@attrs.frozen
class ResumableRun:
    """A run that a query's next run resumes."""

    point: ResumePoint
    directory: Path
    """Its working checkpoint directory."""


@attrs.frozen
class Candidate:
    """What a machine still has of a run that has ended."""

    query_id: str
    """Spark's id of its query."""
    restored: BatchId
    """The query's last batch in the checkpoint that its state grew from; -1: there was none."""
    committed: BatchId
    """The newest batch in its commit log."""
    sink_is_ahead: bool
    """Whether its sink has taken a later batch, see ``Sink.is_ahead_of``."""
    has_changelogs: bool
    """Whether the changelogs of all its shards have every batch from the checkpoint to the newest committed one."""
    has_output: bool = True
    """Whether what it has staged since the checkpoint is there, see ``Sink.can_resume``."""
    resumed_at: int | None = None
    """The batch after which the run itself had resumed; None: it came from the checkpoint."""


def resume_point(run: Candidate) -> ResumePoint | None:
    """Return where a query can resume a run; None if it has to go back."""
    if run.committed < run.restored or run.sink_is_ahead:
        return None
    if not run.has_changelogs or not run.has_output:
        return None
    if run.resumed_at == run.committed:
        # It resumed here and failed before the next batch. It would fail again.
        return None
    return ResumePoint(run.query_id, run.restored, run.committed)


def resume_points(runs: Mapping[str, Candidate]) -> dict[str, ResumePoint]:
    """Return where each query can resume, by query: all of them or none, because they must be at one cut."""
    found = {query: point for query, run in runs.items() if (point := resume_point(run)) is not None}
    return found if len(found) == len(runs) else {}
