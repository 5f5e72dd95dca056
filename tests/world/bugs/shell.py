"""Bugs in what restores, starts and stops queries, and in how they stop for their users."""

from __future__ import annotations

from typing import Final

from .bug import LOCAL, after, tests, text

_RESTS: Final = after(pipeline_rests=6, pipeline_is_stopped=6, host_dies=3, store_fails=3)
_PLANS: Final = after(operator_is_rescaled=12, host_dies=3)
_BY_SUPERVISOR: Final = tests("tests/coordinator/recovery/test_supervisor.py")

SHELL: Final = (
    # --- what restores and starts queries
    text(
        "a query goes back, and its shards begin empty",
        "coordinator.recovery.launcher:Launcher._restore",
        "sources=point.sources(name) if point else {},",
        "sources={},",
        by=LOCAL,
    ),
    text(
        "an output does not go back with its query",
        "coordinator.recovery.launcher:Launcher._restore",
        "            definition.sink.begin(name, beginning)\n",
        "",
        by=LOCAL,
    ),
    text(
        "a query restarts in place, and nobody knows its run",
        "coordinator.recovery.launcher:Launcher.again",
        "return self._put(",
        "return (",
        by=_BY_SUPERVISOR,
    ),
    text(
        "a run is stopped, and goes on under Spark",
        "coordinator.recovery.launcher:Launcher.stop",
        "    self.stop_in_spark(run)\n",
        "",
        by=LOCAL,
    ),
    text(
        "a run that was stopped counts as one that has ended by itself",
        "coordinator.recovery.launcher:Launcher.stop",
        "    run.ended = True\n",
        "",
        by=LOCAL,
    ),
    text(
        "a run fails, and nobody is told why",
        "coordinator.recovery.launcher:Launcher._follow",
        "self._watcher.run_ended(run, error)",
        "self._watcher.run_ended(run, None)",
        by=_BY_SUPERVISOR,
    ),
    text(
        "a working directory is made without the entry of the cut",
        "coordinator.spark.seeding:seed",
        "    for name in files_below(files):\n",
        "    for name in files_below(files)[:-1]:\n",
        by=LOCAL,
    ),
    text(
        "the files of a later batch are kept than of the cut",
        "coordinator.spark.progress:files_at",
        'logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]',
        'batch = newest_committed(directory)\n    logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]',
        by=LOCAL,
    ),
    # --- graceful stops
    text(
        "a graceful stop waits for no batch",
        "coordinator.recovery.supervisor:Supervisor.stop_gracefully",
        "                run.await_running_batch(deadline)\n",
        "",
        by=_RESTS,
    ),
    text(
        "a graceful stop takes the producer of a query first",
        "coordinator.recovery.supervisor:Supervisor.stop_gracefully",
        "for name in order:",
        "for name in reversed(order):",
        by=_BY_SUPERVISOR,
    ),
    text(
        "checkpoints wait for the batches of a query that was stopped",
        "coordinator.recovery.supervisor:Supervisor.stop_gracefully",
        "            self._report_stop(run)\n",
        "",
        by=_BY_SUPERVISOR,
    ),
    text(
        "a stop fails, and its queries stay stopped",
        "coordinator.graceful_stop:GracefulStop.stop_queries",
        "        self.supervisor.resume(stopped)\n",
        "",
        by=tests("tests/coordinator/test_coordinator.py"),
    ),
    text(
        "a stop is withdrawn, and a restart that was due is forgotten",
        "coordinator.recovery.supervisor:Supervisor.resume",
        "        self._events.put(withdrawn)\n",
        "        pass\n",
        by=_RESTS,
    ),
    text(
        "the checkpoint of a rest is whichever is the latest",
        "coordinator.graceful_stop:QueriesAtRest._last_checkpoint",
        "state.checkpoints.retained.base_with(batches)",
        "state.checkpoints.retained.base_manifest",
        by=_RESTS,
    ),
    text(
        "a batch is awaited that has not been planned",
        "coordinator.recovery.runs:Run.await_running_batch",
        "self.await_commit(self._begun(progress.newest_planned(logs), logs), deadline, gives_up)",
        "self.await_commit(BatchId(progress.newest_planned(logs) + 1), deadline, gives_up)",
        by=tests("tests/coordinator/test_coordinator.py"),
    ),
    # --- another plan
    text(
        "a query that is to go on with another plan goes on with the same one",
        "coordinator.recovery.replanning:Replanning.take",
        "                run.definition = query.definition\n",
        "                pass\n",
        by=_PLANS,
    ),
    text(
        "a query waits for ever for its batch to end",
        "coordinator.recovery.replanning:Replanning.await_outcome",
        "    self.report(decisions.BatchOver(name, request))\n",
        "",
        by=_PLANS,
    ),
    text(
        "a query is told to stop for another plan, and nobody stops it",
        "coordinator.recovery.replanning:Replanning.stop",
        "        self.stop_in_spark(run)\n",
        "        pass\n",
        by=_PLANS,
    ),
    text(
        "a query that was stopped for another plan is not started",
        "coordinator.protocol.failover:Failover._stopped_for_plan",
        "return decisions.RestartInPlace((asked.query,), asked.cause, asked.noticed_at)",
        "return decisions.DoNothing()",
        by=_PLANS,
    ),
)
