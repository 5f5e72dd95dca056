"""Bugs in how a pipeline goes back and restarts its queries."""

from __future__ import annotations

from typing import Final

from .bug import DAMAGED, LOCAL, after, tests, text

ROLLBACK: Final = (
    text(
        "a way back does not wait for manifests that are being written",
        "coordinator.recovery.supervisor:go_back",
        "    steps.await_manifests()\n",
        "",
        by=tests("tests/coordinator/recovery/test_rollback.py"),
    ),
    text(
        "runs go on while a pipeline goes back",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.stop_runs",
        "self.launcher.stop(run)",
        "pass",
        by=LOCAL,
    ),
    text(
        "a way back leads to where this life began",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.choose_restore_point",
        "self.executor.protocol.read(base_point) or self.initial",
        "self.initial",
        by=LOCAL,
    ),
    text(
        "hosts do not hear that runs are over",
        "coordinator.recovery.supervisor:go_back",
        "    steps.release_runs()\n",
        "",
        by=tests("tests/coordinator/recovery/test_rollback.py"),
    ),
    text(
        "hosts do not hear of the runs of an attempt that has failed",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.stop_runs",
        "self.superseded += self._earlier",
        "self.superseded[:] = self._earlier",
        by=tests("tests/coordinator/recovery/test_supervisor.py"),
    ),
    text(
        "the last query is not started after a way back",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.start_runs",
        "for run in self._next:",
        "for run in self._next[:-1]:",
        by=LOCAL,
    ),
    text(
        "nobody says that a pipeline has gone back",
        "coordinator.recovery.supervisor:Supervisor._attempt",
        "    self._decide(decisions.WentBack())\n",
        "",
        by=LOCAL,
    ),
    text(
        "a restart that has failed is forgotten",
        "coordinator.recovery.supervisor:Supervisor._try",
        "return self._decide(restart_failed(error))",
        "pass",
        by=LOCAL,
    ),
    text(
        "a delay before a restart never ends",
        "coordinator.recovery.supervisor:Supervisor._carry_out",
        "self._restart_at = until",
        "pass",
        by=LOCAL,
    ),
    text(
        "nobody says that a query has restarted in place",
        "coordinator.recovery.supervisor:Supervisor._restart_in_place",
        "    self._decide(decisions.RestartedInPlace(name))\n",
        "",
        by=tests("tests/coordinator/recovery/test_supervisor.py"),
    ),
    text(
        "a driver that is fenced goes on until its queries notice",
        "coordinator.recovery.supervisor:Supervisor._fail_for_good",
        """    with self._changing:
        self._end(error)
    self._on_failed()
""",
        "",
        by=after(successor_starts=8),
    ),
    # --- on one machine, after a process was killed
    text(
        "a query resumes alone, and the others go back",
        "coordinator.restore.resume:resume_points",
        "one if isinstance(one, NotResumable) else others",
        "one",
        by=tests("tests/coordinator/restore/test_resume.py"),
    ),
    text(
        "a run is resumed that the driver before was giving up",
        "coordinator.restore.local_recovery:LocalRecovery.erase_records",
        "erase_record(run.directory)",
        "pass",
        by=tests("tests/coordinator/restore/test_local_recovery.py"),
    ),
    text(
        "a run is resumed that the last but one driver has left",
        "coordinator.restore.run_record:misfit",
        "record.generation != generation - 1",
        "False",
        by=tests("tests/coordinator/restore/test_local_recovery.py"),
    ),
    text(
        "a changelog is read after its machine has lost its power",
        "coordinator.restore.run_record:misfit",
        "not boot or record.boot != boot",
        "False",
        by=LOCAL,
    ),
    text(
        "a checkpoint is called intact that is damaged",
        "storage.checkpoints.verification:newest_intact",
        " if verify(catalog.store, manifest).ok",
        "",
        by=DAMAGED,
    ),
)
