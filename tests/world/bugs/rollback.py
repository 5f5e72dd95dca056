"""Bugs in how a pipeline goes back and restarts its queries."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

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
    ),
    text(
        "a way back leads to where this life began",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.choose_restore_point",
        "self.executor.protocol.read(base_point) or self.initial",
        "self.initial",
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
    ),
    text(
        "the last query is not started after a way back",
        "coordinator.recovery.pipeline_rollback:PipelineRollback.start_runs",
        "for run in self._next:",
        "for run in self._next[:-1]:",
    ),
    text(
        "nobody says that a pipeline has gone back",
        "coordinator.recovery.supervisor:Supervisor._attempt",
        "    self._decide(decisions.WentBack())\n",
        "",
    ),
    text(
        "a restart that has failed is forgotten",
        "coordinator.recovery.supervisor:Supervisor._try",
        "return self._decide(restart_failed(error))",
        "pass",
    ),
    text(
        "a delay before a restart never ends",
        "coordinator.recovery.supervisor:Supervisor._carry_out",
        "self._restart_at = until",
        "pass",
    ),
    text(
        "the end of a run that was stopped counts",
        "coordinator.recovery.supervisor:Supervisor._take",
        """        if run.ended:
            # It was stopped.""",
        """        if False:
            # It was stopped.""",
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
    ),
)
