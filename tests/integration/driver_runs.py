"""Drivers in processes of their own that take files and are killed, and what their output must be."""

from __future__ import annotations

import contextlib
import json
import os
import queue
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

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, FixedDelay

from ..waiting import DEADLINE
from . import drivers
from .drivers import EVENT, Output, add_file

cloudpickle.register_pickle_by_value(drivers)


AHEAD = 8
"""How many input files there are that no batch has taken yet."""


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


def hosts(runtime: Path) -> set[int]:
    """The ids of the living state hosts with this runtime directory."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        # A process that ends meanwhile, or has ended and is not reaped, shows nothing.
        with contextlib.suppress(OSError):
            marked = f"CHANDY_RUNTIME_DIR={runtime}".encode() in (process / "environ").read_bytes().split(
                b"\0"
            )
            if marked and b"chandy.state.host.process" in (process / "cmdline").read_bytes().split(b"\0"):
                found.add(int(process.name))
    return found


class KilledDriver:
    """A driver in a process of its own, with its JVM and workers in the same process group."""

    def __init__(self, folder: Path, runtime: Path, **options: object) -> None:
        defaults = {
            "folder": str(folder),
            "interval": "400 ms",
            "marks": None,
            "changelog": True,
            "takeover_timeout": "1 min",
        }
        arguments = json.dumps({"master": "local[2]", **defaults, **options})
        self._log = (folder / f"driver-{time.time_ns()}.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", drivers.__name__, arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "CHANDY_RUNTIME_DIR": str(runtime)},
        )
        self.events: list[list[str]] = []
        self._killed = False
        self._lines: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(EVENT):
                self._lines.put(line.removeprefix(EVENT).split())
        self._lines.put(["ended"])

    def tell(self, what: str = "") -> None:
        """Let it go on: first from being warm to the stream, then from the stream to its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
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

    def wait_for_files(self, files: int) -> None:
        """Wait until so many input files are in the sink."""
        while max(self.all("begins") + self.all("sank"), default=0) < files:
            self.wait("sank" if self.all("begins") else "begins")

    def wait_for_end(self) -> list[str]:
        """Return what its query has ended with."""
        found = next((one for one in self.events if one[0] == "died"), None)
        return found or self.wait("died")

    def kill(self) -> None:
        """Kill it as a machine does that fails: Python and Java at once. Its state hosts live on."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while ["ended"] not in self.events:
            self.events.append(self._lines.get(timeout=DEADLINE))
        self._log.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to Python, Java and the workers."""
        os.killpg(self._process.pid, number)

    @property
    def pid(self) -> int:
        """Process id of its Python."""
        return self._process.pid

    def all(self, event: str) -> list[int]:
        """The numbers of the events of a kind so far."""
        return [int(found[1]) for found in self.events if found[0] == event]

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()[-6000:]


class InputFeed:
    """The input folder, with some files more than any batch has taken."""

    def __init__(self, folder: Path, ahead: int = AHEAD) -> None:
        self.folder = folder
        folder.mkdir()
        self.files = 0
        self.add(ahead)

    def add(self, files: int) -> None:
        for _ in range(files):
            add_file(self.folder, self.files)
            self.files += 1

    def taken(self, event: list[str]) -> None:
        """Keep ahead of what is in the sink."""
        if event[0] == "sank":
            self.add(int(event[1]) + AHEAD - self.files)


def rows(spark: SparkSession, out: Path) -> Counter[Output]:
    return Counter(
        tuple(row) for row in spark.read.parquet(str(out)).select("k", "n", "total", "chain").collect()
    )


def coordinate(
    spark: SparkSession, folder: Path, *, interval: str | None, attempts: int = 5, changelog: bool = True
) -> CheckpointCoordinator:
    return CheckpointCoordinator(
        spark,
        pipeline="killed",
        storage=str(folder / "store"),
        config=CheckpointConfig(
            interval=interval, restart=FixedDelay("100 ms", attempts=attempts), changelog=changelog
        ),
    )


def parquet(frame: DataFrame, out: Path) -> DataStreamWriter:
    return frame.writeStream.format("parquet").option("path", str(out))
