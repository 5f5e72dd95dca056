"""The steps of going back to a checkpoint, in order; the caller does the I/O.

The order is what makes it safe, so it is written down once: the supervisor takes these steps with Spark and the store,
also in simulated worlds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from ..restore.restore_point import RestorePoint

R = TypeVar("R")


class Steps(Protocol[R]):
    """One attempt to take a pipeline back. ``R`` is what a query's next run can resume from."""

    def check_not_fenced(self) -> None:
        """Raise ``FencedError`` if another coordinator has taken the pipeline over."""
        ...

    def stop_runs(self) -> None:
        """Stop all runs of queries."""
        ...

    def suspend_checkpoints(self) -> None:
        """Abort the checkpoints in progress, and start none."""
        ...

    def await_manifests(self) -> None:
        """Wait until each manifest in progress is written or has failed; raise if that cannot be told."""
        ...

    def choose_restore_point(self) -> RestorePoint | None:
        """Return the checkpoint that the state grew from; None: it grew from nothing."""
        ...

    def find_resumable(self, point: RestorePoint | None) -> Mapping[str, R]:
        """Return the run that each query can resume, by query: for all queries or for none."""
        ...

    def forget_resumable(self) -> None:
        """Make sure that no later life resumes these runs, or what an earlier life has left."""
        ...

    def queries(self) -> Iterable[str]:
        """Return the names of the queries."""
        ...

    def restore(self, query: str, point: RestorePoint | None, resumed: R | None) -> None:
        """Prepare a query's next run: its directory, its sink, and its entry in the checkpoint protocol."""
        ...

    def release_runs(self) -> None:
        """Tell the state hosts that the stopped runs are over."""
        ...

    def resume_checkpoints(self, point: RestorePoint | None) -> None:
        """Take checkpoints again."""
        ...

    def start_runs(self) -> None:
        """Start the new runs."""
        ...

    def clean_up(self) -> None:
        """Delete what the stopped runs have left, except what the new ones resume."""
        ...


def go_back(steps: Steps[R], *, resume: bool) -> None:
    """Take a pipeline back to the checkpoint that its state grew from.

    Args:
        steps: what carries them out. An exception ends the attempt; the next one begins from the first step.
        resume: whether queries may resume where they stood, if all of them can.
    """
    # If there is a successor, the sinks and the directories belong to it by now.
    steps.check_not_fenced()
    # Nothing may write into a sink, or commit, while it is put back.
    steps.stop_runs()
    # A checkpoint that holds part of the abandoned state must not complete later.
    steps.suspend_checkpoints()
    # One whose manifest is being written may still complete, and is then the one to go back to.
    steps.await_manifests()
    point = steps.choose_restore_point()
    resumable = steps.find_resumable(point) if resume else {}
    if not resumable:
        # Before a sink is put back: after that, nobody may resume from a later batch.
        steps.forget_resumable()
    for query in steps.queries():
        steps.restore(query, point, resumable.get(query))
    steps.release_runs()
    # A checkpoint needs all queries, so all must be restored first.
    steps.resume_checkpoints(point)
    steps.start_runs()
    steps.clean_up()
