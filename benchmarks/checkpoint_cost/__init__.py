"""What checkpoints take from a stream that runs, and what they write.

A stream of batches on keys at random, one after the other without a pause, on two cores, keeps a count for each key
(and a value, where the workload says so). It runs with a checkpoint every 1, 10 and 60 s and without, and beside it
Spark's own count of the same rows, which commits its state with every batch.

**Turns.** Every turn begins with the very same state: Chandy restores a savepoint that was taken when all keys were
there, Spark a copy of its checkpoint of that moment. Then the stream warms up, with one checkpoint by hand, for the
first after a savepoint stores all of it; and then a window of fixed length counts. Checkpoints in it are those of the
coordinator's own schedule. The first tick is chosen so that one falls half an interval after the window's begin: a
window of 60 s has just 60, 6 and 1 of them, and each has its effects, compactions for example, within it. Longer
turns would not be fairer, for the machine's pace drifts over minutes by more than what is looked for. So turns are
short and there are several rounds, forwards and backwards; what counts is the ratio of two turns of one round, and of
these ratios the median.

**Figures.** Throughput is rows by the time from the start of the first batch in the window to the end of the last; a
batch's time is Spark's ``triggerExecution``. A *commit* of Chandy's is a checkpoint, from its trigger to its
completion; one of Spark's is the commit of the state stores for a batch (``commitTimeMs``, its two tasks added up),
which is part of the batch's own time. Bytes *changed* are the keys of all batches, each counted in every batch that
has it, as plain columns (key, count, value). Bytes *stored* are those that checkpoints newly wrote into the store, or
by which Spark's state directory grew, with nothing deleted. Bytes *the host wrote* are all that the state host gave
its disk (``/proc/<pid>/io``, on Linux): what it writes for checkpoints, and RocksDB's compactions. Compactions are
counted by RocksDB's own logs. The host's processor time for a row tells what checkpoints take even where noise hides
it in the throughput.

In local mode a state host also keeps changelogs (what each batch changed, until a checkpoint has it). All of Chandy's
turns have them but those that say otherwise.

The store is a folder on the same disk, where Chandy stores an SST file as a hard link, synced. Beside it one contestant
stores into S3, whose server runs on the same two cores and so costs more than one on another machine.
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
    UNCHANGELOGED,
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
    """Who runs a course, and for how long."""

    course: Course
    timing: Timing
    intervals: tuple[int | None, ...]
    """Of Chandy's turns; None: without checkpoints."""
    native: tuple[bool, ...] = ()
    """Of Spark's turns, whether with changelog."""
    remote: tuple[int, ...] = ()
    """Intervals of Chandy's turns on S3."""
    unlogged: tuple[int, ...] = ()
    """Intervals of Chandy's turns without changelogs."""


FULL: Final = (
    Contest(
        Course("1M keys, a count", keys=1_000_000, rows=100_000),
        Timing(warm_up=20, window=60),
        intervals=(None, 60, 10, 1),
        native=(True,),
        remote=(10,),
        unlogged=(10,),
    ),
    Contest(
        Course("200k keys, 1 KB values", keys=200_000, rows=10_000, value_bytes=1000),
        Timing(warm_up=20, window=60),
        intervals=(None, 2),
        unlogged=(2,),
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
    """Draw the first workload's throughput by contestant."""
    first = report.rows[0]["workload"]
    rounds = {
        row["contestant"]: [row["least"], row["median"], row["greatest"]]
        for row in report.rows
        if row["workload"] == first and row["figure"] == "rows a second"
    }
    bars(path, title=f"What checkpoints cost: {first}, two cores", axis="rows a second", rounds=rounds)


@contextlib.contextmanager
def _s3(wanted: bool) -> Iterator[StoreAt | None]:
    """Serve S3, if it is wanted and there is what serves it; this process can then reach it."""
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
    # The JVM may have been there before S3 was: what its tasks' processes get, they are told by the session.
    variables = elsewhere.environment if elsewhere else {}
    return stage(**{f"spark__executorEnv__{name}": value for name, value in variables.items()})


def _turns(
    spark: SparkSession, folder: Path, contest: Contest, repetitions: int, elsewhere: StoreAt | None
) -> dict[str, list[Turn]]:
    """Run all turns of one workload; return them by contestant."""
    course = contest.course
    place = folder / "contest"
    savepoint = fill_chandy(spark, course, place / "chandy")
    contestants: list[Contestant] = [Chandy(spark, savepoint, each) for each in contest.intervals]
    if elsewhere:
        contestants += [Chandy(spark, savepoint, each, elsewhere) for each in contest.remote]
    contestants += [Chandy(spark, savepoint, each, changelog=False) for each in contest.unlogged]
    for changelog in contest.native:
        filled = fill_native(spark, course, place / native_name(changelog).replace(" ", "-"), changelog)
        contestants.append(Native(spark, filled, changelog))
    by_name = {contestant.name: contestant for contestant in contestants}
    turns: dict[str, list[Turn]] = {name: [] for name in by_name}
    for number in range(repetitions):
        for name in balanced(list(by_name), number):
            # A new name each time: a host that is ending may still write into the folder of the turn before.
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
        if name + UNCHANGELOGED in turns:
            rates = paired_ratio(own, turns[name + UNCHANGELOGED], lambda turn: turn.rate)
            found[f"{workload}: throughput, {name}, with / without its changelog"] = rates
    return found
