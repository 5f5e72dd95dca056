"""Apache Flink as a contestant: the greatest value of each key, in RocksDB with incremental checkpoints.

A JobManager and a TaskManager with two slots and 4 GB run on this machine, and checkpoints go into a folder. The
settings that differ from Flink's defaults are in ``flink_cluster.SETTINGS``. Above all, Flink restarts after a
millisecond (later after up to 250), and a restarted TaskManager keeps its name and its disk. So Flink can use the local
copy of the state, and takes the new process at once as the end of the old one. By default a TaskManager has no such
name, and heartbeats detect a killed one after 10 to 20 s.

The input is that of the other contestants, as CSV files in a folder that is listed every 50 ms. A file ends with marks:
rows with keys of their own, enough that each of the two tasks gets some. When all marks have left the aggregation, so
have all rows before them (see ``flink_job.py``). Unlike a transactional sink of Flink, this does not wait for a
checkpoint.

Failures:

* ``HOST``: the TaskManager gets SIGKILL, and another one is started at once.
* ``DRIVER``: both processes get SIGKILL, and the job is started again from the retained checkpoint. Two JVMs start, and
  the Python program that creates the job runs again. ``DRIVER_COLD`` is the same without the TaskManager's local files.

``EXCEPTION`` is left out, because a SQL job has no code that could raise once.
"""

from __future__ import annotations

import io
import re
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv

from . import rows
from .flink_cluster import Cluster
from .flink_environment import distribution
from .scenario import Course, Failure, Recovered

_POLL_SECONDS: Final = 0.01
_DEADLINE_SECONDS: Final = 900.0
MARKS: Final = 16
"""Rows that mark the end of a file. The chance that all of them go to the same task is one in 30,000."""
_TOLD: Final = re.compile(r"^told:\d+> \+I\[(\d+), ", re.MULTILINE)

Told = tuple[int, float]
"""The number of a file, and when all its rows had left the aggregation, in seconds since 1970."""


class Flink:
    """One job on a cluster of its own."""

    name = "Flink"
    failures = (Failure.HOST, Failure.DRIVER, Failure.DRIVER_COLD)

    def __init__(self, course: Course, folder: Path) -> None:
        """Create the cluster's folder. Nothing is started.

        Args:
            course: the stream.
            folder: a new folder for all files.

        Raises:
            FlinkUnavailableError: Flink cannot be installed on this machine.
        """
        self._course = course
        self._folder = folder
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._cluster = Cluster(distribution(), folder / "flink", [str(self._input)])
        self._number = 0
        self._checkpoint = ""

    def fill(self) -> None:
        """See ``Contestant``."""
        self._cluster.start_job_manager()
        self._cluster.start_task_manager()
        told = Marks(self._cluster.printed)
        numbers = {self._write(table) for table in rows.fill(self._course)}
        self._await(numbers, told)
        self._take_checkpoint()

    def fail(self, failure: Failure) -> Recovered:
        """See ``Contestant``."""
        self._cluster.await_running()
        self._take_checkpoint()
        replayed = set()
        for _ in range(self._course.replayed):
            told = Marks(self._cluster.printed)
            replayed.add(number := self._touch())
            self._await({number}, told)
        told = Marks(self._cluster.printed)
        if failure is Failure.HOST:
            failed_at = self._cluster.kill_task_manager()
            self._cluster.start_task_manager()
        else:
            failed_at = self._cluster.kill()
            if failure is Failure.DRIVER_COLD:
                shutil.rmtree(self._cluster.local)
                self._cluster.local.mkdir()
            self._cluster.start_job_manager(self._checkpoint)
            self._cluster.start_task_manager()
        new = self._touch()
        finished = self._await({*replayed, new}, told)
        # In the other failures the JobManager, which records failures, was killed as well.
        noted = self._cluster.noted() if failure is Failure.HOST else []
        return recovered(failure, failed_at, noted, self._cluster.moments(), finished, new)

    def rest(self) -> None:
        """See ``Contestant``."""
        self._take_checkpoint()
        self._cluster.kill()

    def wake(self) -> None:
        """See ``Contestant``."""
        told = Marks(self._cluster.printed)
        self._cluster.start_job_manager(self._checkpoint)
        self._cluster.start_task_manager()
        self._await({self._touch()}, told)

    def close(self) -> None:
        """See ``Contestant``."""
        self._cluster.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _take_checkpoint(self) -> None:
        self._checkpoint = self._cluster.checkpoint()
        # The checkpoint covers all files.
        for path in self._input.iterdir():
            path.unlink()

    def _touch(self) -> int:
        return self._write(rows.touch(self._course, self._number))

    def _write(self, table: pa.Table) -> int:
        self._number += 1
        text = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
        pyarrow.csv.write_csv(marked(table, self._number), text, options)
        # Flink ignores names that begin with a dot, so it never sees a half-written file.
        hidden = self._input / f".{self._number:06}.csv"
        hidden.write_bytes(text.getbuffer())
        hidden.rename(self._input / f"{self._number:06}.csv")
        return self._number

    def _await(self, numbers: set[int], told: Marks) -> list[Told]:
        """Wait until all rows of these files have left the aggregation, and return when each file was finished."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not numbers <= {number for number, _ in told.finished}:
            self._cluster.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"Flink has not finished {sorted(numbers)} in {_DEADLINE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
            told.look(time.time())
        return told.finished


class Marks:
    """Finds the files that have been finished since its creation, by the printed marks."""

    def __init__(self, printed: Path) -> None:
        self._printed = printed
        self._offset = printed.stat().st_size if printed.exists() else 0
        self._seen: Counter[int] = Counter()
        self.finished: list[Told] = []

    def look(self, now: float) -> None:
        """Read what has been printed since the last call. Files that are found finished get the time ``now``."""
        with self._printed.open("rb") as file:
            file.seek(self._offset)
            text, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(text) + len(newline)
        for number in parse_marks(text.decode(errors="replace")):
            self._seen[number] += 1
            if self._seen[number] == MARKS:
                self.finished.append((number, now))


def marked(table: pa.Table, number: int) -> pa.Table:
    """Return the rows with a column ``mark`` of zeros, followed by the marks of the file."""
    ids = range(number * MARKS, (number + 1) * MARKS)
    none = table.append_column("mark", pa.array([0] * len(table), pa.int64()))
    marks = {"k": [-1 - id for id in ids], "v": ["end"] * MARKS, "mark": [number] * MARKS}
    return pa.concat_tables([none, pa.table(marks, schema=none.schema)])


def parse_marks(text: str) -> list[int]:
    """Return the numbers of the marks in the output of a TaskManager."""
    return [int(number) for number in _TOLD.findall(text)]


def recovered(
    failure: Failure,
    failed_at: float,
    noted: Sequence[float],
    moments: Mapping[str, float],
    told: Sequence[Told],
    new: int,
) -> Recovered:
    """Return the duration of a recovery and its parts.

    Args:
        failure: the failure.
        failed_at: the time of the failure.
        noted: when the JobManager recorded failures, including earlier ones and attempts that were too early.
        moments: when the last task entered each state.
        told: the files that were finished since the failure, with their times.
        new: the file of which no row had been processed before the failure.
    """
    # The two tasks read files in parallel, so the new file may be finished before a repeated one.
    end = max(moment for _, moment in told)
    again = [moment for number, moment in told if number != new]
    # Flink's times are in whole milliseconds.
    detected = [moment for moment in noted if moment >= failed_at - 0.001]
    ends = [("detect", min(detected))] if detected else []
    ends += [("process", moments["DEPLOYING"])]
    ends += [("deploy", moments["INITIALIZING"]), ("restore", moments["RUNNING"])]
    ends += [("replay", max(again, default=0.0)), ("new batch", end)]
    return Recovered(failure, end - failed_at, parts(failed_at, ends))


def parts(begin: float, ends: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Split a time into parts by their ends. A part that ended before its predecessor took no time."""
    found = {}
    for name, end in ends:
        found[name] = max(0.0, end - begin)
        begin = max(begin, end)
    return found
