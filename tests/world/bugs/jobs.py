"""Bugs in the jobs of the driver."""

from __future__ import annotations

from typing import Final

from .bug import after, tests, text

JOBS: Final = (
    text(
        "a job of the driver stores the progress after the newest batch, not after the cut",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.store_progress",
        "self._progress.hold(order.query, order.cut)",
        "self._progress.hold(order.query, self._progress.begun(order.query) - 1)",
    ),
    text(
        "a commit is not confirmed",
        "coordinator.execution.commit:commit_steps",
        "yield from _until_known(lambda _: catalog.confirm(manifest), StoreFailedError, is_closed)",
        "pass",
        by=after(successor_starts_in_a_commit=8),
    ),
    text(
        "nobody looks for a successor before a savepoint's manifest counts",
        "coordinator.execution.commit:commit_steps",
        """        yield None
        catalog.check_not_fenced(manifest.generation)
    else:""",
        """        yield None
    else:""",
        by=tests("tests/coordinator/execution/test_checkpoint_jobs.py"),
    ),
    text(
        "a manifest of which nobody knows is taken for written",
        "coordinator.execution.commit:_until_known",
        "            error, unknown = failed, StoreFailedError\n",
        """            error, unknown = failed, StoreFailedError
            return True
""",
        by=tests("tests/coordinator/execution/test_commit.py"),
    ),
    text(
        "a manifest of which nobody knows is taken for not written",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.finalize",
        "is_known=not isinstance(error, OutcomeUnknownError)",
        "is_known=True",
        by=tests("tests/coordinator/execution/test_checkpoint_jobs.py"),
    ),
    text(
        "a failure of the second look at a manifest is taken for that of the first",
        "coordinator.execution.commit:_until_known",
        "error, unknown = failed, StoreFailedError",
        "error = failed",
        by=tests("tests/coordinator/execution/test_commit.py"),
    ),
    text(
        "a checkpoint is announced before its manifest is written",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.finalize",
        "        if doomed := self._protocol.doomed(manifest):",
        """        self._tell_of(manifest, order.root)
        if doomed := self._protocol.doomed(manifest):""",
    ),
    text(
        "what hears of a checkpoint raises an error that nobody expects",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs._tell_of",
        "self._reports.checkpoint_completed(manifest, root)",
        "self._reports.checkpoint_completed(manifest)",
    ),
    text(
        "a deletion that is done counts as under way",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.discard",
        "self._protocol.handle(events.Discarded(ids, remaining))",
        "pass",
    ),
    text(
        "a commit is noticed that has not happened",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.notice_commits",
        "if self._is_committed(query, cut):",
        "if self._is_committed(query, cut - 1):",
    ),
    text(
        "a job copies the shards of a savepoint, and leaves the first one out",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.copy_shards",
        "for number, (shard, _) in enumerate(order.sources)",
        "for number, (shard, _) in enumerate(order.sources[1:])",
        by=tests("tests/coordinator/execution/test_checkpoint_jobs.py"),
    ),
    text(
        "a fenced driver takes places of checkpoints",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs._take_place",
        "    looked_at = self._clock()\n    self._watch.check_now()\n",
        "    looked_at = self._clock()\n",
    ),
    text(
        "the end of a deletion is not told if it fails",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.discard",
        "    finally:\n",
        "    else:\n",
        by=after(store_fails=12),
    ),
)
