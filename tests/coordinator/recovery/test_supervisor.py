"""What a pipeline fails with, on runs that are plain objects."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.channels.contract import Channels
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import (
    JavaEndedError,
    NotRescaledError,
    PipelineFailedError,
    ProcessorFailedError,
    QueryFailedError,
    RescaledError,
)
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.permit import NOTHING_PERMITTED
from chandy.coordinator.protocol import decisions, events
from chandy.coordinator.protocol.errors import CheckpointError
from chandy.coordinator.protocol.failover import Failover
from chandy.coordinator.protocol.life import Life, LifePhase, QueryPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.restart_tracker import RestartStrategy
from chandy.coordinator.protocol.statistics import CheckpointStatistics
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery import launcher
from chandy.coordinator.recovery.diagnosis import cause_of_end
from chandy.coordinator.recovery.launcher import Launcher
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.coordinator.recovery.pipeline_events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointMeasured,
    HostReplaced,
    PipelineEnded,
    PipelineEvent,
    Recovered,
    Recovering,
)
from chandy.coordinator.recovery.restart import ExponentialBackoff, FixedDelay, NoRestart
from chandy.coordinator.recovery.runs import Runs
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.restore import restore_point
from chandy.coordinator.restore.local_recovery import LeftoverRuns, LocalRecovery
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.restore.restore_point import RestoredQuery
from chandy.coordinator.restore.resume import ResumableRun
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sources.errors import SourceLostError
from chandy.coordinator.sources.query_sources import QuerySources
from chandy.coordinator.spark import progress
from chandy.coordinator.spark.writer_facts import SinkFacts, Trigger, WriterFacts
from chandy.state.errors import ChangelogBrokenError, HostLostError
from chandy.state.failure_marks import mark
from chandy.state.rpc.messages import ShardsRestored, TaskFailure
from chandy.state.shards import ResumePoint
from chandy.storage import ChandyError, DamagedCheckpointError, FencedError, StoreFailedError
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.retrying import interruptible
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.manifest import CheckpointKind, Handle, OperatorRecord, QueryRecord
from chandy.storage.checkpoints.proof import FenceProof
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.errors import DamagedError, FailureCode, ObjectMissingError, OperationInterruptedError
from chandy.storage.ids import NO_BATCH, BatchId
from chandy.storage.store import Store
from tests.builders import failover
from tests.coordinator.strict_machine import StrictStateMachine

from ...builders import make_manifest
from ...waiting import DEADLINE, eventually
from ..stand_ins import NoTicks

TOKEN = "secret"


def of_a_task(error: Exception) -> str:
    """What Spark says of a run that a task's error has ended."""
    mark(error, TOKEN)
    return "[STREAM_FAILED] Job aborted:\n" + "".join(traceback.format_exception(error))


class Ticking:
    """A clock that is a second later whenever somebody looks at it."""

    def __init__(self) -> None:
        self._now = itertools.count(1_000_000_000)

    def __call__(self) -> float:
        return float(next(self._now))


class FailedRun:
    """A run of a query that has failed already."""

    id = runId = "a UUID"  # noqa: N815 (as in PySpark)

    isActive = False  # noqa: N815

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        raise RuntimeError(self.failure)

    def stop(self) -> None:
        pass


class RunningRun(FailedRun):
    """A run of a query that goes on until it is stopped."""

    def __init__(self, message: str = "Processing new data") -> None:
        self.stopped = threading.Event()
        self.status = {"message": message}

    @property
    def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802
        return not self.stopped.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        return self.stopped.wait(timeout)

    def stop(self) -> None:
        self.stopped.set()


class Starts:
    """Starts runs as it is told, in turn, and the last way again and again."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.asked: list[dict[str, Any]] = []
        """What each run was asked for with."""
        self.give(RunningRun)

    def give(
        self, *script: FailedRun | type[FailedRun] | Exception | Callable[[dict[str, Any]], FailedRun]
    ) -> None:
        """Let the next starts give these runs, or raise these errors."""
        self._script = list(script)

    def start(self, writer: object, *, proof: FenceProof, **asked: Any) -> FailedRun:
        proof.check_now()
        self.asked.append({"writer": writer} | asked)
        given = self._script.pop(0) if self._script[1:] else self._script[0]
        if isinstance(given, Exception):
            raise given
        if isinstance(given, type):
            given = given()
        self.runs.append(given if isinstance(given, FailedRun) else given(self.asked[-1]))
        return self.runs[-1]


class WatchedProtocol(LockedProtocol):
    """A protocol that remembers what it was told, and the lives of its pipeline."""

    def __init__(self, restart: RestartStrategy, clock: Callable[[], float]) -> None:
        machine = StrictStateMachine(
            pipeline="p",
            generation=1,
            root="",
            limits=CheckpointConfig().limits,
            next_id=1,
            failover=failover(restart),
        )
        super().__init__(machine, clock)
        self.told: list[object] = []
        self.lives: list[Life] = [machine.life]

    @override
    def _change(self, event: Any, before: Any) -> Any:
        self.told.append(event)
        answer = super()._change(event, before)
        if self.life() is not self.lives[-1]:
            self.lives.append(self.life())
        return answer


class KnownWatch(FenceProof):
    """``SuccessorWatch`` that needs no store, and its proof."""

    fenced: FencedError | None = None
    generation = 1

    @property
    def proof(self) -> KnownWatch:
        return self

    def check(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    def check_now(self) -> None:
        self.check()


class NoCheckpoints:
    """``CheckpointExecutor`` without checkpoints."""

    def __init__(self, protocol: WatchedProtocol) -> None:
        self.protocol = protocol
        self.watch = KnownWatch()
        self.unanswered = 0
        """How often the fate of a manifest is not known yet."""

    def await_manifests(self) -> bool:
        self.unanswered -= 1
        return self.unanswered < 0


class Supervised:
    """A pipeline of one query with one shard, restored from the second of two checkpoints."""

    def __init__(self, directory: Path, restart: RestartStrategy, local_recovery: object) -> None:
        self.starts = Starts()
        self.catalog = Catalog(LocalStore(directory / "store"))
        for id in (1, 2):
            writer = SnapshotWriter(self.catalog.store, f"checkpoints/{id}/host.pack", pack_below=0)
            for group in ("query", "shard"):
                path = directory / f"{group}-{id}.sst"
                path.write_bytes(f"{group} {id}".encode() * 100)
                name = f"{restore_point.WORKING}/offsets/{id}" if group == "query" else "1.sst"
                writer.add(group, {name: path})
            stored = writer.finish()
            self.commit(id, stored["query"].handle, stored["shard"].handle)
        self.point = restore_point.choose(self.catalog, "latest")
        assert self.point is not None
        self.directories = QueryDirectories(directory / "work", "p")
        self.runs = Runs(Channels(), Recording())
        self.told: list[PipelineEvent] = []
        self.opened: list[tuple[str, tuple[OperatorRecord, ...]]] = []
        self.failed: list[Callable[[str], None]] = []
        recovery = cast(LocalRecovery, local_recovery) or LocalRecovery(
            root="",
            generation=1,
            workspace=self.directories.path,
            changelogs=directory / "changelogs",
            enabled=False,
            boot="",
            leftovers=LeftoverRuns(),
        )
        interrupted = threading.Event()
        find_damage = partial(restore_point.find_damage, self.catalog, interrupted)
        clock = Ticking()
        self.protocol = WatchedProtocol(restart, clock)
        self.supervisor = Supervisor(
            protocol=self.protocol,
            launcher=Launcher(
                directories=self.directories,
                runs=self.runs,
                cache=FileCache(directory / "cache"),
                ticks=NoTicks(),  # type: ignore[arg-type]
                local_recovery=recovery,
                open_ahead=self.open_ahead,
                find_damage=find_damage,
                ending=interrupted,
                owner=SinkOwner(self.catalog.store.uri, "p"),
                may_begin_anew=True,
                permits=NOTHING_PERMITTED,
            ),
            runs=self.runs,
            local_recovery=recovery,
            find_damage=find_damage,
            ending=interrupted,
            clock=clock,
            restored=self.point,
            token=TOKEN,
            tell=self.told.append,
        )
        self.checkpoints = NoCheckpoints(self.protocol)
        self.supervisor.begin(self.checkpoints)  # type: ignore[arg-type]
        facts = WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME)
        self.definition = Definition("q", None, None, facts, AtLeastOnceSink("noop"), (), ())  # type: ignore[arg-type]

    def notices(self, noticed: decisions.HostLost | decisions.CheckpointsFailed) -> None:
        """The protocol notices by itself that the pipeline must go back."""
        self.supervisor.decided(self.protocol.handle(noticed))

    def open_ahead(
        self, query_id: str, operators: tuple[OperatorRecord, ...], failed: Callable[[str], None]
    ) -> None:
        self.opened.append((query_id, operators))
        self.failed.append(failed)

    def commit(self, id: int, query: Handle, shard: Handle) -> None:
        queries = (QueryRecord("q", id, query),)
        operators = (OperatorRecord("op", "q", "{}", {}, (shard,)),)
        self.catalog.commit(make_manifest(id, queries=queries, operators=operators))

    def key(self, what: str) -> str:
        manifest = self.catalog.read(2)
        handle = manifest.queries[0].files if what == "query" else manifest.operators[0].shards[0]
        assert handle is not None
        return handle.files[0].key

    def damage(self, what: str, how: str) -> str:
        key = self.key(what)
        self.catalog.store.delete(key)
        if how == "changed":
            self.catalog.store.write(key, b"x")
        return key


@pytest.fixture
def restart() -> RestartStrategy:
    return FixedDelay("0 s", attempts=3)


def made_setup(
    directory: Path, restart: RestartStrategy, local_recovery: object, patch: pytest.MonkeyPatch
) -> Iterator[Supervised]:
    made = Supervised(directory, restart, local_recovery)
    patch.setattr(launcher, "start_spark", made.starts.start)
    yield made
    made.supervisor.close()
    made.directories.close()


@pytest.fixture
def setup(tmp_path: Path, restart: RestartStrategy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    yield from made_setup(tmp_path, restart, None, monkeypatch)


@pytest.fixture
def started(setup: Supervised) -> list[Any]:
    """The runs that were started."""
    return setup.starts.runs


@attrs.frozen
class TouchedSink(AtLeastOnceSink):
    """Tells when it is prepared."""

    touched: list[str] = attrs.field(factory=list)
    then: Callable[[], object] = lambda: None

    def begin(self, query: str, beginning: StartPoint) -> None:
        self.touched.append(query)
        self.then()


@pytest.mark.parametrize("when", ["while files are restored", "before Spark starts"])
def test_a_driver_that_is_overtaken_while_it_restores_touches_nothing_of_its_successor(
    setup: Supervised, started: list[Any], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    fence, restore = setup.checkpoints.watch, launcher.restore_query

    def overtaken() -> None:
        fence.fenced = FencedError("file:///store", 1, 2, "another driver")

    def slow(*args: Any, **kwargs: Any) -> Any:
        found = restore(*args, **kwargs)
        if when == "while files are restored":
            overtaken()
        return found

    monkeypatch.setattr(launcher, "restore_query", slow)
    sink = TouchedSink("noop", then=overtaken)
    with pytest.raises(FencedError):
        setup.supervisor.start(attrs.evolve(setup.definition, sink=sink))
    assert bool(sink.touched) == (when == "before Spark starts")
    assert not started


class FullDisk(AtLeastOnceSink):
    def mark(self, query: str, owner: SinkOwner, proof: FenceProof) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("fails", ["mark", "thread"])
def test_a_start_that_fails_after_spark_has_started_leaves_no_writer_that_nobody_knows(
    setup: Supervised, started: list[Any], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    definition = setup.definition
    if fails == "mark":
        definition = attrs.evolve(definition, sink=FullDisk("parquet"), table="t")
    with monkeypatch.context() as patch, pytest.raises((OSError, RuntimeError)):
        if fails == "thread":
            patch.setattr(threading.Thread, "start", refuse_a_thread)
        setup.supervisor.start(definition)
    assert [run.isActive for run in started] == [False]
    assert not setup.runs.all()


_start_thread = threading.Thread.start


def refuse_a_thread(thread: threading.Thread) -> None:
    if thread.name in ("chandy-q", "chandy-fenced"):
        raise RuntimeError("can't start new thread")
    _start_thread(thread)


@pytest.mark.parametrize("restart", [NoRestart()])
@pytest.mark.parametrize(
    ("how", "error"),
    [("changed", DamagedError("s", "k", "x", "y")), ("missing", ObjectMissingError("s", "k"))],
)
def test_damage_that_a_task_has_met_fails_the_pipeline_with_the_checkpoint_to_take_instead(
    setup: Supervised, how: str, error: Exception
) -> None:
    setup.starts.give(FailedRun(of_a_task(error)))
    key = setup.damage("shard", how)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(
        DamagedCheckpointError, match=r"checkpoint 2 .*newest intact .* 1: start with restore"
    ) as caught:
        query.awaitTermination(DEADLINE)
    assert (caught.value.key, caught.value.checkpoint, caught.value.intact) == (key, 2, 1)


@pytest.mark.parametrize("restart", [FixedDelay("1 ms", attempts=6)])
@pytest.mark.parametrize(
    ("text", "in_place"),
    [
        # Once in place, once from the checkpoint, and then it is final.
        ("[BATCH_METADATA_NOT_FOUND] Unable to find batch /out/_spark_metadata/29", [False, True, False]),
        ("Traceback (most recent call last):\nValueError: not to raise", [False, True, True]),
        ("java.net.ConnectException: Connection refused", [False, *[True] * 6]),
        ("java.lang.IllegalStateException: Race while writing batch 3", [False, False, False]),
    ],
    ids=["Spark", "Python", "passing", "another writer"],
)
def test_a_query_that_fails_the_same_way_again_and_again_does_not_do_so_for_long(
    setup: Supervised, text: str, in_place: list[bool]
) -> None:
    setup.starts.give(FailedRun(text))
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(QueryFailedError) as caught:
        query.awaitTermination(DEADLINE)
    assert text in str(caught.value)
    assert [one.in_place for one in setup.supervisor.recoveries] == in_place
    setup.supervisor.close()
    # The user is told of the same, and of the end once.
    *attempts, end = setup.told
    assert [(type(one), one.in_place) for one in attempts if isinstance(one, Recovering)] == [
        (Recovering, one) for one in in_place[1:]
    ]
    assert all(text.splitlines()[-1] in one.cause for one in attempts if isinstance(one, Recovering))
    assert isinstance(end, PipelineEnded)
    assert text in str(end.error)
    assert not end.is_fenced


@attrs.frozen
class LostSources(QuerySources):
    """Sources that lose what a query goes on with."""

    after: int = 0
    """How often they still have it."""
    asked: list[Path] = attrs.field(factory=list)
    replaced: list[tuple[Path, ...]] = attrs.field(factory=list)

    def check(self, directory: Path, replaced: Iterable[Path] = ()) -> None:
        self.asked.append(directory)
        self.replaced.append(tuple(replaced))
        if len(self.asked) > self.after:
            raise SourceLostError("gone", "offset 5", "8 as the earliest")


def test_a_query_whose_source_has_lost_what_comes_next_is_not_started(
    setup: Supervised, started: list[Any]
) -> None:
    with pytest.raises(SourceLostError):
        setup.supervisor.start(attrs.evolve(setup.definition, sources=LostSources()))
    assert started == []
    assert setup.runs.all() == []


@pytest.mark.parametrize("restart", [FixedDelay("1 ms", attempts=6)])
def test_a_query_that_meets_such_a_loss_ends_with_it_and_is_not_tried_again(
    setup: Supervised,
) -> None:
    setup.starts.give(FailedRun("offset out of range"))
    sources = LostSources(after=1)
    query = setup.supervisor.start(attrs.evolve(setup.definition, sources=sources))
    with pytest.raises(SourceLostError, match="offset 5"):
        query.awaitTermination(DEADLINE)
    assert [one.in_place for one in setup.supervisor.recoveries] == [False]
    assert len(sources.asked) == 2


@pytest.mark.parametrize("restart", [NoRestart()])
def test_damage_that_is_found_before_a_task_needs_the_shard_ends_the_query(setup: Supervised) -> None:
    key = setup.damage("shard", "changed")
    query = setup.supervisor.start(setup.definition)
    (run,) = setup.runs.all()
    setup.supervisor.shards_not_opened("another", "of a run that is over", FailureCode.UNREADABLE)
    setup.supervisor.shards_not_opened(run.query_id, "other bytes", FailureCode.UNREADABLE)
    with pytest.raises(DamagedCheckpointError, match=r'restore="1".*chandy verify') as caught:
        query.awaitTermination(DEADLINE)
    assert (caught.value.key, caught.value.checkpoint, caught.value.intact) == (key, 2, 1)


@pytest.mark.parametrize("restart", [NoRestart()])
def test_bytes_that_were_damaged_on_their_way_to_a_host_end_nothing(setup: Supervised) -> None:
    query = setup.supervisor.start(setup.definition)
    (run,) = setup.runs.all()
    setup.supervisor.shards_not_opened(run.query_id, "other bytes", FailureCode.UNREADABLE)
    setup.supervisor.close()
    assert query.exception() is None


def test_damage_that_the_driver_meets_names_the_checkpoint_to_take_instead(setup: Supervised) -> None:
    key = setup.damage("query", "changed")
    with pytest.raises(DamagedCheckpointError) as caught:
        setup.supervisor.start(setup.definition)
    assert (caught.value.key, caught.value.checkpoint, caught.value.intact) == (key, 2, 1)


@pytest.mark.parametrize("restart", [NoRestart()])
def test_a_task_that_only_says_so_fails_as_it_says(setup: Supervised) -> None:
    # Bytes that were damaged on their way.
    setup.starts.give(FailedRun(of_a_task(DamagedError("s", "k", "x", "only in passing"))))
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(QueryFailedError, match="only in passing"):
        query.awaitTermination(DEADLINE)


@pytest.mark.parametrize("restart", [NoRestart()])
@pytest.mark.parametrize(
    ("batch", "error"), [(3, ProcessorFailedError), (2, QueryFailedError), (1, QueryFailedError)]
)
def test_a_processors_failure_explains_that_of_its_query_until_its_batch_has_committed(
    setup: Supervised,
    caplog: pytest.LogCaptureFixture,
    batch: int,
    error: type[Exception],
) -> None:
    """The attempt may have been tried again, with success."""

    class Failing(RunningRun):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
            (run,) = setup.runs.all()
            (run.directory / "commits").mkdir(exist_ok=True)
            (run.directory / "commits" / "2").touch()
            setup.supervisor.processor_failed(
                TaskFailure(
                    run.query_id,
                    batch,
                    "op",
                    "key ('k',)",
                    "ValueError: no, at job.py:1 in f",
                    "Traceback ...",
                )
            )
            self.stopped.set()
            raise RuntimeError("the sink is full")

    setup.starts.give(Failing())
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(error):
        query.awaitTermination(DEADLINE)
    told = [record.message for record in caplog.records if "outcome=" in record.message]
    assert [line.splitlines()[0].partition(" outcome=")[0] for line in told] == [
        f'event="ValueError: no, at job.py:1 in f" query=q operator=op key="key (\'k\',)" batch={batch}'
        if error is ProcessorFailedError
        else 'event="the sink is full" query=q'
    ]
    assert ("Traceback ..." in told[0].splitlines()) is (error is ProcessorFailedError)


class Unreachable:
    """A store that cannot be read a number of times, once the state is lost."""

    def __init__(
        self, setup: Supervised, monkeypatch: pytest.MonkeyPatch, times: int, *, transient: bool
    ) -> None:
        self.left = times
        self.transient = transient
        self.runs = setup.starts.runs
        restore = launcher.restore_query

        def restore_if_reachable(*args: Any, **kwargs: Any) -> Any:
            if self.runs and self.left:
                self.left -= 1
                raise StoreFailedError("s3://far", "a.pack", "read", "503 Slow Down", self.transient)
            return restore(*args, **kwargs)

        monkeypatch.setattr(launcher, "restore_query", restore_if_reachable)
        setup.starts.give(FailedRun(of_a_task(HostLostError("unix://x", "killed"))), RunningRun)


def test_a_store_that_fails_in_passing_while_going_back_is_asked_again(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Unreachable(setup, monkeypatch, 2, transient=True)
    query = setup.supervisor.start(setup.definition)
    eventually(lambda: len(store.runs) == 2 or not query.isActive)
    assert (len(store.runs), store.left, query.isActive) == (2, 0, True)


@pytest.mark.parametrize(("transient", "asked"), [(True, 3), (False, 1)])
def test_a_store_that_stays_unreachable_ends_the_pipeline_after_all_attempts_and_one_that_refuses_at_once(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch, transient: bool, asked: int
) -> None:
    store = Unreachable(setup, monkeypatch, 9, transient=transient)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(StoreFailedError, match="503 Slow Down"):
        query.awaitTermination(DEADLINE)
    assert (len(store.runs), 9 - store.left) == (1, asked)


def test_a_recovery_waits_from_the_notice_of_the_failure_through_all_its_attempts(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Unreachable(setup, monkeypatch, 2, transient=True)
    setup.supervisor.start(setup.definition)
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    first, again = setup.supervisor.recoveries
    assert (first.waiting, first.noticed_at) == (0.0, first.begun_at)
    # The clock ticks by a second whenever it is looked at; each attempt looks at it at least once.
    assert again.waiting >= 2
    assert again.noticed_at == again.begun_at - again.waiting
    assert len(store.runs) == 2


# --- what goes wrong while it is mended ---------------------------------------------------------------------


GONE = RuntimeError("the JVM is gone")


def test_a_restart_in_place_that_cannot_start_is_tried_again(setup: Supervised) -> None:
    setup.starts.give(FailedRun("boom"), GONE, GONE, RunningRun)
    query = setup.supervisor.start(setup.definition)
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert (len(setup.starts.asked), query.isActive) == (4, True)
    assert [one.in_place for one in setup.told if isinstance(one, Recovering)] == [True] * 3
    assert isinstance(setup.runs.all()[0].spark, RunningRun)


def test_a_query_that_has_failed_runs_again_only_once_it_commits_or_has_found_no_data(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.starts.give(FailedRun("bang"), FailedRun("boom"), RunningRun)
    query = setup.supervisor.start(setup.definition)
    eventually(lambda: len(setup.supervisor.recoveries) == 3)
    assert (query.life.phase, query.life.attempts) == (QueryPhase.RESTARTING, 2)
    assert "boom" in query.life.because
    (run,) = setup.runs.all()
    assert run.spark is not None
    run.spark.status["message"] = "Waiting for data to arrive"
    with monkeypatch.context() as nothing_planned:
        nothing_planned.setattr(progress, "newest_planned", lambda logs: NO_BATCH)
        eventually(lambda: query.life.phase is QueryPhase.RUNNING)
    setup.supervisor.run_ended(run, RuntimeError("boom"))
    eventually(lambda: query.life.phase is QueryPhase.RESTARTING and len(setup.starts.runs) == 4)
    (run,) = setup.runs.all()
    setup.supervisor.first_commit(run, BatchId(0), setup.supervisor.recoveries[-1])
    assert (query.life.phase, query.life.because, query.life.attempts) == (QueryPhase.RUNNING, "", 0)


@pytest.mark.parametrize("lost", ["the run", "the coordinator's directory", "the whole runtime directory"])
def test_a_query_whose_working_directory_was_deleted_does_not_restart_in_it(
    setup: Supervised, lost: str
) -> None:
    def lose(asked: dict[str, Any]) -> FailedRun:
        run = Path(asked["location"]).parent
        folder = {"the run": run, "the coordinator's directory": run.parent}.get(lost, run.parent.parent)
        shutil.rmtree(folder)
        return FailedRun("boom")

    setup.starts.give(lose, RunningRun)
    query = setup.supervisor.start(setup.definition)
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert [(one.in_place, one.checkpoint) for one in setup.supervisor.recoveries] == [(False, 2), (False, 2)]
    assert query.isActive


def test_a_restart_in_place_that_never_starts_ends_the_query_after_all_attempts(
    setup: Supervised,
) -> None:
    setup.starts.give(FailedRun("boom"), GONE)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(PipelineFailedError, match="the JVM is gone"):
        query.awaitTermination(DEADLINE)
    assert len(setup.starts.asked) == 1 + 3


FENCED = FencedError("file:///store", 1, 2, "another driver")


def test_a_fenced_pipeline_that_has_lost_its_state_touches_no_sink_and_fails(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = setup.supervisor.start(setup.definition)
    touched: list[object] = []
    monkeypatch.setattr(launcher, "restore_query", lambda *args: touched.append(args))
    setup.checkpoints.watch.fenced = FENCED
    setup.notices(decisions.HostLost("it was frozen for too long"))
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)
    assert touched == []


def endless(store: Store, interrupted: threading.Event) -> Store:
    """Return a store with reads that end when they are interrupted, and only then."""

    class Endless(LocalStore):
        def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
            if not key.endswith(".json"):
                self.take_for_ever()
            return super().read(key, offset, length)

        def download(self, key: str, path: Path, size: int | None = None) -> str | None:
            self.take_for_ever()
            return super().download(key, path, size)

        @staticmethod
        def take_for_ever() -> None:
            READING.set()
            assert interrupted.wait(DEADLINE), "nobody has interrupted it"
            # The next part.
            interruptible(store, interrupted).list()

    assert isinstance(store, LocalStore)
    return Endless(store.root)


READING = threading.Event()
"""Set while a store is read that does not come to an end by itself."""


@pytest.fixture
def reads_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    READING.clear()
    monkeypatch.setattr(restore_point, "interruptible", endless)


def in_background(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_a_fence_ends_the_queries_while_the_driver_looks_for_damage(
    setup: Supervised, started: list[Any], reads_never_end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "restore_query", lambda *args, **kwargs: RestoredQuery("id", None))
    query = setup.supervisor.start(setup.definition)
    setup.supervisor.shards_not_opened(setup.runs.all()[0].query_id, "other bytes", FailureCode.UNREADABLE)
    assert READING.wait(DEADLINE)
    setup.supervisor.fenced(FENCED)
    assert started[0].stopped.wait(DEADLINE)
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)


def jvm_has_ended() -> None:
    raise JavaEndedError(7)


SYMPTOMS: dict[str, Callable[[Supervised, RunningRun], object]] = {
    "the fence": lambda setup, run: setup.supervisor.fenced(FENCED),
    "its JVM's end": lambda setup, run: run.stop(),
    "a target that refuses": lambda setup, run: setup.supervisor.output_failed(
        PipelineFailedError("a target")
    ),
    "checkpoints that fail": lambda setup, run: setup.notices(
        decisions.CheckpointsFailed(PipelineFailedError("checkpoints"))
    ),
    "a lost host": lambda setup, run: setup.notices(decisions.HostLost("a host")),
}


@pytest.mark.parametrize("restart", [NoRestart()])
@pytest.mark.parametrize("first", SYMPTOMS)
def test_a_driver_that_wakes_fenced_and_without_its_jvm_says_that_it_is_fenced_whatever_it_notices_first(
    setup: Supervised, started: list[Any], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """A standby has ended the JVM while this process was frozen."""
    query = setup.supervisor.start(setup.definition)
    setup.checkpoints.watch.fenced = FENCED
    monkeypatch.setattr(setup.supervisor, "_check_session", jvm_has_ended)
    SYMPTOMS[first](setup, started[0])
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)
    assert setup.supervisor.life.error is FENCED
    assert setup.protocol.lives[-1].phase is LifePhase.FENCED


def test_an_end_waits_for_no_store_that_never_says_whether_there_is_a_successor() -> None:
    asked, answered = threading.Event(), threading.Event()

    class Silent(KnownWatch):
        def check_now(self) -> None:
            asked.set()
            answered.wait(DEADLINE)

    noticed = PipelineFailedError("it")
    assert cause_of_end(noticed, Silent(), seconds=0.01) is noticed
    assert asked.wait(DEADLINE)
    answered.set()


def test_a_fence_ends_the_pipeline_though_no_thread_can_be_started(
    setup: Supervised, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = setup.supervisor.start(setup.definition)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse_a_thread)
        setup.supervisor.fenced(FENCED)
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)
    assert started[0].stopped.is_set()


def test_a_fence_ends_the_queries_while_another_one_begins_in_its_target(
    setup: Supervised, started: list[Any]
) -> None:
    """Which waits for the target, whatever happens here."""
    setup.supervisor.start(setup.definition)
    begins, may_begin = threading.Event(), threading.Event()

    def wait() -> None:
        begins.set()
        assert may_begin.wait(DEADLINE)

    other = attrs.evolve(setup.definition, name="other", sink=TouchedSink("noop", then=wait))

    def start() -> None:
        with pytest.raises(FencedError):
            setup.supervisor.start(other)

    starting = in_background(start)
    assert begins.wait(DEADLINE)
    setup.checkpoints.watch.fenced = FENCED
    setup.supervisor.fenced(FENCED)
    assert started[0].stopped.wait(DEADLINE)
    may_begin.set()
    starting.join(DEADLINE)
    assert len(started) == 1


def test_a_stop_ends_a_search_for_damage(
    setup: Supervised, reads_never_end: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "restore_query", lambda *args, **kwargs: RestoredQuery("id", None))
    query = setup.supervisor.start(setup.definition)
    setup.supervisor.shards_not_opened(setup.runs.all()[0].query_id, "other bytes", FailureCode.UNREADABLE)
    assert READING.wait(DEADLINE)
    closing = in_background(setup.supervisor.close)
    closing.join(DEADLINE)
    assert not closing.is_alive()
    assert query.exception() is None


@pytest.mark.parametrize("what", ["a fence", "a stop"])
def test_what_restores_for_long_ends_with_the_pipeline(
    setup: Supervised, started: list[Any], reads_never_end: None, what: str
) -> None:
    raised: list[Exception] = []

    def start() -> None:
        try:
            setup.supervisor.start(setup.definition)
        except ChandyError as error:
            raised.append(error)

    starting = in_background(start)
    assert READING.wait(DEADLINE)
    if what == "a fence":
        setup.supervisor.fenced(FENCED)
    else:
        setup.supervisor.stop_gracefully(("q",), 0.0)
    starting.join(DEADLINE)
    assert [type(error) for error in raised] == [OperationInterruptedError]
    assert not started


def test_a_graceful_stop_ends_what_waits_for_the_batch_that_it_cuts_short(setup: Supervised) -> None:
    setup.supervisor.start(setup.definition)
    setup.supervisor.stop_gracefully(("q",), 0.0)
    assert events.QueryStopped("q", setup.supervisor.current_batches()["q"]) in setup.protocol.told


def test_a_stop_that_is_withdrawn_lets_a_restore_read_again(setup: Supervised) -> None:
    query = setup.supervisor.start(setup.definition)
    stopped = setup.supervisor.stop_gracefully(("q",), 0.0)
    setup.notices(decisions.HostLost("it was killed"))
    setup.supervisor.resume(stopped)
    eventually(lambda: any(metrics.checkpoint == 2 for metrics in list(setup.supervisor.recoveries)[1:]))
    assert query.isActive


def test_a_pipeline_goes_back_only_when_it_is_known_which_checkpoint_is_the_latest(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = LostSources(after=9)
    setup.supervisor.start(attrs.evolve(setup.definition, sources=sources))
    (first,) = setup.runs.all()
    restored: list[int] = []
    restore = launcher.restore_query

    def note(*args: Any, **kwargs: Any) -> Any:
        restored.append(setup.checkpoints.unanswered)
        return restore(*args, **kwargs)

    monkeypatch.setattr(launcher, "restore_query", note)
    setup.checkpoints.unanswered = 2
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert restored == [-1]
    # What the first run has read behind the checkpoint is read again.
    assert sources.replaced == [(), (first.directory,)]


def test_nothing_runs_again_on_a_pipeline_that_another_driver_leads_and_nothing_is_said_to_have_failed(
    setup: Supervised, started: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    query = setup.supervisor.start(setup.definition)
    setup.supervisor.fenced(FENCED)
    # Behind it: what was lost meanwhile changes nothing any more.
    setup.notices(decisions.HostLost("it was frozen for too long"))
    with pytest.raises(FencedError):
        query.awaitTermination(DEADLINE)
    with pytest.raises(PipelineFailedError, match="failed for good"):
        setup.supervisor.start(attrs.evolve(setup.definition, name="another"))
    with pytest.raises(PipelineFailedError, match="failed for good"):
        setup.supervisor.resume(setup.runs.all())
    setup.supervisor.close()
    assert len(started) == 1
    assert started[0].stopped.is_set()
    (told,) = [record for record in caplog.records if "outcome=" in record.message]
    assert told.levelname == "WARNING" and "another driver leads the pipeline" in told.message


@pytest.mark.parametrize(
    ("error", "phase"),
    [(FENCED, LifePhase.FENCED), (PipelineFailedError("it"), LifePhase.FAILED)],
)
def test_checkpoints_that_end_with_the_pipeline_say_whether_it_was_fenced(
    setup: Supervised, error: Exception, phase: LifePhase
) -> None:
    setup.supervisor.start(setup.definition)
    setup.supervisor._fail_for_good(error)
    assert setup.protocol.lives[-1].phase is phase


@pytest.mark.parametrize("restart", [ExponentialBackoff(initial="1 ms", attempts=None)])
def test_a_pipeline_whose_jvm_has_ended_fails_however_often_it_may_restart(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.starts.give(FailedRun("Connection refused"))
    monkeypatch.setattr(setup.supervisor, "_check_session", jvm_has_ended)
    stepped_down = threading.Event()
    monkeypatch.setattr(setup.supervisor, "_on_failed", stepped_down.set)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(JavaEndedError, match="process 7, has ended"):
        query.awaitTermination(DEADLINE)
    # So its lease ends, and a standby takes over.
    assert stepped_down.wait(DEADLINE)


class Unstoppable(RunningRun):
    """A run that answers nothing any more."""

    def stop(self) -> None:
        raise ConnectionError("Answer from Java side is empty")


class Unanswering(Unstoppable):
    @property
    def isActive(self) -> bool:  # type: ignore[override]  # noqa: N802
        raise ConnectionError("Answer from Java side is empty")


@pytest.mark.parametrize("kind", [Unstoppable, Unanswering])
def test_a_stop_comes_to_its_end_whatever_the_queries_raise(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch, kind: type[RunningRun]
) -> None:
    setup.starts.give(kind, RunningRun)
    monkeypatch.setattr(Launcher, "_await_commit", lambda *args: None)
    queries = [setup.supervisor.start(attrs.evolve(setup.definition, name=name)) for name in ("q", "new")]
    assert setup.supervisor.stop_gracefully(("q", "new"), 0.0) == []
    # No checkpoint is taken of what may go on.
    assert setup.protocol.lives[-1].phase is LifePhase.FAILED
    assert setup.starts.runs[1].stopped.is_set()
    with pytest.raises(PipelineFailedError, match="query 'q' cannot be stopped"):
        queries[1].awaitTermination(DEADLINE)
    setup.supervisor.close()


def test_the_end_of_a_run_does_not_end_the_run_that_has_taken_its_place(setup: Supervised) -> None:
    """It was decided while the pipeline was going back, and is carried out afterwards."""
    query = setup.supervisor.start(setup.definition)
    (first,) = setup.runs.all()
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    setup.supervisor._carry_out(decisions.EndQuery("q", first.number))
    assert query.isActive
    (second,) = setup.runs.all()
    setup.supervisor._carry_out(decisions.EndQuery("q", second.number))
    assert not query.isActive


# --- another plan -------------------------------------------------------------------------------------------

RESCALED = RescaledError("q", "totals", 4)


def go_on(setup: Supervised, writer: str, timeout: float = 0.0) -> None:
    request = setup.supervisor.replanning.go_on_with("q", writer, RESCALED, timeout)  # type: ignore[arg-type]
    setup.supervisor.replanning.await_outcome("q", request)
    request.check()


def test_a_query_goes_on_with_another_plan_where_it_stands_and_keeps_it_on_the_way_back(
    setup: Supervised,
) -> None:
    query = setup.supervisor.start(setup.definition)
    (first,) = setup.runs.all()
    go_on(setup, "for 4 tasks")
    (second,) = setup.runs.all()
    assert isinstance(first.spark, RunningRun)
    assert first.spark.stopped.is_set()
    assert (second.is_stopping, second.ended, query.isActive) == (False, False, True)
    asked = setup.starts.asked
    assert [one["writer"] for one in asked] == [None, "for 4 tasks"]
    assert {one["location"] for one in asked} == {second.location}
    assert setup.supervisor.recoveries[-1].cause == str(RESCALED)
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: len(setup.supervisor.recoveries) == 3)
    assert [one.kind for one in setup.supervisor.recoveries] == ["start", "rescale", "from checkpoint"]
    assert setup.supervisor.recovered == {"start": 1, "rescale": 1, "from checkpoint": 1}
    assert [one["writer"] for one in asked] == [None, "for 4 tasks", "for 4 tasks"]


def test_a_query_that_cannot_start_with_another_plan_is_started_again(setup: Supervised) -> None:
    setup.starts.give(RunningRun, RuntimeError("a moment, please"), RunningRun)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(NotRescaledError, match="a moment, please"):
        go_on(setup, "for 4 tasks")
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert (query.isActive, query.definition.writer) == (True, "for 4 tasks")


@pytest.mark.parametrize("restart", [FixedDelay("1 h", attempts=3)])
def test_a_query_that_waits_to_start_with_another_plan_can_be_stopped(setup: Supervised) -> None:
    setup.starts.give(RunningRun, GONE)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(NotRescaledError, match="could not be started"):
        go_on(setup, "for 4 tasks")
    assert query.life.phase is QueryPhase.WAITING
    query.stop()
    assert (query.isActive, query.life.setback) == (False, None)
    with pytest.raises(NotRescaledError, match="a query that has ended"):
        go_on(setup, "for 5 tasks")
    assert (query.isActive, query.definition.writer) == (False, "for 4 tasks")


def test_a_run_that_cannot_be_stopped_is_replaced_all_the_same(setup: Supervised) -> None:
    setup.starts.give(Unstoppable, RunningRun)
    query = setup.supervisor.start(setup.definition)
    go_on(setup, "for 4 tasks")
    assert isinstance(setup.runs.all()[0].spark, RunningRun)
    assert query.isActive


def test_a_pipeline_that_has_failed_goes_on_with_nothing(setup: Supervised, started: list[Any]) -> None:
    setup.supervisor.start(setup.definition)
    setup.supervisor.output_failed(QueryFailedError("q", "the target is gone"))
    eventually(lambda: setup.supervisor.life.error is not None)
    with pytest.raises(NotRescaledError, match="the target is gone"):
        go_on(setup, "for 4 tasks")
    assert len(started) == 1


class FailsWhenTold(RunningRun):
    """A run that goes on until it is stopped, or is told what it fails with."""

    failure = ""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        is_over = super().awaitTermination(timeout)
        if is_over and self.failure:
            raise RuntimeError(self.failure)
        return is_over


@pytest.fixture
def in_batch(setup: Supervised) -> tuple[FailsWhenTold, Callable[[], Exception | None]]:
    """A run whose batch goes on, and what tells how the request for another plan that waits for it has ended."""
    setup.starts.give(FailsWhenTold, RunningRun)
    setup.supervisor.start(setup.definition)
    (run,) = setup.runs.all()
    (run.directory / "offsets").mkdir(exist_ok=True)
    (run.directory / "offsets" / "3").write_text("v1\n{}\n{}")
    pool = ThreadPoolExecutor(1)
    asked = pool.submit(go_on, setup, "for 4 tasks", 36_000.0)
    pool.shutdown(wait=False)
    eventually(lambda: "q" in setup.protocol.read(lambda state: state.failover.rescalings._by_query))
    assert isinstance(run.spark, FailsWhenTold)
    return run.spark, lambda: asked.exception(DEADLINE)


@pytest.mark.parametrize("loses", [True, False])
def test_a_run_that_fails_in_its_last_batch_with_a_plan_has_failed(
    setup: Supervised, in_batch: tuple[FailsWhenTold, Callable[[], Exception | None]], loses: bool
) -> None:
    spark, outcome = in_batch
    unusable = ChangelogBrokenError("/changelogs/op-0", 3, "bytes that are not those that were written")
    spark.failure = of_a_task(unusable) if loses else "the disk is full"
    spark.stopped.set()
    assert outcome() is None
    kinds = [one.kind for one in setup.supervisor.recoveries]
    assert kinds == ["start", "from checkpoint" if loses else "in place"]
    assert setup.supervisor.queries[0].definition.writer == "for 4 tasks"


@pytest.mark.parametrize("what", ["a stop", "a loss", "the end of the pipeline"])
def test_nobody_waits_for_a_query_that_waits_for_its_last_batch_with_a_plan(
    setup: Supervised, in_batch: tuple[FailsWhenTold, Callable[[], Exception | None]], what: str
) -> None:
    _, outcome = in_batch
    match what:
        case "a stop":
            setup.supervisor.interrupt()
            assert isinstance(outcome(), NotRescaledError)
            (stopped,) = setup.supervisor.stop_gracefully(("q",), 0.0)
            assert stopped.definition.writer is None
        case "a loss":
            setup.notices(decisions.HostLost("it was killed"))
            assert outcome() is None
            assert setup.supervisor.recoveries[-1].kind == "from checkpoint"
        case _:
            setup.supervisor.output_failed(QueryFailedError("q", "the target is gone"))
            assert isinstance(outcome(), NotRescaledError)


# --- failures that come together with something else -------------------------------------------------------


@pytest.mark.parametrize("restart", [NoRestart()])
def test_a_failure_that_cannot_be_explained_ends_the_pipeline(setup: Supervised) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise ConnectionError("the JVM does not answer")

    class Ended(RunningRun):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
            raise Unspeakable

    setup.starts.give(Ended)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(ConnectionError, match="the JVM does not answer"):
        query.awaitTermination(DEADLINE)


@pytest.mark.parametrize("restart", [NoRestart()])
def test_failures_are_decided_about_while_nobody_else_changes_the_queries(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a failure of a new run could be taken for one that the new run has mended."""
    has_started = threading.Event()

    class Failing(RunningRun):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
            has_started.wait(DEADLINE)
            raise RuntimeError("boom")

    setup.starts.give(Failing)
    right, free = Failover.decide, []

    def change() -> None:
        free.append(setup.supervisor._changing.acquire(blocking=False))
        if free[-1]:
            setup.supervisor._changing.release()

    def handle(machine: Failover, event: decisions.RecoveryEvent, now: float) -> decisions.Decision:
        if isinstance(event, decisions.RunEnded):
            # The lock is one thread's own.
            other = threading.Thread(target=change)
            other.start()
            other.join(DEADLINE)
        return right(machine, event, now)

    monkeypatch.setattr(Failover, "decide", handle)
    query = setup.supervisor.start(setup.definition)
    has_started.set()
    with pytest.raises(QueryFailedError, match="boom"):
        query.awaitTermination(DEADLINE)
    assert free == [False]


def test_a_query_that_is_stopped_between_two_attempts_to_go_back_stays_stopped(
    setup: Supervised, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = setup.supervisor.start(setup.definition)

    def check_not_fenced() -> None:
        # The second attempt begins; the first has ended the run.
        if started[0].stopped.is_set():
            query.stop()

    monkeypatch.setattr(setup.checkpoints.watch, "check_now", check_not_fenced)
    setup.checkpoints.unanswered = 1
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert (len(started), query.isActive, query.exception()) == (1, False, None)


def test_a_stop_that_is_withdrawn_lets_the_pipeline_go_back(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = setup.supervisor.start(setup.definition)
    stop = threading.Thread(target=lambda: setup.supervisor.stop_gracefully(("q",), 0.0))
    await_manifests = setup.checkpoints.await_manifests

    def wait_while_somebody_stops() -> bool:
        if stop.ident is None:
            stop.start()
            eventually(lambda: setup.supervisor.life.is_ending)
        return await_manifests()

    monkeypatch.setattr(setup.checkpoints, "await_manifests", wait_while_somebody_stops)
    setup.checkpoints.unanswered = 1
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: stop.ident is not None)
    stop.join(DEADLINE)
    # Nothing was running, so nothing was stopped.
    setup.supervisor.resume([])
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    assert (query.isActive, query.exception()) == (True, None)


@pytest.mark.parametrize("restart", [FixedDelay("1 h", attempts=3)])
def test_a_stop_before_the_pipeline_goes_back_ends_its_savepoint_at_once(setup: Supervised) -> None:
    setup.supervisor.start(setup.definition)
    setup.notices(decisions.HostLost("it was killed"))
    eventually(lambda: setup.supervisor.life.setback is not None)
    setup.supervisor.stop_gracefully(("q",), 0.0)
    stopping = setup.protocol.lives[-1]
    assert (stopping.phase, stopping.takes_checkpoints) == (LifePhase.STOPPING, False)
    assert "it was killed" in stopping.because


def test_a_stop_ends_its_savepoint_when_the_pipeline_must_go_back_and_lets_it_go_back_then(
    setup: Supervised,
) -> None:
    def suspended() -> bool:
        return not setup.protocol.lives[-1].takes_checkpoints

    query = setup.supervisor.start(setup.definition)
    stopped = setup.supervisor.stop_gracefully(("q",), 0.0)
    assert not suspended()
    setup.notices(decisions.HostLost("it was killed"))
    eventually(suspended)
    setup.supervisor.resume(stopped)
    eventually(lambda: len(setup.supervisor.recoveries) == 2)
    # It was not started where it stood first.
    assert len(setup.starts.runs) == 2
    assert query.isActive


def test_a_stop_that_cannot_be_withdrawn_ends_all_queries_with_the_reason(setup: Supervised) -> None:
    queries = [setup.supervisor.start(attrs.evolve(setup.definition, name=name)) for name in ("new", "newer")]
    stopped = setup.supervisor.stop_gracefully(("newer", "new"), 0.0)
    setup.starts.give(RunningRun, GONE)
    with pytest.raises(PipelineFailedError, match="the JVM is gone"):
        setup.supervisor.resume(stopped)
    for query in queries[1:]:
        with pytest.raises(PipelineFailedError, match="the JVM is gone"):
            query.awaitTermination(DEADLINE)
    assert not any(query.isActive for query in queries)


def test_a_query_that_has_started_again_stays_so_while_another_cannot(setup: Supervised) -> None:
    both = threading.Event()

    class Failing(FailedRun):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
            both.wait(DEADLINE)
            raise RuntimeError("boom")

    def refuse_once(asked: dict[str, Any]) -> FailedRun:
        if asked["query_name"] == "newer" and names().count("newer") == 2:
            raise GONE
        return RunningRun()

    def names() -> list[str]:
        return [one["query_name"] for one in setup.starts.asked]

    setup.starts.give(Failing("boom"), Failing("boom"), refuse_once)
    for name in ("new", "newer"):
        setup.supervisor.start(attrs.evolve(setup.definition, name=name))
    both.set()
    eventually(lambda: len(setup.supervisor.recoveries) == 4)
    assert (names().count("new"), names().count("newer")) == (2, 3)


def restored(host: str, files: float, opening: float, found: int, downloaded: int) -> ShardsRestored:
    return ShardsRestored(host, "id", "op", 0.0, files, opening, found, downloaded)


def test_a_recovery_has_the_longest_of_its_restores_and_the_bytes_of_all() -> None:
    recovery = RecoveryMetrics("lost", 2, False, 100.0)
    recovery.restored(restored("a", 1.0, 0.5, 10, 1))
    recovery.restored(restored("b", 2.0, 0.25, 20, 2))
    recovery.restored(restored("c", 1.5, 0.5, 30, 3))
    assert (recovery.files, recovery.opening) == (2.0, 0.25)
    assert (recovery.found_bytes, recovery.downloaded_bytes) == (60, 6)


def test_a_restore_belongs_to_the_recovery_of_its_query_until_the_first_commit(
    setup: Supervised,
) -> None:
    setup.supervisor.start(setup.definition)
    (recovery,) = setup.supervisor.recoveries
    (run,) = setup.runs.all()
    setup.supervisor.shards_restored(ShardsRestored("host", "another", "op", 0.5, 1.0, 1.0, 1, 1))
    setup.supervisor.shards_restored(ShardsRestored("host", run.query_id, "op", 0.5, 2.0, 1.0, 5, 7))
    assert (recovery.ahead, recovery.files, recovery.opening, recovery.found_bytes) == (0.5, 2.0, 1.0, 5)
    commits = run.directory / "commits"
    commits.mkdir(exist_ok=True)
    (commits / str(progress.newest_committed(run.directory) + 1)).touch()
    eventually(lambda: recovery.first_batch is not None)
    # A shard that moves to another host later.
    setup.supervisor.shards_restored(ShardsRestored("other", run.query_id, "op", 9.0, 9.0, 1.0, 9, 9))
    assert (recovery.files, recovery.found_bytes) == (2.0, 5)


def test_a_runs_shards_are_opened_ahead_of_it(setup: Supervised) -> None:
    record = OperatorRecord("op", "q", "{}", {}, (None,))
    opened_before: list[int] = []

    def start(asked: dict[str, Any]) -> RunningRun:
        opened_before.append(len(setup.opened))
        return RunningRun()

    setup.starts.give(start)
    setup.supervisor.start(attrs.evolve(setup.definition, operators=(record,)))
    (run,) = setup.runs.all()
    assert setup.opened == [(run.query_id, (record,))]
    assert opened_before == [1]


def start_and_commit(asked: dict[str, Any]) -> RunningRun:
    """Start a run whose first batch commits before anybody looks."""
    directory = Path(asked["location"])
    (directory / "commits").mkdir(exist_ok=True)
    (directory / "commits" / str(progress.newest_committed(directory) + 1)).touch()
    return RunningRun()


def test_a_first_batch_that_commits_while_spark_starts_is_the_first(setup: Supervised) -> None:
    setup.starts.give(start_and_commit)
    setup.supervisor.start(setup.definition)
    (recovery,) = setup.supervisor.recoveries
    eventually(lambda: recovery.first_batch is not None)


@pytest.mark.parametrize("restart", [NoRestart()])
@pytest.mark.parametrize("failure", [None, "the batch after it"])
def test_a_run_that_ends_as_soon_as_its_first_batch_has_committed_has_had_one(
    setup: Supervised, failure: str | None
) -> None:
    class Once(RunningRun):
        def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
            (run,) = setup.runs.all()
            (run.directory / "commits").mkdir(exist_ok=True)
            (run.directory / "commits" / "0").touch()
            self.stopped.set()
            if failure is not None:
                raise RuntimeError(failure)
            return True

    setup.starts.give(Once)
    query = setup.supervisor.start(attrs.evolve(setup.definition, name="new"))
    with contextlib.nullcontext() if failure is None else pytest.raises(QueryFailedError, match=failure):
        query.awaitTermination(DEADLINE)
    recovery = setup.supervisor.recoveries[0]
    assert recovery.first_batch is not None
    # It was a start.
    assert not any(isinstance(one, Recovered) for one in setup.told)


def test_the_user_is_told_of_a_recovery_once_its_first_batch_has_committed(setup: Supervised) -> None:
    setup.starts.give(FailedRun("boom"), start_and_commit)
    setup.supervisor.start(setup.definition)
    eventually(lambda: len(setup.told) == 2)
    recovering, recovered = setup.told
    assert isinstance(recovering, Recovering)
    assert isinstance(recovered, Recovered)
    assert recovered.query == "q"
    assert recovered.recovery.first_batch is not None
    assert (recovered.recovery.cause, recovered.recovery.in_place) == (recovering.cause, recovering.in_place)
    setup.supervisor.close()
    assert [type(one) for one in setup.told[2:]] == [PipelineEnded]
    assert setup.told[-1] == PipelineEnded(at=setup.told[-1].at, error=None)


def test_a_stop_in_the_middle_of_a_failure_tells_of_the_failure(setup: Supervised) -> None:
    error = FencedError("file:///store", 1, 2, "another driver")
    setup.supervisor._decide(decisions.FatalError(error))
    setup.supervisor.close()
    (end,) = setup.told
    assert isinstance(end, PipelineEnded)
    assert (end.error, end.is_fenced) == (error, True)


def test_the_user_is_told_of_checkpoints(setup: Supervised) -> None:
    manifest = setup.catalog.read(2)
    setup.supervisor.checkpoint_completed(manifest, "file:///s/p/savepoints/x")
    setup.supervisor.news.failed(CheckpointError(3, Reason.EXPIRED, "slow"))
    ended = CheckpointStatistics(3, CheckpointKind.MANUAL, 5.0)
    setup.supervisor.news.measured(ended)
    setup.supervisor.news.host_replaced("state host a is gone", 2, 1)
    completed, failed, measured, replaced = setup.told
    assert replaced == HostReplaced(at=replaced.at, why="state host a is gone", promoted=2, reopened=1)
    assert measured == CheckpointMeasured(at=measured.at, statistics=ended)
    assert isinstance(completed, CheckpointCompleted)
    assert (completed.checkpoint.id, completed.checkpoint.uri) == (2, "file:///s/p/savepoints/x")
    assert isinstance(failed, CheckpointFailed)
    assert (failed.id, failed.reason, failed.detail) == (3, Reason.EXPIRED, "slow")


@pytest.mark.parametrize("operators", [(), (OperatorRecord("op", "q", "{}", {}, (None,)),)])
def test_spark_is_told_whether_a_query_has_state_that_it_does_not_see(
    setup: Supervised, operators: tuple[OperatorRecord, ...]
) -> None:
    setup.supervisor.start(attrs.evolve(setup.definition, operators=operators))
    assert [one["stateful"] for one in setup.starts.asked] == [bool(operators)]


@pytest.mark.parametrize("restart", [NoRestart()])
def test_a_run_that_cannot_be_followed_ends_its_query_with_the_reason(
    setup: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(directory: Path, batch: int) -> bool:
        raise PermissionError(f"{directory}/commits")

    monkeypatch.setattr(launcher.progress, "is_committed", unreadable)
    query = setup.supervisor.start(setup.definition)
    with pytest.raises(QueryFailedError, match="commits"):
        query.awaitTermination(DEADLINE)
    assert setup.starts.runs[0].stopped.is_set()


# --- resuming from local state -------------------------------------------------------------------------------


class LeftAt6:
    """Local recovery with a query that the previous driver left at batch 6."""

    def __init__(self, directory: Path) -> None:
        (directory / "commits").mkdir(parents=True)
        (directory / "commits" / "6").touch()
        self.where = ResumableRun(ResumePoint("before", 2, 6), directory)
        self.over_: list[str] = []
        self.order: list[str] = []

    def leftover(self, *_: object) -> ResumableRun:
        return self.where

    def left(self, query: str) -> tuple[Path, ...]:
        return ()

    def resumable(self, *_: object) -> dict[str, ResumableRun]:
        return {}

    def record(self, *_: object) -> None:
        self.order.append("recorded")

    def forget_leftovers(self) -> None:
        self.order.append("nobody else resumes")

    def erase_records(self, *_: object) -> None:
        self.order.append("not to be resumed")

    def delete_changelogs(self, query_ids: list[str]) -> None:
        self.over_ += query_ids

    def close(self) -> None:
        pass


@pytest.fixture
def left(tmp_path: Path) -> LeftAt6:
    return LeftAt6(tmp_path / "left" / "1-q" / "checkpoint")


@pytest.fixture
def resuming(
    left: LeftAt6, tmp_path: Path, restart: RestartStrategy, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Supervised]:
    yield from made_setup(tmp_path, restart, left, monkeypatch)


def test_a_query_resumes_in_a_copy_of_its_working_directory(resuming: Supervised, left: LeftAt6) -> None:
    resuming.supervisor.start(resuming.definition)
    (run,) = resuming.runs.all()
    assert progress.newest_committed(run.directory) == 6
    assert run.directory != left.where.directory
    (recovery,) = resuming.supervisor.recoveries
    assert (recovery.in_place, recovery.checkpoint) == (True, 2)
    # The files from which it resumed are deleted after its first commit.
    assert left.over_ == []
    (run.directory / "commits" / "7").touch()
    eventually(lambda: left.over_ == ["before"])
    eventually(lambda: not left.where.directory.parent.exists())


def test_a_broken_changelog_sends_an_idle_query_back_and_is_told(
    resuming: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    resuming.supervisor.start(resuming.definition)
    (run,) = resuming.runs.all()
    why, code = "a changelog does not lead there", FailureCode.STATE_UNUSABLE
    resuming.supervisor.shards_not_opened(run.query_id, why, code)
    eventually(lambda: len(resuming.supervisor.recoveries) == 2)
    assert not resuming.supervisor.recoveries[1].in_place
    assert "a query does not resume where it stood" in caplog.text
    assert f"changelogs that cannot be trusted: {why}" in caplog.text


def test_a_rollback_that_failed_half_way_leaves_no_run_to_resume_from(
    resuming: Supervised, left: LeftAt6, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next driver could resume behind a sink that the second attempt has rolled back."""
    unnoted: list[list[str]] = []
    monkeypatch.setattr(left, "erase_records", lambda runs: unnoted.append([run.query_id for run in runs]))
    resuming.supervisor.start(resuming.definition)
    (first,) = resuming.runs.all()
    resuming.starts.give(RuntimeError("Spark does not start"), RunningRun)
    resuming.failed[0]("no state host starts")
    eventually(lambda: len(resuming.supervisor.recoveries) == 2)
    assert len(resuming.starts.asked) == 1 + 2
    assert unnoted[0] == [first.query_id]
    assert first.query_id in unnoted[1]
    assert len(unnoted[1]) > 1
    eventually(lambda: not first.directory.parent.exists())


def test_shards_that_cannot_be_opened_at_the_resume_point_send_the_query_back_once(
    resuming: Supervised, left: LeftAt6, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = launcher.restore_query

    def restoring(*args: Any, **kwargs: Any) -> Any:
        left.order.append("rolled back")
        return restore(*args, **kwargs)

    monkeypatch.setattr(launcher, "restore_query", restoring)
    resuming.supervisor.start(resuming.definition)
    (failed,) = resuming.failed
    failed("no state host starts")
    eventually(lambda: len(resuming.supervisor.recoveries) == 2)
    (run,) = resuming.runs.all()
    assert [recovery.in_place for recovery in resuming.supervisor.recoveries] == [True, False]
    assert run.resumed is None
    assert left.over_[:1] == ["before"]
    # If it is killed in between, nobody may resume a run whose sink has been rolled back.
    assert left.order == ["recorded", "nobody else resumes", "not to be resumed", "rolled back", "recorded"]
    # Said of a run that is over; and what comes from the checkpoint alone is left to the tasks.
    failed("its claim was refused")
    resuming.failed[-1]("no state host starts")
    resuming.supervisor.close()
    assert len(resuming.supervisor.recoveries) == 2
