"""Bugs in how a pipeline goes back and restarts its queries, to see that worlds find them."""

from __future__ import annotations

from typing import Final

from chandy.coordinator.recovery import supervisor
from chandy.coordinator.recovery.pipeline_rollback import PipelineRollback
from chandy.coordinator.recovery.supervisor import Supervisor

from .seeded import SeededBug

RECOVERY_BUGS: Final = (
    SeededBug(
        "runs go on while a pipeline goes back",
        0,
        PipelineRollback,
        "stop_runs",
        "self.launcher.stop(run)",
        "pass",
    ),
    SeededBug(
        "a way back does not wait for manifests that are being written",
        0,
        supervisor,
        "go_back",
        "    steps.settle_manifests()\n",
        "",
    ),
    SeededBug(
        "a way back leads to where this life began",
        0,
        PipelineRollback,
        "choose_restore_point",
        "self.executor.protocol.read(base_point) or self.initial",
        "self.initial",
    ),
    SeededBug(
        "hosts do not hear that runs are over",
        0,
        supervisor,
        "go_back",
        "    steps.release_runs()\n",
        "",
    ),
    SeededBug(
        "hosts do not hear of the runs of an attempt that has failed",
        0,
        PipelineRollback,
        "stop_runs",
        "self.superseded += self._earlier",
        "self.superseded[:] = self._earlier",
    ),
    SeededBug(
        "the last query is not started after a way back",
        0,
        PipelineRollback,
        "start_runs",
        "for run in self._next:",
        "for run in self._next[:-1]:",
    ),
    SeededBug(
        "nobody says that a pipeline has gone back",
        0,
        Supervisor,
        "_go_back",
        "    self._decide(on.WentBack())\n",
        "",
    ),
    SeededBug(
        "a restart that has failed is forgotten",
        0,
        Supervisor,
        "_try",
        "return self._decide(restart_failed(error))",
        "pass",
    ),
    SeededBug(
        "a delay before a restart never ends",
        0,
        Supervisor,
        "_carry_out",
        "self._restart_at = until",
        "pass",
    ),
    SeededBug(
        "the end of a run that was stopped counts",
        0,
        Supervisor,
        "_take",
        "        if run.ended:\n            # It was stopped.",
        "        if False:\n            # It was stopped.",
    ),
    SeededBug(
        "nobody says that a query has restarted in place",
        0,
        Supervisor,
        "_restart_in_place",
        "    self._decide(on.RestartedInPlace(name))\n",
        "",
    ),
    SeededBug(
        "a driver that is fenced goes on until its queries notice",
        0,
        Supervisor,
        "_fail_for_good",
        "    with self._changing:\n        self._end(error)\n    self._on_failed()\n",
        "",
    ),
)
