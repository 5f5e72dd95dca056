"""Apache Flink as a contestant: the greatest value of each key, in RocksDB with incremental checkpoints.

A JobManager and a TaskManager with two slots and 4 GB run on this machine, and checkpoints go into a folder. What is
not as Flink comes is in ``flink_cluster.SETTINGS``: above all it restarts after a millisecond (then after up to 250),
and a TaskManager that is started again has its name and its disk, so that Flink may use its local copy of the state
and takes the new process at once for the end of the old one. Without such a name, as Flink comes, a killed TaskManager
is detected by heartbeats, after 10 to 20 s.

Its input is that of the other contestants, as CSV; a folder that is looked through every 50 ms. A file ends with some
rows of keys of their own, its marks: as many as make sure that each of the two tasks has some. When all of them
have come out of the aggregation, so has everything before them (see ``flink_job.py``). It does not wait with that for
a checkpoint, as a transactional sink of Flink would.

Failures:

* ``HOST``: the TaskManager gets SIGKILL, another one is started in the same moment.
* ``DRIVER``: so do both processes, and the job is started anew from the retained checkpoint: two JVMs start, and the
  Python program that makes the job runs again. ``DRIVER_COLD`` is the same without what was on the TaskManager's disk.

``EXCEPTION`` is left out: a job in SQL has no code that could raise once.
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
"""Rows of a file that tell its end. That all of them went to one of two tasks is as likely as one in 30,000."""
_TOLD: Final = re.compile(r"^told:\d+> \+I\[(\d+), ", re.MULTILINE)

Told = tuple[int, float]
"""The number of a file and when all its rows had come out, in seconds since 1970."""


class Flink:
    """One job on a cluster of its own; a contestant."""

    name = "Flink"
    failures = (Failure.HOST, Failure.DRIVER, Failure.DRIVER_COLD)

    def __init__(self, course: Course, folder: Path) -> None:
        """Make the cluster's folder; nothing is started.

        Args:
            course: the stream.
            folder: for everything; it must not exist.

        Raises:
            FlinkUnavailableError: there is no Flink for this machine.
        """
        self._course = course
        self._folder = folder
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._cluster = Cluster(distribution(), folder / "flink", [str(self._input)])
        self._number = 0
        self._checkpoint = ""

    def fill(self) -> None:
        """See `Contestant`."""
        self._cluster.start_job_manager()
        self._cluster.start_task_manager()
        told = Marks(self._cluster.printed)
        numbers = {self._write(table) for table in rows.fill(self._course)}
        self._await(numbers, told)
        self._take_checkpoint()

    def fail(self, failure: Failure) -> Recovered:
        """See `Contestant`."""
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
        # The JobManager that would know of a dead one is dead, too.
        noted = self._cluster.noted() if failure is Failure.HOST else []
        return recovered(failure, failed_at, noted, self._cluster.moments(), finished, new)

    def rest(self) -> None:
        """See `Contestant`."""
        self._take_checkpoint()
        self._cluster.kill()

    def wake(self) -> None:
        """See `Contestant`."""
        told = Marks(self._cluster.printed)
        self._cluster.start_job_manager(self._checkpoint)
        self._cluster.start_task_manager()
        self._await({self._touch()}, told)

    def close(self) -> None:
        """See `Contestant`."""
        self._cluster.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _take_checkpoint(self) -> None:
        self._checkpoint = self._cluster.checkpoint()
        # All of them are behind it.
        for path in self._input.iterdir():
            path.unlink()

    def _touch(self) -> int:
        return self._write(rows.touch(self._course, self._number))

    def _write(self, table: pa.Table) -> int:
        self._number += 1
        text = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
        pyarrow.csv.write_csv(marked(table, self._number), text, options)
        # Flink must not see a file that is not whole; it passes over names that begin with a dot.
        hidden = self._input / f".{self._number:06}.csv"
        hidden.write_bytes(text.getbuffer())
        hidden.rename(self._input / f"{self._number:06}.csv")
        return self._number

    def _await(self, numbers: set[int], told: Marks) -> list[Told]:
        """Wait until all rows of these files have come out; return when those of each had."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not numbers <= {number for number, _ in told.finished}:
            self._cluster.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"Flink has not finished {sorted(numbers)} in {_DEADLINE_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
            told.look(time.time())
        return told.finished


class Marks:
    """Which files have been finished since it was made, by the marks that have been printed."""

    def __init__(self, printed: Path) -> None:
        self._printed = printed
        self._offset = printed.stat().st_size if printed.exists() else 0
        self._seen: Counter[int] = Counter()
        self.finished: list[Told] = []

    def look(self, now: float) -> None:
        """Read what has been printed since the last look; what it finishes was finished ``now``."""
        with self._printed.open("rb") as file:
            file.seek(self._offset)
            text, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(text) + len(newline)
        for number in parse_marks(text.decode(errors="replace")):
            self._seen[number] += 1
            if self._seen[number] == MARKS:
                self.finished.append((number, now))


def marked(table: pa.Table, number: int) -> pa.Table:
    """Return the rows with a column ``mark``, 0 in all of them, and the marks of the file behind them."""
    ids = range(number * MARKS, (number + 1) * MARKS)
    none = table.append_column("mark", pa.array([0] * len(table), pa.int64()))
    marks = {"k": [-1 - id for id in ids], "v": ["end"] * MARKS, "mark": [number] * MARKS}
    return pa.concat_tables([none, pa.table(marks, schema=none.schema)])


def parse_marks(text: str) -> list[int]:
    """Read the number of each mark that a TaskManager has printed among its logs."""
    return [int(number) for number in _TOLD.findall(text)]


def recovered(
    failure: Failure,
    failed_at: float,
    noted: Sequence[float],
    moments: Mapping[str, float],
    told: Sequence[Told],
    new: int,
) -> Recovered:
    """Say how long a recovery took, and its parts.

    Args:
        failure: what went wrong.
        failed_at: and when.
        noted: when the JobManager took note of failures, also of those before and of attempts that were too early.
        moments: when the last task came into each state.
        told: which files were finished since the failure, and when.
        new: the file that nothing had come out of before the failure.
    """
    # Its two tasks read files side by side, so the new one may be finished before one that is taken again.
    end = max(moment for _, moment in told)
    again = [moment for number, moment in told if number != new]
    # Flink counts whole milliseconds.
    detected = [moment for moment in noted if moment >= failed_at - 0.001]
    ends = [("detect", min(detected))] if detected else []
    ends += [("process", moments["DEPLOYING"])]
    ends += [("deploy", moments["INITIALIZING"]), ("restore", moments["RUNNING"])]
    ends += [("replay", max(again, default=0.0)), ("new batch", end)]
    return Recovered(failure, end - failed_at, parts(failed_at, ends))


def parts(begin: float, ends: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Cut a time into parts by the moments of their ends; one that ended before its predecessor took no time."""
    found = {}
    for name, end in ends:
        found[name] = max(0.0, end - begin)
        begin = max(begin, end)
    return found
