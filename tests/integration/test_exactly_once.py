"""State and file sink are exactly once whatever is killed: drivers, state hosts and tasks that really die."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from chandy.coordinator.sink_log import newest

from . import drivers
from .drivers import EVENT, Output, add_file, answer

pytestmark = pytest.mark.spark

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(drivers)

DEADLINE = 90.0
AHEAD = 8
"""How many input files there are that no batch has taken yet."""


# --- what is killed --------------------------------------------------------------------------------------


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A runtime directory of the test's own. Short: sockets are in it."""
    path = Path(tempfile.mkdtemp(prefix="chx"))
    yield path
    for pid in hosts(path):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def local(runtime: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, for coordinators in this process and for the session's workers."""
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", str(runtime))
    monkeypatch.setitem(spark.sparkContext.environment, "CHANDY_RUNTIME_DIR", str(runtime))
    return runtime


@pytest.fixture(scope="module")
def classes() -> Iterator[Path]:
    """Java classes of a Spark session, archived: a driver starts in half the time."""
    with tempfile.TemporaryDirectory(prefix="chandy-classes-") as folder:
        path = Path(folder) / "spark.jsa"
        subprocess.run(
            [sys.executable, drivers.__file__, "archive", str(path)], check=True, capture_output=True
        )
        yield path


def hosts(runtime: Path) -> set[int]:
    """The ids of the living state hosts with this runtime directory."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process that ends meanwhile, or has ended and is not reaped, shows nothing.
        with contextlib.suppress(OSError):
            marked = f"CHANDY_RUNTIME_DIR={runtime}".encode() in (process / "environ").read_bytes().split(
                b"\0"
            )
            if marked and b"chandy.state.host" in (process / "cmdline").read_bytes().split(b"\0"):
                found.add(int(process.name))
    return found


def host_directories(runtime: Path) -> set[str]:
    return {path.name for path in (runtime / "cache" / "hosts").iterdir() if path.is_dir()}


def left_over(runtime: Path) -> list[str]:
    """What is in a runtime directory beside lock files, empty folders and the cache of immutable files."""
    kept = runtime / "cache" / "files"
    return sorted(
        str(path.relative_to(runtime))
        for path in runtime.rglob("*")
        if not path.is_dir() and path.name != ".lock" and not path.is_relative_to(kept)
    )


def until(reached: Callable[[], object], what: str, deadline: float = DEADLINE) -> None:
    """Wait for something that must come."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not reached():
        assert time.monotonic() < end, f"not in {deadline:g} s: {what}"
        pause.wait(0.01)


class Driver:
    """A driver in a process of its own, with its JVM and workers in the same process group."""

    def __init__(self, folder: Path, runtime: Path, classes: Path, **options: object) -> None:
        defaults = {"folder": str(folder), "classes": str(classes), "interval": "400 ms", "marks": None}
        arguments = json.dumps({"master": "local[2]", **defaults, **options})
        self._log = (folder / f"driver-{time.time_ns()}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, drivers.__file__, "stream", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "CHANDY_RUNTIME_DIR": str(runtime)},
        )
        self.events: list[list[str]] = []
        self._lines: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(EVENT):
                self._lines.put(line.removeprefix(EVENT).split())
        self._lines.put(["ended"])

    def tell(self) -> None:
        """Let it go on: first from being warm to the stream, then from the stream to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(
        self, event: str, nth: int = 1, also: Callable[[list[str]], None] = lambda event: None
    ) -> list[str]:
        """Return the ``nth`` event of a kind from now on."""
        end = time.monotonic() + DEADLINE
        while True:
            try:
                found = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"no {event} in {DEADLINE:g} s, only {self.events}:\n{self.log}"
                ) from None
            self.events.append(found)
            also(found)
            nth -= found[0] == event
            if nth == 0:
                return found
            if found[0] in ("died", "ended"):
                raise AssertionError(f"no {event}, but {self.events}:\n{self.log}")

    def kill(self) -> None:
        """Kill it as a machine does that fails: Python and Java at once. Its state hosts live on."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while (found := self._lines.get(timeout=DEADLINE)) != ["ended"]:
            self.events.append(found)
        self._log.close()

    def all(self, event: str) -> list[int]:
        """The numbers of the events of a kind so far."""
        return [int(found[1]) for found in self.events if found[0] == event]

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-6000:]


@attrs.frozen
class Moment:
    """When a driver is killed: some time after an event."""

    event: str
    nth: int
    after: float
    """Seconds."""


def moments(seed: int) -> list[Moment]:
    """Twenty moments: while it constructs, restores and starts, between and within batches and checkpoints."""
    chance = random.Random(seed)
    kinds = ["constructing"] * 2 + ["starting"] * 4 + ["sank"] * 5 + ["triggered"] * 6 + ["completed"] * 3
    chance.shuffle(kinds)
    longest = {"constructing": 0.4, "starting": 2.0, "sank": 0.3, "triggered": 0.25, "completed": 0.1}
    return [
        Moment(
            kind,
            1 if kind in ("constructing", "starting") else chance.randint(1, 4),
            chance.uniform(0, longest[kind]),
        )
        for kind in kinds
    ]


class Feed:
    """The input folder, with some files more than any batch has taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.files = 0
        self.add(AHEAD)

    def add(self, files: int) -> None:
        for _ in range(files):
            add_file(self.folder, self.files)
            self.files += 1

    def taken(self, event: list[str]) -> None:
        """Take word of a batch."""
        if event[0] == "sank":
            self.add(int(event[1]) + 1 + AHEAD - self.files)


def rows(spark: SparkSession, out: Path) -> Counter[Output]:
    return Counter(
        tuple(row) for row in spark.read.parquet(str(out)).select("k", "n", "total", "chain").collect()
    )


# --- drivers ---------------------------------------------------------------------------------------------


def test_a_driver_killed_at_random_moments_twenty_times_leaves_the_state_of_a_batch_job(
    spark: SparkSession, tmp_path: Path, runtime: Path, classes: Path
) -> None:
    feed = Feed(tmp_path / "in")
    lives: list[Driver] = []
    restored: list[int] = []
    # The next driver starts its JVM while this one works.
    spare = Driver(tmp_path, runtime, classes)
    try:
        for moment in moments(seed=20):
            driver, spare = spare, Driver(tmp_path, runtime, classes)
            lives.append(driver)
            driver.wait("warm")
            driver.tell()
            driver.wait(moment.event, moment.nth, feed.taken)
            # No wait for anything, but the moment itself.
            time.sleep(moment.after)
            driver.kill()
            feed.add(0)
            before = max((number for life in lives[:-1] for number in life.all("completed")), default=0)
            restored += driver.all("restored")
            assert all(number >= before for number in driver.all("restored"))
        spare.wait("warm")
        spare.tell()
        spare.wait("restored")
        restored += spare.all("restored")
        # One batch more, with every key: it shows all of the state.
        feed.add(3)
        while newest(tmp_path / "out") < feed.files - 1:
            spare.wait("sank")
        spare.tell()
        spare.wait("stopped")
        lives.append(spare)
    finally:
        spare.kill()
        for life in lives:
            life.kill()

    assert rows(spark, tmp_path / "out") == answer(range(feed.files))
    triggered = [number for life in lives for number in life.all("triggered")]
    assert len(triggered) == len(set(triggered))
    assert triggered == sorted(triggered)
    assert restored == sorted(restored)
    assert len(set(restored)) > 5
    print(restored, feed.files, len(triggered), [life.all("sank")[-1:] for life in lives])
