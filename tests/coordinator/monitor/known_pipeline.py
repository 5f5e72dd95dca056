"""A pipeline as the server in a driver knows it, in the hands of a test."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Self

import attrs

from chandy.coordinator.assigned_shard import AssignedShard
from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.monitor.facts import Facts
from chandy.coordinator.monitor.trends import Measured, Trends
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.statistics import History, ShardStatistics, Statistics
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.storage.checkpoints.journal import JournalEntry
from chandy.storage.checkpoints.manifest import CheckpointKind

from .known_facts import FACTS

SHARDS = [ShardStatistics("totals", shard, 10.0, 0.1 * shard, 0.01, 0.2, 11.0, 100, 7, 3) for shard in (1, 0)]
PHASES = PhaseSeconds(0.25, 1.5, 0.25)
TAKEN = Checkpoint(3, CheckpointKind.MANUAL, "file:///s/p", 10.0, 12.5, 1000, 10, 2, {"q": 7})


def statistics() -> Statistics:
    """Checkpoint 1 has completed, 2 has failed, 3 is in progress."""
    history = History()
    history.started(1, CheckpointKind.PERIODIC, 10.0)
    history.completed(1, 12.0, size=200, new_bytes=14, shards=SHARDS, phases=PHASES)
    history.started(2, CheckpointKind.SAVEPOINT, 20.0)
    history.failed(2, 21.0, Reason.EXPIRED, phases=PhaseSeconds(1.0))
    history.started(3, CheckpointKind.MANUAL, 30.0)
    history.restored(1)
    return history.snapshot()


@attrs.define
class KnownPipeline:
    """``Source``, whose checkpoints are what a test says."""

    read: Callable[[], Facts] = lambda: FACTS
    outcome: Callable[[Future[Checkpoint]], None] = lambda future: future.set_result(TAKEN)
    act: Callable[[], Any] = lambda: None
    told: list[tuple[Any, ...]] = attrs.field(factory=list)
    targets: list[str | None] = attrs.field(factory=list)

    def facts(self) -> Facts:
        return self.read()

    def statistics(self) -> Statistics:
        return statistics()

    def assignment(self) -> tuple[AssignedShard, ...]:
        return (
            AssignedShard("q", "totals", 0, "near", "1", 1, 100),
            AssignedShard("q", "totals", 1, None, None),
        )

    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        return (RecoveryMetrics("start", None, False, 5.0), RecoveryMetrics("<b>boom</b>", 1, True, 9.0))

    def history(self) -> tuple[JournalEntry, ...]:
        return (JournalEntry(at=4.0, what="goes back", says="<i>bang</i>", generation=2),)

    def trends(self) -> Trends:
        return Trends().plus(990.0, Measured(batches=2, rows_in=1200, batch_seconds=1.0, behind=30.0))

    @property
    def orders(self) -> Self:
        return self

    def drain(self, machine: str, timeout: str) -> None:
        self.told.append((machine, timeout))
        self.act()

    def rescale(self, operator: str, parallelism: int | None, timeout: str) -> None:
        self.told.append((operator, parallelism, timeout))
        self.act()

    def switch(self, shadow: str | None, timeout: str, *, although_different: bool, keep_old: str) -> None:
        self.told.append((shadow, timeout, although_different, keep_old))
        self.act()

    def stop(self, savepoint: str | None, *, hand_over: bool) -> None:
        self.told.append((savepoint, hand_over))
        self.act()

    def get(self, operator: str, key: Any, state: str | None) -> Any:
        self.told.append((operator, key, state))
        return self.act()

    def checkpoint(self) -> Future[Checkpoint]:
        return self.savepoint("none: a checkpoint")

    def savepoint(self, target: str | None) -> Future[Checkpoint]:
        self.targets.append(target)
        future: Future[Checkpoint] = Future()
        self.outcome(future)
        return future
