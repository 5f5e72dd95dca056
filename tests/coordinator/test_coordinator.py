"""Creating and stopping a coordinator. The session and the runs of queries are plain objects."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from chandy import Page
from chandy.coordinator.checkpoint import Checkpoint
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.coordinator import CheckpointCoordinator
from chandy.coordinator.errors import (
    ArgumentError,
    ChandyError,
    CheckpointError,
    CoordinatorStoppedError,
    PipelineFailedError,
    PredecessorRunsError,
    SessionStoppedError,
    SetupError,
)
from chandy.coordinator.execution.service import Service, listen
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.recovery import launcher
from chandy.coordinator.spark import session
from chandy.coordinator.spark.progress import newest_committed
from chandy.coordinator.wiring import assembly, driver, ground
from chandy.state.local.changelog import FOLDER
from chandy.storage import FencedError
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.journal import read_journal
from chandy.storage.long_waits import Reminder

from .. import insides
from ..builders import make_manifest
from ..permits import printed
from ..waiting import DEADLINE, eventually
from .life_events import FAILED
from .stand_in_pipeline import Coordinated, OtherThread, Run, cluster, commit, made, stored
from .stand_in_pipeline import pipeline as pipeline
from .stand_ins import Spark

# --- making -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("restore", "restored"), [("latest", 2), ("none", None)])
def test_an_older_checkpoint_that_is_damaged_stands_in_nobodys_way(
    tmp_path: Path, restore: str, restored: int | None
) -> None:
    catalog = Catalog(LocalStore(tmp_path / "store" / "p"))
    catalog.take_over("the driver before", 1.0)
    for id in (1, 2):
        catalog.commit(make_manifest(id, queries=(), operators=()))
    catalog.store.write("checkpoints/1/manifest.json", b"{}")
    coordinator = made(cluster(), tmp_path, restore)
    found = coordinator.restored
    coordinator.stop()
    assert (found and found.id) == restored


# --- stopping -----------------------------------------------------------------------------------------------


def test_a_query_that_is_being_started_when_the_pipeline_stops_is_stopped_with_it(
    pipeline: Coordinated,
) -> None:
    stops: list[OtherThread] = []
    pipeline.on_start = lambda: stops.append(pipeline.meanwhile(pipeline.coordinator.stop))
    query = pipeline.start("late")
    assert stops[0].end().error is None
    assert not query.isActive
    assert not pipeline.runs[0].isActive


def test_what_is_added_while_the_pipeline_stops_is_refused(pipeline: Coordinated) -> None:
    frame: Any = None
    others: list[OtherThread] = []

    def add() -> None:
        others.append(pipeline.meanwhile(lambda: pipeline.start("late")))
        others.append(pipeline.meanwhile(lambda: pipeline.coordinator.aggregate(frame, ["k"], uid="late")))

    pipeline.start("early")
    pipeline.runs[0].on_stop = add
    pipeline.coordinator.stop()
    assert [type(other.end().error) for other in others] == [CoordinatorStoppedError] * 2
    assert [run.isActive for run in pipeline.runs] == [False]


def test_a_query_that_waits_for_a_stop_which_fails_is_started(pipeline: Coordinated, tmp_path: Path) -> None:
    others: list[OtherThread] = []
    early = pipeline.start("early")
    pipeline.runs[0].on_stop = lambda: others.append(pipeline.meanwhile(lambda: pipeline.start("late")))
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError):
        pipeline.coordinator.stop(savepoint=f"{tmp_path}/file/savepoint")
    late: Any = others[0].end().found
    assert (early.isActive, late.isActive) == (True, True)
    assert [run.isActive for run in pipeline.runs] == [False, True, True]
    pipeline.coordinator.stop()
    assert [run.isActive for run in pipeline.runs] == [False] * 3


def test_a_pipeline_that_fails_for_good_while_it_stops_with_a_savepoint_does_not_run_again(
    pipeline: Coordinated,
) -> None:
    fenced = FencedError("file:///store", 1, 2, "another driver")
    pipeline.start("q")
    pipeline.runs[0].on_stop = lambda: insides.supervisor(pipeline.coordinator)._fail_for_good(fenced)
    with pytest.raises(PipelineFailedError, match="another driver"):
        pipeline.coordinator.stop(savepoint="last")
    assert [run.isActive for run in pipeline.runs] == [False]
    with pytest.raises(PipelineFailedError, match="another driver"):
        pipeline.start("another")


def test_a_stop_with_a_savepoint_waits_for_no_checkpoint_whose_batch_was_cut_off(
    pipeline: Coordinated,
) -> None:
    pipeline.start("q")
    (run,) = insides.runs(pipeline.coordinator)
    (run.directory / "offsets").mkdir(exist_ok=True)
    (run.directory / "offsets" / "0").touch()
    # Its cut is the batch that is planned, and never commits.
    pending = pipeline.coordinator.checkpoint()
    eventually(
        lambda: insides.protocol(pipeline.coordinator).read(lambda p: p.waiting_for_commits()) == {"q": 0}
    )
    taken = pipeline.coordinator.stop(savepoint="last", timeout="0 s")
    error = pending.exception(DEADLINE)
    assert isinstance(error, CheckpointError)
    assert error.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
    assert taken is not None
    assert taken.batches == {"q": -1}


def test_two_stops_at_once_are_one_and_both_return_when_it_is_done(pipeline: Coordinated) -> None:
    others: list[OtherThread] = []
    left: list[list[Path]] = []

    def stop() -> None:
        pipeline.coordinator.stop()
        left.append(directories(pipeline.work))

    def stop_more() -> None:
        others.append(pipeline.meanwhile(stop))
        others.append(pipeline.meanwhile(lambda: pipeline.coordinator.stop(savepoint="last")))

    pipeline.start("q")
    pipeline.runs[0].on_stop = stop_more
    pipeline.coordinator.stop()
    assert [type(other.end().error) for other in others] == [type(None), CoordinatorStoppedError]
    assert left == [[]]
    assert pipeline.closed == 1


def test_a_stop_takes_a_last_checkpoint_of_what_has_committed(pipeline: Coordinated, tmp_path: Path) -> None:
    pipeline.start("q")
    commit(pipeline, 0)
    assert pipeline.coordinator.checkpoint().result(DEADLINE).batches == {"q": 0}
    commit(pipeline, 1)
    taken = pipeline.coordinator.stop()
    assert taken is not None
    assert taken.batches == {"q": 1}
    with made(cluster(), tmp_path) as following:
        assert following.restored == taken


@pytest.mark.parametrize("committed", [True, False])
def test_a_stop_takes_no_checkpoint_of_what_the_latest_one_has(
    pipeline: Coordinated, tmp_path: Path, committed: bool
) -> None:
    pipeline.start("q")
    if committed:
        commit(pipeline, 0)
        pipeline.coordinator.checkpoint().result(DEADLINE)
    before = stored(tmp_path)
    assert pipeline.coordinator.stop() is None
    assert stored(tmp_path) == before == ([1] if committed else [])


def test_a_stop_takes_no_checkpoint_if_it_is_told_not_to(pipeline: Coordinated, tmp_path: Path) -> None:
    pipeline.start("q")
    commit(pipeline, 0)
    assert pipeline.coordinator.stop(checkpoint=False) is None
    assert stored(tmp_path) == []


@pytest.mark.parametrize("error", ["the disk is full", None])
def test_a_stop_whose_last_checkpoint_fails_or_takes_too_long_ends_and_says_so(
    pipeline: Coordinated,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: str | None,
) -> None:
    answer: Future[Checkpoint] = Future()
    if error is not None:
        answer.set_exception(CheckpointError(1, Reason.IO_EXCEPTION, error))
    pipeline.start("q")
    commit(pipeline, 0)
    monkeypatch.setattr(insides.executor(pipeline.coordinator), "request", lambda kind, is_final: answer)
    assert pipeline.coordinator.stop(timeout="0 s") is None
    assert pipeline.closed == 1
    (line,) = [line for line in lines(caplog) if "no last checkpoint" in line]
    assert (error or "it was not complete after 0 s") in line


@pytest.fixture
def on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only state host would be on this machine; without operators there is none."""
    monkeypatch.setattr(driver, "is_here", lambda spark: True)


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.usefixtures("on_this_machine")
def test_after_a_stop_without_its_last_checkpoint_the_next_start_resumes(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Coordinated(tmp_path, monkeypatch)
    pipeline.start("q")
    commit(pipeline, 0)
    if fails:
        answer: Future[Checkpoint] = Future()
        monkeypatch.setattr(insides.executor(pipeline.coordinator), "request", lambda kind, is_final: answer)
    taken = pipeline.coordinator.stop(timeout="0 s" if fails else "1 min", checkpoint=fails)
    assert taken is None
    following = pipeline.coordinator = made(cluster(), tmp_path)
    query = pipeline.start("q")
    (recovery,) = following.recoveries
    (run,) = insides.runs(following)
    assert (recovery.in_place, newest_committed(run.directory)) == ((True, 0) if fails else (False, -1))
    query.stop()
    following.stop(checkpoint=False)
    # What it has left is for its successor alone, which has left nothing.
    assert not directories(tmp_path / "work")
    assert not list((tmp_path / "cache" / FOLDER).glob("*"))


def test_a_coordinator_that_has_failed_or_was_replaced_takes_no_last_checkpoint(
    pipeline: Coordinated, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.start("q")
    commit(pipeline, 0)
    successor = Catalog(LocalStore(tmp_path / "store" / "p")).take_over("another driver", 1.0)
    insides.supervisor(pipeline.coordinator).fenced(
        FencedError("s", successor.generation - 1, successor.generation, "another driver")
    )
    eventually(
        lambda: (
            insides.protocol(pipeline.coordinator).read(lambda state: state.life.why_over) is Reason.FENCED
        )
    )
    assert pipeline.coordinator.stop() is None
    assert stored(tmp_path) == []
    assert not any("no last checkpoint" in line for line in lines(caplog))


def test_a_session_that_is_stopped_beneath_a_pipeline_ends_it(pipeline: Coordinated, tmp_path: Path) -> None:
    pipeline.coordinator.stop()
    spark = cluster()
    writer: Any = SimpleNamespace(_df=None)
    with made(spark, tmp_path) as coordinator:
        query = coordinator.start(writer, name="q")
        spark.is_stopped = True
        pipeline.runs[-1].stop()
        with pytest.raises(SessionStoppedError, match="Stop the coordinator first"):
            query.awaitTermination(DEADLINE)
        assert not query.isActive


class EndedRun(Run):
    """A run whose JVM has ended."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        raise self.error

    recentProgress = status = lastProgress  # noqa: N815 (as in PySpark)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        Py4JNetworkError("Answer from Java side is empty"),
        # So of a call that was under way.
        Py4JError("An error occurred while calling o1.lastProgress"),
    ],
)
def test_a_query_whose_jvm_has_ended_still_answers(
    pipeline: Coordinated, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(launcher, "start_spark", lambda *args, **kwargs: EndedRun(error))
    query = pipeline.start("q")
    assert (query.lastProgress, query.recentProgress, query.id) == (None, [], "a UUID")
    assert query.status["message"].startswith("the JVM does not answer")


def test_no_checkpoint_drops_a_query_that_is_still_to_be_started(
    pipeline: Coordinated, tmp_path: Path
) -> None:
    """However long the program takes to start it; only a name gives its state up."""
    for name in ("a", "b"):
        pipeline.start(name)
    assert pipeline.coordinator.checkpoint().result(DEADLINE).batches == {"a": -1, "b": -1}
    pipeline.coordinator.stop(checkpoint=False)
    writer: Any = SimpleNamespace(_df=None)
    with made(cluster(), tmp_path) as second:
        second.start(writer, name="a")
        refused = second.checkpoint().exception(DEADLINE)
        assert isinstance(refused, CheckpointError)
        assert refused.reason is Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
        assert "b; start them, or, if" in refused.detail
        second.start(writer, name="b")
        assert second.checkpoint().result(DEADLINE).batches == {"a": -1, "b": -1}
        second.stop(checkpoint=False)
    with made(cluster(), tmp_path, permit=printed(refused)) as late:
        late.start(writer, name="a")
        # The permit was for the checkpoint before.
        again = late.checkpoint().exception(DEADLINE)
        assert isinstance(again, CheckpointError)
        late.stop(checkpoint=False)
    with made(cluster(), tmp_path, permit=printed(again)) as third:
        third.start(writer, name="a")
        assert third.checkpoint().result(DEADLINE).batches == {"a": -1}
        (life,) = Catalog(LocalStore(tmp_path / "store" / "p")).generations()
        assert life.permitted == ("dropped_queries b 2",)
        with pytest.raises(ArgumentError, match="dropped_queries"):
            third.start(writer, name="b")
        third.stop(checkpoint=False)


def test_a_driver_that_listens_says_how_its_pipeline_is(
    pipeline: Coordinated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.coordinator.stop()

    def ready(coordinator: CheckpointCoordinator) -> tuple[int, str]:
        try:
            with urlopen(f"{coordinator.monitor_url}/readyz", timeout=DEADLINE) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    with made(cluster(), tmp_path, page=Page("127.0.0.1:0")) as coordinator:
        assert ready(coordinator) == (503, "no query has been started\n")
        writer: Any = SimpleNamespace(_df=None)
        coordinator.start(writer, name="q")
        assert ready(coordinator) == (503, "query 'q' starts\n")
        insides.supervisor(coordinator).nothing_to_do(insides.run(coordinator, "q"))
        assert ready(coordinator) == (200, "ready\n")
        insides.supervisor(coordinator).output_failed(SetupError("it cannot go on", "anything", "a bad end"))
        eventually(lambda: "the pipeline has failed for good: it cannot go on" in ready(coordinator)[1])
        assert "query 'q' has ended" in ready(coordinator)[1]
    with pytest.raises(URLError):
        ready(coordinator)


def test_a_port_that_is_taken_is_said_before_anybody_is_fenced(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SetupError, match=f"metrics cannot be served on 127.0.0.1:{port}"):
            made(cluster(), tmp_path, page=Page(f"127.0.0.1:{port}"))
    assert not list(tmp_path.glob("store/p/generations/*"))


# --- a coordinator that cannot be made ----------------------------------------------------------------------


def directories(work: Path) -> list[Path]:
    return [path for path in work.iterdir() if path.is_dir()] if work.is_dir() else []


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("chandy-")}


def test_an_address_that_is_not_the_drivers_is_refused_before_anybody_is_fenced(tmp_path: Path) -> None:
    before = threads()
    with pytest.raises(SetupError, match=r"203\.0\.113\.7"):
        made(cluster("203.0.113.7"), tmp_path)
    assert not threads() - before
    assert not directories(tmp_path / "work")
    assert not list(tmp_path.glob("store/p/generations/*"))


@pytest.mark.parametrize(
    ("module", "part"),
    [
        (driver, "Catalog"),
        (assembly, "state_machine"),
        (driver, "QueryDirectories"),
        (ground, "Ticks"),
        (assembly, "Supervisor"),
        (assembly, "CheckpointExecutor"),
        (assembly, "Lookup"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_coordinator_that_cannot_be_made_leaves_nothing_running(
    module: ModuleType, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services: list[Service] = []

    def listening(host: str, token: str, name: str, **more: Any) -> Service:
        services.append(listen(host, token, name, **more))
        return services[-1]

    def fails(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(driver, "listen", listening)
    monkeypatch.setattr(module, part, fails)
    before = threads()
    with pytest.raises(OSError, match="no space left"):
        made(cluster(), tmp_path)
    assert not threads() - before
    assert not directories(tmp_path / "work")
    for service in services:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", service.server.port), timeout=DEADLINE).close()


def too_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime directory that others can enter."""
    (folder / "runtime").mkdir(mode=0o755)
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(folder / "runtime"))


def too_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime directory in which no host could have its socket."""
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(folder / ("long" * 25)))


def no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cache").write_text("a file")


def no_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "work").chmod(0o755)


def no_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "java_process", raises)


def damaged_latest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalStore(folder / "store" / "p").write("checkpoints/2/manifest.json", b"{}")


@pytest.mark.parametrize("trouble", [too_open, too_long, no_cache, no_work, no_java, damaged_latest])
def test_a_coordinator_that_cannot_run_fences_nobody(
    trouble: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    catalog = Catalog(LocalStore(tmp_path / "store" / "p"))
    (tmp_path / "work").mkdir(mode=0o700)
    runs = catalog.take_over("a healthy driver", 1.0)
    for id in (1, 2):
        catalog.commit(make_manifest(id, queries=(), operators=()))
    trouble(tmp_path, monkeypatch)
    with pytest.raises((ChandyError, OSError)):
        made(Spark("local[2]"), tmp_path)
    catalog.check_not_fenced(runs.generation)
    assert catalog.store.list("generations/") == ["generations/1.json", "generations/1.start.json"]


def test_a_coordinator_that_could_not_be_made_after_all_leaves_the_sinks_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "Supervisor", raises)
    with pytest.raises(CoordinatorStoppedError):
        made(cluster(), tmp_path)
    assert not list(tmp_path.glob("store/p/generations/*.driver.json"))


def test_a_coordinator_that_has_stopped_leaves_the_sinks_to_the_next(
    pipeline: Coordinated, tmp_path: Path
) -> None:
    pipeline.start("q")
    assert list(tmp_path.glob("store/p/generations/*.driver.json"))
    pipeline.coordinator.stop()
    assert not list(tmp_path.glob("store/p/generations/*.driver.json"))


def test_a_second_coordinator_in_a_process_first_stops_the_queries_of_the_first(
    pipeline: Coordinated, tmp_path: Path
) -> None:
    """As when a notebook's cell runs twice."""
    query = pipeline.start("q")
    active: list[bool] = []
    pipeline.runs[0].on_stop = lambda: active.append(pipeline.runs[0].isActive)
    with made(cluster(), tmp_path) as second:
        assert active[0]
        assert not pipeline.runs[0].isActive
        assert isinstance(query.exception(), FencedError)
        assert second.restored is None
        with pytest.raises(PipelineFailedError, match="process"):
            pipeline.start("another")


def test_a_second_coordinator_does_not_begin_while_a_query_of_the_first_goes_on(
    pipeline: Coordinated, tmp_path: Path
) -> None:
    class StuckError(Exception):
        pass

    def stuck() -> None:
        raise StuckError

    pipeline.start("q")
    pipeline.runs[0].on_stop = stuck
    with pytest.raises(PredecessorRunsError, match="this process"):
        made(cluster(), tmp_path, takeover_timeout="100 ms")
    pipeline.runs[0].stopped.set()
    made(cluster(), tmp_path).stop()
    # Although it was refused, the first one leads no more.
    assert refused(tmp_path) == [2]


def refused(folder: Path) -> list[int]:
    """Return the lives of drivers that have refused something, by the journal."""
    entries = read_journal(LocalStore(folder / "store" / "p"))
    return [one.generation for one in entries if one.what == "start refused"]


def test_a_query_that_is_refused_is_in_the_journal(pipeline: Coordinated, tmp_path: Path) -> None:
    pipeline.start("q")
    with pytest.raises(ChandyError):
        pipeline.start("q")
    pipeline.coordinator.stop()
    assert refused(tmp_path) == [1]


def test_a_coordinator_that_could_not_be_made_can_be_made_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken, pytest.raises(ChandyError):
        broken.setattr(assembly, "Lookup", raises)
        made(cluster(), tmp_path)
    with made(cluster(), tmp_path) as coordinator:
        assert coordinator.queries == ()


def raises(*_: object, **__: object) -> None:
    raise CoordinatorStoppedError("p")


# --- what the log says --------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name.startswith("chandy.")]


def test_every_line_names_its_pipeline_and_its_query(
    pipeline: Coordinated, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    other = CheckpointCoordinator(
        cluster(),
        pipeline="other",
        storage=str(tmp_path / "store"),
        config=CheckpointConfig(shared=True),
    )
    pipeline.start("q")
    (tmp_path / "file").touch()
    failed = pipeline.coordinator.savepoint(f"{tmp_path}/file/savepoint")
    assert failed.exception(DEADLINE) is not None
    eventually(lambda: any("no checkpoint" in line for line in lines(caplog)))
    pipeline.coordinator.stop()
    other.stop()
    assert [line for line in lines(caplog) if ("pipeline=p" in line) == ("pipeline=other" in line)] == []
    assert any("query started" in line and "query=q" in line for line in lines(caplog))
    assert any("coordinator started" in line and "pipeline=other" in line for line in lines(caplog))


def test_a_first_batch_that_takes_long_is_told_and_a_query_without_data_is_not(
    pipeline: Coordinated, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reminded = threading.Event()

    class Impatient(Reminder):
        def is_due(self, waited: float) -> bool:
            reminded.set()
            return True

    monkeypatch.setattr(launcher, "Reminder", Impatient)
    pipeline.start("q")
    assert reminded.wait(DEADLINE)
    assert not any("waiting for" in line for line in lines(caplog))
    (run,) = insides.runs(pipeline.coordinator)
    (run.directory / "offsets").mkdir()
    (run.directory / "offsets" / "0").touch()
    eventually(lambda: any("waiting for" in line for line in lines(caplog)))
    told = next(line for line in lines(caplog) if "waiting for" in line)
    assert told.startswith('event="waiting for the first batch to commit" pipeline=p query=q batch=0')


def test_a_checkpoint_that_fails_is_a_warning_and_one_that_a_policy_refuses_is_none(
    pipeline: Coordinated, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pipeline.start("q")
    (tmp_path / "file").touch()
    failed = pipeline.coordinator.savepoint(f"{tmp_path}/file/savepoint").exception(DEADLINE)
    insides.protocol(pipeline.coordinator).handle(FAILED)
    refused = pipeline.coordinator.checkpoint().exception(DEADLINE)
    assert isinstance(refused, CheckpointError)
    assert isinstance(failed, CheckpointError)
    levels = {
        record.message.split("reason=")[1].split()[0]: record.levelname
        for record in caplog.records
        if "no checkpoint" in record.message
    }
    assert levels == {refused.reason.value: "INFO", failed.reason.value: "WARNING"}
    assert refused.reason is Reason.COORDINATOR_SUSPENDED


def test_what_users_look_at_reads_well(pipeline: Coordinated) -> None:
    query = pipeline.start("q")
    taken = pipeline.coordinator.checkpoint().result(DEADLINE)
    assert repr(query) == "CheckpointedQuery(name='q', status=starts, guarantee=at least once)"
    assert repr(pipeline.coordinator).startswith("CheckpointCoordinator(pipeline='p', storage='file:///")
    assert taken.completed_time.timestamp() == pytest.approx(taken.completed_at)
    assert f"completed_at={taken.completed_time:%Y-%m-%d %H:%M:%S}" in repr(taken)
    assert f"status=completed, completed_at={taken.completed_time:%Y}" in repr(
        pipeline.coordinator.statistics()
    )
    assert len(repr(pipeline.coordinator.statistics())) < 2000
    query.stop()
    assert "status=has ended" in repr(query)


# --- what driver and hosts agree on -------------------------------------------------------------------------


def test_the_driver_keeps_files_of_snapshots_where_hosts_do(pipeline: Coordinated) -> None:
    told = pipeline.coordinator._operators.endpoint.cache
    assert insides.supervisor(pipeline.coordinator)._launcher._cache.files == FileCache(Path(told)).files


@pytest.mark.parametrize(
    ("hosts", "unclaimed", "what"),
    [(0, 0, "first batch"), (0, 8, "for Spark has none"), (2, 8, "claim shards"), (2, 0, "first batch")],
)
def test_a_start_that_takes_long_says_what_it_waits_for(hosts: int, unclaimed: int, what: str) -> None:
    assert what in launcher.awaited(hosts, unclaimed)
