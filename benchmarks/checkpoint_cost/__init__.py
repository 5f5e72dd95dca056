"""What checkpoints cost a running stream, and what they write.

A stream of batches on random keys runs without a pause on two cores. It keeps a count for each key, and a value in some
workloads. Chandy runs it with a checkpoint every 1, 10 and 60 s, and without checkpoints. Spark's own count of the same
rows, which commits its state with every batch, is measured for comparison.

**Turns.** Every turn begins with the same state: Chandy restores a savepoint that was taken when all keys had arrived,
and Spark uses a copy of its checkpoint of that time. Then the stream warms up. One manual checkpoint is taken, because
the first checkpoint after a savepoint stores everything. After that comes a measured window of fixed length, with the
checkpoints of the coordinator's own schedule. The first tick is chosen so that one checkpoint falls half an interval
after the beginning of the window. So a window of 60 s has exactly 60, 6 or 1 checkpoints, and their effects, such as
compactions, fall into it as well. Longer turns would not be fairer, because the speed of the machine drifts within
minutes by more than the difference to be measured. So turns are short, and there are several rounds, forwards and
backwards. The result is the median of the ratios of two turns of one round.

**Figures.** Throughput is the number of rows divided by the time from the start of the first batch in the window to the
end of the last one. A batch's time is Spark's ``triggerExecution``. A *commit* of Chandy is a checkpoint, from its
trigger to its completion. A commit of Spark is that of the state stores for a batch (``commitTimeMs``, the sum over its
two tasks), which is part of the batch's own time. Bytes *changed* are the keys of all batches as plain columns (key,
count, value). A key counts in every batch that has it. Bytes *stored* are the bytes that checkpoints newly wrote to the
store, or the growth of Spark's state directory, from which nothing is deleted. Bytes *the host wrote* are all bytes
that the state host wrote to its disk (``/proc/<pid>/io``, on Linux), for checkpoints and for RocksDB's compactions.
Compactions are counted in RocksDB's own logs. The host's processor time for a row shows the cost of checkpoints even
where noise hides it in the throughput.

In local mode a state host also keeps changelogs: the changes of each batch, until a checkpoint has them. All turns of
Chandy have changelogs unless their name says otherwise.

The store is a folder on the same disk, where Chandy stores an SST file as a synced hard link. One contestant stores its
checkpoints in S3. That server runs on the same two cores, so it costs more than one on another machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import attrs
from pyspark.sql import SparkSession

from .. import stores
from ..chart import bars
from ..report import Options, Report, console, paired_ratio
from ..stage import balanced, stage
from ..stores import StoreAt
from .contestants import (
    NO_CHANGELOG,
    WITHOUT,
    Chandy,
    Contestant,
    Native,
    fill_chandy,
    fill_native,
    native_name,
)
from .figures import Course, Timing, Turn, amplification, figures, p99, rows_of


@attrs.frozen
class Contest:
    """The contestants of a course, and the length of their turns."""

    course: Course
    timing: Timing
    intervals: tuple[int | None, ...]
    """The checkpoint intervals of Chandy's turns. None: without checkpoints."""
    native: tuple[bool, ...] = ()
    """Spark's turns: whether each uses a changelog."""
    remote: tuple[int, ...] = ()
    """The checkpoint intervals of Chandy's turns on S3."""
    without_changelog: tuple[int, ...] = ()
    """The checkpoint intervals of Chandy's turns without changelogs."""


FULL: Final = (
    Contest(
        Course("1M keys, a count", keys=1_000_000, rows=100_000),
        Timing(warm_up=20, window=60),
        intervals=(None, 60, 10, 1),
        native=(True,),
        remote=(10,),
        without_changelog=(10,),
    ),
    Contest(
        Course("200k keys, 1 KB values", keys=200_000, rows=10_000, value_bytes=1000),
        Timing(warm_up=20, window=60),
        intervals=(None, 2),
        without_changelog=(2,),
    ),
)
QUICK: Final = (
    Contest(
        Course("20k keys, a count", keys=20_000, rows=5_000),
        Timing(warm_up=2, window=4),
        intervals=(None, 1),
        native=(True,),
    ),
)
GOALS: Final = {"throughput, Chandy, every 10 s / without": 0.97}


def run(options: Options) -> Report:
    """Measure; see the module."""
    contests = QUICK if options.quick else FULL
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with _s3(any(contest.remote for contest in contests)) as elsewhere, _stage(elsewhere) as (spark, folder):
        for contest in contests:
            turns = _turns(spark, folder, contest, repetitions, elsewhere)
            for name, found in turns.items():
                rows += rows_of(contest.course.name, name, found)
            ratios |= _ratios(contest.course.name, turns)
    settings = {
        "repetitions": repetitions,
        "goals": GOALS,
        "contests": [attrs.asdict(one) for one in contests],
    }
    return Report("checkpoint_cost", rows, ratios, settings)


def draw(report: Report, path: Path) -> None:
    """Draw the throughput of each contestant in the first workload."""
    first = report.rows[0]["workload"]
    rounds = {
        row["contestant"]: [row["least"], row["median"], row["greatest"]]
        for row in report.rows
        if row["workload"] == first and row["figure"] == "rows a second"
    }
    bars(path, title=f"What checkpoints cost: {first}, two cores", axis="rows a second", rounds=rounds)


@contextlib.contextmanager
def _s3(wanted: bool) -> Iterator[StoreAt | None]:
    """Serve S3 and make it reachable for this process. Provide None if it is not wanted or cannot be served."""
    with contextlib.ExitStack() as stack:
        served = None
        if wanted:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chandy-s3-")))
            try:
                served = stack.enter_context(stores.s3(folder))
            except (OSError, RuntimeError) as error:
                console().print(f"There are no rows for S3: {error}")
        if served:
            stack.enter_context(_environment(served.environment))
        yield served


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    kept = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stage(elsewhere: StoreAt | None) -> AbstractContextManager[tuple[SparkSession, Path]]:
    # The JVM may be older than the S3 server. So the session passes the variables to the processes of its tasks.
    variables = elsewhere.environment if elsewhere else {}
    return stage(**{f"spark__executorEnv__{name}": value for name, value in variables.items()})


def _turns(
    spark: SparkSession, folder: Path, contest: Contest, repetitions: int, elsewhere: StoreAt | None
) -> dict[str, list[Turn]]:
    """Run all turns of one workload, and return them by contestant."""
    course = contest.course
    place = folder / "contest"
    savepoint = fill_chandy(spark, course, place / "chandy")
    contestants: list[Contestant] = [Chandy(spark, savepoint, each) for each in contest.intervals]
    if elsewhere:
        contestants += [Chandy(spark, savepoint, each, elsewhere) for each in contest.remote]
    contestants += [Chandy(spark, savepoint, each, changelog=False) for each in contest.without_changelog]
    for changelog in contest.native:
        filled = fill_native(spark, course, place / native_name(changelog).replace(" ", "-"), changelog)
        contestants.append(Native(spark, filled, changelog))
    by_name = {contestant.name: contestant for contestant in contestants}
    turns: dict[str, list[Turn]] = {name: [] for name in by_name}
    for number in range(repetitions):
        for name in balanced(list(by_name), number):
            # Each turn has a new folder: the previous host may still be writing into the old one.
            own = place / f"turn-{number}-{list(by_name).index(name)}"
            own.mkdir()
            turn = by_name[name].turn(course, contest.timing, own)
            shutil.rmtree(own, ignore_errors=True)
            turns[name].append(turn)
            told = ", ".join(f"{figure} {value:,.4g}" for figure, value in figures(turn).items())
            console().print(f"{course.name}: {name}: {told}", soft_wrap=True)
    shutil.rmtree(place, ignore_errors=True)
    return turns


def _ratios(workload: str, turns: Mapping[str, Sequence[Turn]]) -> dict[str, float]:
    found: dict[str, float] = {}
    without = turns[WITHOUT]
    for name, own in turns.items():
        if name != WITHOUT:
            rates = paired_ratio(own, without, lambda turn: turn.rate)
            found[f"{workload}: throughput, {name} / without"] = rates
            found[f"{workload}: batch p99, {name} / without"] = paired_ratio(own, without, p99)
            found[f"{workload}: bytes stored / changed, {name}"] = amplification(own)
        if name + NO_CHANGELOG in turns:
            rates = paired_ratio(own, turns[name + NO_CHANGELOG], lambda turn: turn.rate)
            found[f"{workload}: throughput, {name}, with / without its changelog"] = rates
    return found
