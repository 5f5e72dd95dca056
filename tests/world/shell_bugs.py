"""Bugs in what restores, starts and stops queries and carries out what users ask, to see that worlds find them."""

from __future__ import annotations

from typing import Final

from chandy.coordinator.graceful_stop import GracefulStop, QueriesAtRest
from chandy.coordinator.recovery.launcher import Launcher
from chandy.coordinator.recovery.recovery_state import RecoveryStateMachine
from chandy.coordinator.recovery.replanning import Replanning
from chandy.coordinator.recovery.runs import Run
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.spark import progress, seeding

from .seeded import SeededBug

SHELL_BUGS: Final = (
    # --- what restores and starts queries
    SeededBug(
        "an output does not go back with its query",
        0,
        Launcher,
        "_restore",
        "            definition.sink.begin(name, beginning)\n",
        "",
    ),
    SeededBug(
        "a query goes back, and its shards begin empty",
        0,
        Launcher,
        "_restore",
        "sources=point.sources(name) if point else {},",
        "sources={},",
    ),
    SeededBug(
        "the protocol takes a restored query for one that has committed nothing",
        0,
        Launcher,
        "_restore",
        "            batch=batch,\n",
        "            batch=NO_BATCH,\n",
    ),
    SeededBug(
        "a query restarts in place, and nobody knows its run",
        0,
        Launcher,
        "again",
        "return self._put(\n        attrs.evolve(run,",
        "return (\n        attrs.evolve(run,",
    ),
    SeededBug(
        "a run is stopped, and goes on under Spark",
        0,
        Launcher,
        "stop",
        "    self.stop_in_spark(run)\n",
        "",
    ),
    SeededBug(
        "a run that was stopped counts as one that has ended by itself",
        0,
        Launcher,
        "stop",
        "    run.ended = True\n",
        "",
    ),
    SeededBug(
        "a run fails, and nobody is told why",
        0,
        Launcher,
        "_follow",
        "self._watcher.run_ended(run, error)",
        "self._watcher.run_ended(run, None)",
    ),
    SeededBug(
        "a working directory is made without the entry of the cut",
        0,
        seeding,
        "seed",
        "    for name in files_below(files):\n",
        "    for name in files_below(files)[:-1]:\n",
    ),
    SeededBug(
        "the files of a later batch are kept than of the cut",
        0,
        progress,
        "files_at",
        'logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]',
        'batch = newest_committed(directory)\n    logged = [METADATA, f"offsets/{batch}", f"commits/{batch}"]',
    ),
    # --- graceful stops
    SeededBug(
        "a graceful stop waits for no batch",
        0,
        Supervisor,
        "stop_gracefully",
        "                run.await_running_batch(deadline)\n",
        "",
    ),
    SeededBug(
        "a graceful stop takes the producer of a query first",
        0,
        Supervisor,
        "stop_gracefully",
        "for name in order:",
        "for name in reversed(order):",
    ),
    SeededBug(
        "checkpoints wait for the batches of a query that was stopped",
        0,
        Supervisor,
        "stop_gracefully",
        "            self._report_stop(run)\n",
        "",
    ),
    SeededBug(
        "a stop fails, and its queries stay stopped",
        0,
        GracefulStop,
        "stop_queries",
        "        self.supervisor.resume(stopped)\n",
        "",
    ),
    SeededBug(
        "a stop is withdrawn, and a restart that was due is forgotten",
        0,
        Supervisor,
        "resume",
        "        self._events.put(withdrawn)\n",
        "        pass\n",
    ),
    SeededBug(
        "the checkpoint of a rest is whichever is the latest",
        0,
        QueriesAtRest,
        "begin",
        "state.checkpoints.retained.base_with(batches)",
        "state.checkpoints.retained.base_manifest",
    ),
    SeededBug(
        "queries have ended for good after a rest",
        0,
        QueriesAtRest,
        "begin",
        "_STANDSTILL_SECONDS, for_good=False",
        "_STANDSTILL_SECONDS",
    ),
    SeededBug(
        "a batch is awaited that has not been planned",
        0,
        Run,
        "await_running_batch",
        "self.await_commit(self._begun(progress.newest_planned(logs), logs), deadline, is_settled)",
        "self.await_commit(BatchId(progress.newest_planned(logs) + 1), deadline, is_settled)",
    ),
    # --- another plan
    SeededBug(
        "a query that is to go on with another plan goes on with the same one",
        0,
        Replanning,
        "take",
        "                run.definition = query.definition\n",
        "                pass\n",
    ),
    SeededBug(
        "a query waits for ever for its batch to end",
        0,
        Replanning,
        "await_outcome",
        "    self.report(BatchOver(name, request))\n",
        "",
    ),
    SeededBug(
        "a query is told to stop for another plan, and nobody stops it",
        0,
        Replanning,
        "stop",
        "        self.stop_in_spark(run)\n",
        "        pass\n",
    ),
    SeededBug(
        "a query that was stopped for another plan is not started",
        0,
        RecoveryStateMachine,
        "_stopped_for_plan",
        "return on.RestartInPlace((asked.query,), asked.cause, asked.noticed_at)",
        "return on.DoNothing()",
    ),
)
"""All of them."""
