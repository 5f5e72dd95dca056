"""Bugs in the ways of rows to their targets."""

from __future__ import annotations

from typing import Final

from .bug import PUBLISHING, tests, text

PUBLISHER: Final = (
    text(
        "what the target has is published again",
        "coordinator.sinks.two_phase.publisher:Publisher._publish",
        "if committer.position is not None and committer.position >= epoch.id:",
        "if False:",
        by=PUBLISHING,
        seed=4,
    ),
    text(
        "a lost answer is taken for a yes",
        "coordinator.sinks.two_phase.publisher:Publisher._patiently",
        "self._disconnect()",
        "return True",
        by=PUBLISHING,
    ),
    text(
        "a connection is kept after an error",
        "coordinator.sinks.two_phase.publisher:Publisher._patiently",
        "self._disconnect()",
        "pass",
        by=PUBLISHING,
        seed=13,
    ),
    text(
        "an epoch is published before its manifest is durable",
        "coordinator.sinks.two_phase.query_sink:TransactionalSink.pre_commit",
        "with self._preparing:",
        """self.commit(checkpoint)
    with self._preparing:""",
        by=PUBLISHING,
    ),
    text(
        "epochs stay when the pipeline goes back",
        "coordinator.sinks.two_phase.query_sink:TransactionalSink.begin",
        "forgotten = self._log.go_back(beginning.checkpoint)",
        "forgotten = ()",
        by=PUBLISHING,
        seed=33,
    ),
    text(
        "what a start is to publish is not published",
        "coordinator.sinks.two_phase.takeover:SinkTakeover.run",
        "self._publish_now(uid, [Epoch(epoch, beginning.root) for epoch in epochs])",
        "pass",
        by=PUBLISHING,
        seed=14,
    ),
    text(
        "a checkpoint is done when the first sink has published it",
        "coordinator.sinks.two_phase.query_sink:TransactionalSink._published",
        "if self._log.is_published(checkpoint)",
        "",
        by=PUBLISHING,
    ),
    text(
        "a note is that of the epoch before",
        "coordinator.sinks.two_phase.query_sink:TransactionalSink._record",
        "key = (uid, epoch.id)",
        "key = (uid, 0)",
        by=PUBLISHING,
        seed=9,
    ),
    text(
        "epochs of checkpoints that have failed are lost",
        "coordinator.sinks.two_phase.epochs:EpochLog.unpublished",
        "epoch.id <= checkpoint and",
        "epoch.id == checkpoint and",
        by=PUBLISHING,
        seed=3,
    ),
    text(
        "what is lost in a target is taken for what is ahead",
        "coordinator.sinks.two_phase.takeover:SinkTakeover._decide",
        "if isinstance(where, LostOutput):",
        "if not isinstance(where, LostOutput):",
        by=tests("tests/coordinator/sinks/two_phase/test_batches.py"),
    ),
)
