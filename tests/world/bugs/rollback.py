"""Bugs in how a pipeline goes back and restarts its queries."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

ROLLBACK: Final = (
    text(
        "a way back does not wait for manifests that are being written",
        "coordinator.recovery.supervisor:go_back",
        "    steps.settle_manifests()\n",
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
        "coordinator.recovery.supervisor:Supervisor._go_back",
        "    self._decide(on.WentBack())\n",
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
        "    self._decide(on.RestartedInPlace(name))\n",
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
    text(
        "an output does not go back with its query",
        "coordinator.recovery.launcher:Launcher._restore",
        "            definition.sink.begin(name, beginning)\n",
        "",
    ),
    text(
        "a query goes back, and its shards begin empty",
        "coordinator.recovery.launcher:Launcher._restore",
        "sources=point.sources(name) if point else {},",
        "sources={},",
    ),
    text(
        "the protocol takes a restored query for one that has committed nothing",
        "coordinator.recovery.launcher:Launcher._restore",
        "            batch=batch,\n",
        "            batch=NO_BATCH,\n",
    ),
    text(
        "a query restarts in place, and nobody knows its run",
        "coordinator.recovery.launcher:Launcher.again",
        """return self._put(
        attrs.evolve(run,""",
        """return (
        attrs.evolve(run,""",
    ),
    text(
        "a run is stopped, and goes on under Spark",
        "coordinator.recovery.launcher:Launcher.stop",
        "    self.stop_in_spark(run)\n",
        "",
    ),
    text(
        "a run that was stopped counts as one that has ended by itself",
        "coordinator.recovery.launcher:Launcher.stop",
        "    run.ended = True\n",
        "",
    ),
    text(
        "a run fails, and nobody is told why",
        "coordinator.recovery.launcher:Launcher._follow",
        "self._watcher.run_ended(run, error)",
        "self._watcher.run_ended(run, None)",
    ),
    text(
        "a working directory is made without the entry of the cut",
        "coordinator.spark.seeding:seed",
        "    for name in files_below(files):\n",
        "    for name in files_below(files)[:-1]:\n",
    ),
    text(
        "the files of a later batch are kept than of the cut",
        "coordinator.spark.progress:files_at",
        'logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]',
        """batch = newest_committed(directory)
    logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]""",
    ),
)
