"""Bugs in the ways of rows to their targets, to see that worlds with transactional sinks find them."""

from __future__ import annotations

from typing import Final

from chandy.coordinator.execution.dispatch import Dispatcher
from chandy.coordinator.sinks.two_phase.epochs import EpochLog
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.coordinator.sinks.two_phase.takeover import SinkTakeover

from .bugs import SeededBug

PUBLISHER_BUGS: Final = (
    SeededBug(
        "what the target has is published again",
        4,
        Publisher,
        "_publish",
        "if committer.position is not None and committer.position >= epoch.id:",
        "if False:",
    ),
    SeededBug(
        "a lost answer is taken for a yes",
        0,
        Publisher,
        "_patiently",
        "self._disconnect()",
        "return True",
    ),
    SeededBug(
        "a connection is kept after an error",
        13,
        Publisher,
        "_patiently",
        "self._disconnect()",
        "pass",
    ),
    SeededBug(
        "an epoch is published before its manifest is durable",
        0,
        TransactionalSink,
        "pre_commit",
        "with self._preparing:",
        "self.commit(checkpoint)\n    with self._preparing:",
    ),
    SeededBug(
        "epochs stay when the pipeline goes back",
        33,
        TransactionalSink,
        "begin",
        "forgotten = self._log.go_back(beginning.checkpoint)",
        "forgotten = ()",
    ),
    SeededBug(
        "what a start is to publish is not published",
        14,
        SinkTakeover,
        "run",
        "self._publish_now(uid, [Epoch(epoch, beginning.root) for epoch in epochs])",
        "pass",
    ),
    SeededBug(
        "a checkpoint is done when the first sink has published it",
        0,
        TransactionalSink,
        "_published",
        "if self._log.is_published(checkpoint)",
        "",
    ),
    SeededBug(
        "a note is that of the epoch before",
        9,
        TransactionalSink,
        "_record",
        "key = (uid, epoch.id)",
        "key = (uid, 0)",
    ),
    SeededBug(
        "epochs of checkpoints that have failed are lost",
        3,
        EpochLog,
        "unpublished",
        "epoch.id <= checkpoint and",
        "epoch.id == checkpoint and",
    ),
    SeededBug(
        "an epoch is closed after its job was submitted",
        1,
        Dispatcher,
        "hand_on",
        """            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)
            yield None
            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))""",
        """            submit(JobLane.IO, instruction.root, Job(jobs.store_progress, instruction))
            yield None
            self._progress.close_epoch(instruction.query, instruction.checkpoint, instruction.cut)""",
    ),
)
