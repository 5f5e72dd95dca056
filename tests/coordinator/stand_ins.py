"""Plain objects that stand in for Spark's."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chandy.coordinator.errors import PipelineStateLostError
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.protocol.decisions import Decision, WaitToRestart
from chandy.coordinator.recovery.announcements import Announcements
from chandy.coordinator.recovery.pipeline_events import PipelineEvent
from chandy.coordinator.spark.writer_facts import WriterFacts
from chandy.state.rpc.messages import ShardsRestored, TaskFailure
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import Manifest
from chandy.storage.errors import ChandyError, FailureCode


class Spark:
    """A session, and the objects that are reached from it."""

    version = "4.3.0"
    applicationId = "app-1"  # noqa: N815
    uiWebUrl = None  # noqa: N815
    is_stopped = False

    def __init__(self, master: str, **conf: str) -> None:
        self.master = master
        self.conf = conf
        self.pythonExec = os.environ.get("PYSPARK_PYTHON", "python3")
        self.registered: list[Any] = []

    @property
    def sparkContext(self) -> Spark:  # noqa: N802
        return self

    @property
    def dataSource(self) -> Spark:  # noqa: N802
        return self

    @property
    def _jsc(self) -> SimpleNamespace:
        settings = SimpleNamespace(setIfMissing=self.conf.setdefault)
        context = SimpleNamespace(conf=lambda: settings, isStopped=lambda: self.is_stopped)
        return SimpleNamespace(sc=lambda: context)

    @property
    def _jvm(self) -> SimpleNamespace:
        handle = SimpleNamespace(current=lambda: SimpleNamespace(pid=os.getpid))
        system = SimpleNamespace(nanoTime=time.monotonic_ns)
        return SimpleNamespace(
            java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=handle, System=system))
        )

    def register(self, source: Any) -> None:
        self.registered.append(source)

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return self.conf

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        """Cancel none: there are none."""


class RecordedReports:
    """``Reports`` that keeps what it is told."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.failures: list[ChandyError] = []
        self.processor_failures: list[TaskFailure] = []
        self.restored: list[ShardsRestored] = []
        self.not_opened: list[tuple[str, str, FailureCode | None]] = []
        self.processor_failed = self.processor_failures.append
        self.shards_restored = self.restored.append
        self.told: list[PipelineEvent] = []
        self.news = Announcements(self.told.append, lambda: 0.0)

    def decided(self, decision: Decision) -> None:
        assert isinstance(decision, WaitToRestart)
        if isinstance(decision.cause, PipelineStateLostError):
            self.lost.append(decision.cause.why)
        else:
            self.failures.append(decision.cause)

    def shards_not_opened(self, query_id: str, why: str, code: FailureCode | None = None) -> None:
        self.not_opened.append((query_id, why, code))

    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        """A test may put another function in its place."""


def watch_of(catalog: Catalog, generation: int, trusts_look: float = 15.0) -> SuccessorWatch:
    """Return a watch for a successor, without a lease. It looks only when it is asked to."""
    return SuccessorWatch(catalog, generation, trusts_look=trusts_look, hold_lease=lambda: 0.0, within=None)


class NoTicks:
    """Spark's ticks, of which nobody wants any."""

    def watch(self, uids: list[str], directory: Path, facts: WriterFacts) -> None:
        pass
