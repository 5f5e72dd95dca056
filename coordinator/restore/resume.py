"""Whether queries can resume after the last batch of their last runs: values and the rule, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ...state.shards import NotResumable, ResumePoint
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
    obstacle: NotResumable | None = None
    """What keeps its sink or one of its shards from going on behind the newest committed batch; None: nothing does."""
    resumed_at: int | None = None
    """The batch after which the run itself had resumed; None: it came from the checkpoint."""


def resume_point(run: Candidate) -> ResumePoint | NotResumable:
    """Return where a query can resume a run, or why it has to go back."""
    if run.committed < run.restored:
        return NotResumable(
            f"has committed batch {run.committed}, and the checkpoint has batch {run.restored}"
        )
    if run.obstacle is not None:
        return run.obstacle
    if run.resumed_at == run.committed:
        # It would fail again.
        return NotResumable(
            f"had resumed after batch {run.committed} before, and failed before the next batch"
        )
    return ResumePoint(run.query_id, run.restored, run.committed)


def resume_points(runs: Mapping[str, Candidate]) -> dict[str, ResumePoint | NotResumable]:
    """Return where each query can resume, by query: all of them or none, because they must be at one cut."""
    found = {query: resume_point(run) for query, run in runs.items()}
    refused = next((query for query, one in found.items() if isinstance(one, NotResumable)), None)
    if refused is None:
        return found
    others = NotResumable(f"stood at one cut with query {refused!r}")
    return {query: one if isinstance(one, NotResumable) else others for query, one in found.items()}
