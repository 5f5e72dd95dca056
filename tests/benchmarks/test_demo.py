"""The demo waits for input, not for batches, and says in a sentence what is wrong with a driver; here without Spark."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks import demo, watching
from benchmarks.demo import Course, Stage, run
from benchmarks.driver import Position, QueryEndedError, positions
from benchmarks.flights import Day
from benchmarks.watching import DriverFailedError, Patience

from ..waiting import eventually

DAYS = tuple(Day(f"2013-01-{number:02}", 100) for number in range(1, 11))
COURSE = Course(DAYS, days_per_batch=2, kill_after=500)
FAKE = "tests.benchmarks.fake_driver"
STARTED = "process session coordinator query"


# --- how far the stream is ----------------------------------------------------------------------------------


@attrs.define
class ReportingQuery:
    """A query that makes a report at each look, and ends after the last."""

    reports: list[dict[str, Any] | None]
    error: Exception | None = None

    @property
    def isActive(self) -> bool:  # noqa: N802 (as PySpark calls it)
        return bool(self.reports)

    @property
    def lastProgress(self) -> Any:  # noqa: N802 (as PySpark calls it)
        return self.reports.pop(0)

    def exception(self) -> Exception | None:
        return self.error


def report(batch: int, entry: int, rows: int = 100) -> dict[str, Any]:
    return {
        "batchId": batch,
        "numInputRows": rows,
        "sources": [{"endOffset": f'{{"logOffset": {entry}}}'}],
    }


def follow(query: ReportingQuery, days: int = 10) -> list[Position]:
    found = positions(query, days, days_per_batch=2)  # type: ignore[arg-type]
    return [position for position in found if position is not None]


def test_the_stream_ends_with_its_last_day_though_two_entries_were_one_batch() -> None:
    query = ReportingQuery(
        [None, report(0, 0), report(0, 0), report(1, 2), report(2, 3), report(3, 4), report(4, 4, 0)]
    )
    assert follow(query) == [Position(2, 0), Position(6, 1), Position(8, 2), Position(10, 3)]
    assert query.reports == [report(4, 4, 0)]


def test_the_last_batch_may_have_fewer_days() -> None:
    assert follow(ReportingQuery([report(1, 1), report(2, 2)]), days=5) == [Position(4, 1), Position(5, 2)]


def test_a_query_with_nothing_left_to_do_is_at_its_end() -> None:
    assert follow(ReportingQuery([report(5, 4, rows=0)])) == [Position(10, 4)]


def test_a_query_that_ends_early_says_where_and_why() -> None:
    with pytest.raises(QueryEndedError, match=r"after 4 of 10 days: ValueError: no disk$"):
        follow(ReportingQuery([report(0, 1)], ValueError("no disk\nand much more")))


def test_a_number_of_flights_is_reached_with_a_day() -> None:
    assert [COURSE.days_with(flights) for flights in (1, 100, 101, 1000, 1001)] == [1, 1, 2, 10, 10]
    assert [COURSE.flights_after(days) for days in (0, 3, 10)] == [0, 300, 1000]
    assert COURSE.flights == 1000


# --- drivers that go wrong ----------------------------------------------------------------------------------


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, "file:///nowhere", driver=FAKE)


def play(stage: Stage, *scripts: str) -> tuple[str, str]:
    """Run the demo with fake drivers that go wrong; return what it has shown and what it failed with."""
    (stage.folder / "script").write_text("\n".join(scripts))
    console = Console(file=io.StringIO(), width=500)
    with pytest.raises(DriverFailedError) as caught:
        run(console, COURSE, stage)
    pids = stage.folder / "pids"
    for pid in pids.read_text().split() if pids.exists() else ():
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert not (stage.folder / "outlived").exists(), "a process was left alone"
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), re.sub(r"process \d+", "process N", str(caught.value))


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("die", "The first driver (process N) was killed by SIGKILL while starting Python"),
        ("process exit=3", "The first driver (process N) ended with exit code 3 while starting Spark"),
        (
            f"{STARTED} days=2 days=4 die",
            "The first driver (process N) was killed by SIGKILL while streaming, after 2013-01-04",
        ),
        (
            f"{STARTED} days=2 fail",
            "The first driver failed while streaming, after 2013-01-02: QueryEndedError: the query ended after 7 of "
            "10 days: it was stopped",
        ),
        (
            f"{STARTED} days=2",
            "The first driver failed while streaming, after 2013-01-02: it ended before it was killed",
        ),
    ],
)
def test_a_driver_that_dies_is_told_of_in_a_sentence_with_its_log(
    stage: Stage, script: str, sentence: str
) -> None:
    _, failure = play(stage, script)
    assert failure == f"{sentence}. Its log: {stage.log}"
    assert stage.log.exists()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("process session die", "(process N) was killed by SIGKILL while starting the coordinator"),
        (
            f"{STARTED} days=10 stopped",
            "failed while checking the result with a batch job: it ended before it had a result",
        ),
    ],
)
def test_so_is_the_second_driver(stage: Stage, script: str, sentence: str) -> None:
    shown, failure = play(stage, f"{STARTED} days=2 days=6 hang", script)
    assert "SIGKILL to process" in shown
    assert "after 2013-01-06 (batch 5)" in shown
    assert failure == f"The second driver {sentence}. Its log: {stage.log}"


def test_a_driver_that_hangs_is_told_of_twice_and_stopped(stage: Stage) -> None:
    impatient = attrs.evolve(stage, patience=Patience(notice=0.01, give_up=0.5))
    shown, failure = play(impatient, "hang")
    stalled = r"first driver \(process \S+\) made no progress for \d+ s while starting Python"
    log = re.escape(f"Its log: {stage.log}")
    assert len(re.findall(rf"  the {stalled}; it will be stopped after 0\.5 s\. {log}\n", shown)) == 1
    assert re.fullmatch(rf"The {stalled} and was stopped\. {log}", failure)


def test_a_jvm_that_outlives_its_driver_holds_nobody_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_JVM_SECONDS", 0.1)
    _, failure = play(stage, "process orphan die")
    assert failure.startswith("The first driver (process N) was killed by SIGKILL while starting Spark")


# --- the command --------------------------------------------------------------------------------------------


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the command makes; short, for sockets might be in it."""
    made = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(made))
    monkeypatch.setattr(demo, "read_flights", lambda: None)
    monkeypatch.setattr(demo, "write_days", lambda flights, folder: list(DAYS))
    monkeypatch.setattr(demo, "Stage", partial(Stage, driver=FAKE))
    yield made
    shutil.rmtree(made)


def test_the_command_shows_the_sentence_and_no_traceback_and_keeps_the_log(folder: Path) -> None:
    (folder / "script").write_text("process die")
    result = CliRunner().invoke(demo.main, [])
    assert result.exit_code == 2
    assert "was killed by SIGKILL while starting Spark." in result.output
    assert f"Its log: {folder}/driver.log" in result.output
    assert "Traceback" not in result.output
    assert (folder / "driver.log").exists()


def test_the_kill_cannot_come_after_the_last_flight(folder: Path) -> None:
    result = CliRunner().invoke(demo.main, ["--keep", "--kill-after-rows=1000"])
    assert result.exit_code == 2
    assert "there are 1,000 flights" in result.output
    assert not (folder / "pids").exists()
