"""Bugs of the shell that no test found when the driver's jobs were copied for tests."""

from __future__ import annotations

from typing import Final

from .bug import tests, text

TOLD: Final = (
    text(
        "the cut is chosen upstream first: a reader's cut is behind its writer's",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.choose_cut",
        """    for query in choose.queries:
        begun""",
        """    for query in reversed(choose.queries):
        begun""",
    ),
    text(
        "an epoch is closed after its job was submitted",
        "coordinator.execution.dispatch:Dispatcher.hand_on",
        """            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)
            yield None
            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))""",
        """            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))
            yield None
            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)""",
    ),
    text(
        "'begin batch' is answered without the fence proof",
        "coordinator.execution.connected_hosts:ConnectedHosts.ask_once",
        "    self._proof.check()\n",
        "",
    ),
    text(
        "a manifest is written without the look for doomed objects",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.finalize",
        "if doomed := self._protocol.doomed(manifest):",
        "if (doomed := self._protocol.doomed(manifest)) and False:",
        by=tests("tests/coordinator/execution/test_checkpoint_jobs.py"),
    ),
    text(
        "no QueryStopped after planning",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs.choose_cut",
        "self._protocol.handle(events.QueryStopped(query, batch))",
        "pass",
        by=tests("tests/coordinator/execution/test_checkpoint_jobs.py"),
    ),
    text(
        "acknowledgements of dismissed hosts count",
        "coordinator.execution.connected_hosts:ConnectedHosts.ack",
        "    self._check_not_dismissed(ack.host)\n",
        "",
        by=tests("tests/coordinator/execution/test_connected_hosts.py"),
    ),
    text(
        "there is no trigger record before the cut",
        "coordinator.execution.checkpoint_jobs:CheckpointJobs._take_place",
        "    self._store.create(trigger_key(choose.checkpoint), note.encode())\n",
        "",
    ),
)
