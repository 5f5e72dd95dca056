"""A pipeline whose Spark is a stand-in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chandy import Permit, Shadow
from chandy.coordinator import coordinator as module
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.coordinator import CheckpointCoordinator
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.polls import Polls
from chandy.coordinator.recovery import launcher
from chandy.coordinator.recovery.pipeline_events import PipelineEnded, PipelineEvent
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.spark import plan
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog

from .. import insides
from ..waiting import DEADLINE, eventually
from .stand_ins import Spark


def cluster(host: str = "127.0.0.1") -> Any:
    """A session whose master is a cluster."""
    return Spark("spark://master:7077", **{"spark.driver.host": host})


class Run:
    """A run of a query that never ends by itself."""

    id = runId = "a UUID"  # noqa: N815 (as in PySpark)

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.on_stop: Callable[[], object] = lambda: None

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self.stopped.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        return self.stopped.wait(timeout)

    def stop(self) -> None:
        self.on_stop()
        self.stopped.set()


class Lock:
    """A lock like the coordinator's that records when a thread has to wait for it."""

    def __init__(self) -> None:
        self.awaited = threading.Event()
        self._lock = threading.RLock()

    def acquire(self, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.awaited.set()
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class OtherThread:
    """A call in another thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.found: object = None
        self.error: Exception | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = self._call()
        except Exception as error:  # noqa: BLE001 (the test says which it may be)
            self.error = error

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> OtherThread:
        self._thread.join(DEADLINE)
        assert self.ended
        return self


class Coordinated:
    """A coordinator and the runs of its queries."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[Run] = []
        self.on_start: Callable[[], object] = lambda: None
        self.closed = 0
        self.work = folder / "work"
        self.lock = Lock()
        monkeypatch.setattr(plan, "check_writer", lambda writer: None)
        monkeypatch.setattr(plan, "facts", self._facts)
        monkeypatch.setattr(plan, "output_path", lambda writer, sink: None)
        monkeypatch.setattr(launcher, "start_spark", self._start)
        # Tests look by themselves whether a shadow asks.
        monkeypatch.setattr(module, "Polls", SimpleNamespace(begin=lambda looks: Polls({})))
        monkeypatch.setattr(Supervisor, "close", self._counting(Supervisor.close))
        monkeypatch.setattr(LockedProtocol, "wait_until", self._telling(LockedProtocol.wait_until))
        self.ends: list[PipelineEnded] = []
        self.coordinator = made(cluster(), folder, on_event=self._take, record_batches=True)
        self.coordinator._changing = self.lock  # type: ignore[assignment]

    def start(self, name: str) -> Any:
        writer: Any = SimpleNamespace(_df=None)
        return self.coordinator.start(writer, name=name)

    def meanwhile(self, call: Callable[[], object]) -> OtherThread:
        """Call something in another thread; return when the call has ended, or waits for others."""
        self.lock.awaited.clear()
        other = OtherThread(call)
        eventually(lambda: other.ended or self.lock.awaited.is_set())
        return other

    def _take(self, event: PipelineEvent) -> None:
        if isinstance(event, PipelineEnded):
            self.ends.append(event)

    def _facts(self, writer: object, table: str | None) -> WriterFacts:
        self.on_start()
        return WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME)

    def _start(self, *_: object, **__: object) -> Run:
        self.runs.append(Run())
        return self.runs[-1]

    def _telling(self, wait_until: Callable[..., bool]) -> Callable[..., bool]:
        def waits(protocol: LockedProtocol, holds: Any, seconds: float | None) -> bool:
            self.lock.awaited.set()
            return wait_until(protocol, holds, seconds)

        return waits

    def _counting(self, close: Callable[[Supervisor], None]) -> Callable[[Supervisor], None]:
        def counted(closed: Supervisor) -> None:
            self.closed += 1
            close(closed)

        return counted


def made(
    spark: Any,
    folder: Path,
    restore: str = "latest",
    permit: Permit | None = None,
    shadow: Shadow | None = None,
    standby: bool = False,
    **config: Any,
) -> CheckpointCoordinator:
    return CheckpointCoordinator(
        spark,
        restore=restore,
        permit=permit,
        shadow=shadow,
        standby=standby,
        pipeline="p",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            **{
                "interval": None,
                "work_dir": str(folder / "work"),
                "cache_dir": str(folder / "cache"),
                # It is a cluster of one machine.
                "shared": True,
            }
            | config
        ),
    )


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinated]:
    running = Coordinated(tmp_path, monkeypatch)
    yield running
    running.on_start = lambda: None
    for run in running.runs:
        run.on_stop = lambda: None
    running.coordinator.stop(timeout="1 s")


def commit(pipeline: Coordinated, batch: int) -> None:
    """Let Spark have committed a batch of the only query."""
    (run,) = insides.runs(pipeline.coordinator)
    for log in ("offsets", "commits"):
        (run.directory / log).mkdir(exist_ok=True)
        (run.directory / log / str(batch)).write_text("v1\n{}")


def stored(tmp_path: Path) -> list[int]:
    return Catalog(LocalStore(tmp_path / "store" / "p")).list_ids()
