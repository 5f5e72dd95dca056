"""What an upgrade with proof costs: digests, a shadow beside its leader, and a switch.

**Digests.** Rows of four columns go straight into a transactional sink, with ``record_batches`` and without it, in
turns in one session. Two figures: rows a second, and rows for each second of the processor time of all processes of
the run, which other work on the machine changes less.

**Shadow.** A leader in a process of its own counts by key, as fast as it can, and a shadow in another one follows it on
the same two cores. Windows with and without the shadow take turns: the rows a second show its share of the machine, and
the processor time, which is that of the leader's own processes, what it costs the leader beyond. With small batches,
those are counted that the shadow runs and compares.

**Pause.** From the end of the last batch of the old driver to the end of the first batch of the new one, at a switch.
Beside it, the old driver is ended by a signal, with a last checkpoint, and a new one is started at once; and the old
driver is killed, so that a warm standby takes over. Batches are small, and one begins each second.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import attrs

from chandy import CheckpointConfig, CheckpointCoordinator, FilesSink
from chandy.coordinator.verdict import ShadowVerdict
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store, pipeline_uri

from .. import keyed
from ..chart import bars
from ..keyed import Workload
from ..lives import Event, Life, await_hosts
from ..processor_time import processor_seconds
from ..report import Options, Report, console, spread
from ..stage import balanced, stage
from .driver import PIPELINE, SHADOW

PLAIN: Final = "without digests"
DIGESTS: Final = "with digests"
ALONE: Final = "without a shadow"
BESIDE: Final = "with a shadow"
SWITCH: Final = "switch"
RESTART: Final = "stop and start"
TAKE_OVER: Final = "a warm standby, after a kill"
RATE: Final = "rows a second"
BY_PROCESSOR: Final = "rows for a second of processor time"
PAUSE: Final = "seconds without a batch"
_WARM_UP: Final = 2
_DRIVER: Final = "benchmarks.upgrade.driver"
_DEADLINE: Final = 180.0
_STEP_SECONDS: Final = 0.1


@attrs.frozen
class Size:
    """How much is measured."""

    digested: Workload
    batches: int
    """Batches of a stream with or without digests."""
    window: float
    """Seconds of a window beside a shadow."""
    large: int
    """Rows of a batch whose leader is as fast as it can be."""
    small: int
    """Rows of a batch where batches are counted."""
    repetitions: int


FULL: Final = Size(Workload("500k rows, 4 columns", 500_000, 50_000), 8, 20.0, 200_000, 100, 5)
QUICK: Final = Size(Workload("20k rows, 4 columns", 20_000, 2_000), 3, 2.0, 20_000, 100, 1)

Figures = dict[str, dict[str, list[float]]]
"""By figure and contestant, that of each turn."""


def run(options: Options) -> Report:
    """Measure; see the module."""
    size = QUICK if options.quick else FULL
    repetitions = options.repetitions or size.repetitions
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for part, measure, peer in (
        ("digests", _digests, PLAIN),
        ("shadow", _beside, ALONE),
        ("shadow of small batches", _small_batches, "leader"),
        ("pause", _pauses, TAKE_OVER),
    ):
        if not options.takes(part):
            continue
        found = measure(size, repetitions)
        for figure, turns in found.items():
            for contestant, values in turns.items():
                rows.append({"part": part, "contestant": contestant, "figure": figure, **spread(values)})
                console().print(", ".join(map(str, rows[-1].values())))
                if contestant != peer:
                    pairs = zip(values, turns[peer], strict=True)
                    ratio = median(own / other for own, other in pairs)
                    ratios[f"{part}: {figure}, {contestant} / {peer}"] = ratio
    return Report("upgrade", rows, ratios, {"repetitions": repetitions})


def draw(report: Report, path: Path) -> None:
    """Draw the pauses."""
    rounds = {
        f"Chandy, {row['contestant']}": [row["least"], row["median"], row["greatest"]]
        for row in report.rows
        if row["figure"] == PAUSE
    }
    if rounds:
        bars(path, title="An upgrade, two cores", axis=PAUSE, rounds=rounds)


# --- digests ------------------------------------------------------------------------------------------------


def _digests(size: Size, repetitions: int) -> Figures:
    found: Figures = {name: {PLAIN: [], DIGESTS: []} for name in (RATE, BY_PROCESSOR)}
    with stage() as (spark, folder):
        files = keyed.write(size.digested, _WARM_UP + size.batches, folder / "files")
        # The first round warms the session up.
        for number in range(-1, repetitions):
            for contestant in balanced((PLAIN, DIGESTS), number):
                at = Path(tempfile.mkdtemp(dir=folder))
                config = CheckpointConfig(
                    interval="10 s", cache_dir=str(at / "cache"), record_batches=contestant == DIGESTS
                )
                with CheckpointCoordinator(
                    spark, pipeline="benchmark", storage=str(at / "storage"), config=config
                ) as coordinator:
                    # A text and a float, too.
                    rows = keyed.stream(spark, files).selectExpr(
                        "k", "v", "concat('N', k % 9000) AS text", "v / 7.0D AS part"
                    )
                    writer = rows.writeStream.trigger(availableNow=True)
                    query = coordinator.start(writer, sink=FilesSink(str(at / "output")), name="rows")
                    while len(query.recentProgress) < _WARM_UP:
                        time.sleep(_STEP_SECONDS)
                    done = len(query.recentProgress)
                    began, used = time.monotonic(), processor_seconds()
                    query.awaitTermination()
                    took, used = time.monotonic() - began, processor_seconds() - used
                    count = sum(one["numInputRows"] for one in query.recentProgress[done:])
                shutil.rmtree(at, ignore_errors=True)
                console().print(
                    f"{contestant}: {count / took:,.0f} {RATE}, {count / used:,.0f} {BY_PROCESSOR}"
                )
                if number >= 0:
                    found[RATE][contestant].append(count / took)
                    found[BY_PROCESSOR][contestant].append(count / used)
    return found


# --- drivers in processes of their own ----------------------------------------------------------------------


class Driver:
    """A driver, whose batches are taken down on a thread."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.batches: list[Event] = []
        self.is_warm = False
        """Whether it stands by, and is warm."""
        self.failure = ""
        self.life = Life([str(folder), *arguments], module=_DRIVER, folder=folder, log=folder / "driver.log")
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask it by a signal to end, and wait until it has."""
        self.life.ask_to_end()
        self._thread.join()

    def after(self, batch: int) -> Event | None:
        """Return the first batch after one, if it has committed."""
        return next((one for one in self.batches if one["batch"] > batch), None)

    def _take(self) -> None:
        for event in self.life.events():
            match event["event"]:
                case "batch":
                    self.batches.append(event)
                case "warm":
                    self.is_warm = True
                case "failed":
                    self.failure = event["why"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.life.__exit__()


@contextmanager
def _place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        yield folder
    finally:
        await_hosts(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _until(reached: Callable[[], bool], *drivers: Driver) -> None:
    """Wait for something.

    Raises:
        RuntimeError: a driver has failed.
        TimeoutError: it takes too long.
    """
    deadline = time.monotonic() + _DEADLINE
    while not reached():
        for driver in drivers:
            if driver.failure:
                raise RuntimeError(driver.failure)
        if time.monotonic() > deadline:
            raise TimeoutError(f"a driver made no progress for {_DEADLINE:g} s")
        time.sleep(_STEP_SECONDS)


def _found(folder: Path) -> ShadowVerdict:
    """Return what the shadow has found so far."""
    store = open_store(pipeline_uri(str(folder / "storage"), PIPELINE))
    return read_verdict(store, SHADOW) or ShadowVerdict(shadow=SHADOW, pipeline=PIPELINE)


# --- a shadow beside its leader -----------------------------------------------------------------------------


def _beside(size: Size, repetitions: int) -> Figures:
    found: Figures = {name: {ALONE: [], BESIDE: []} for name in (RATE, BY_PROCESSOR)}

    def measure(contestant: str) -> None:
        known = len(leader.batches)
        _until(lambda: len(leader.batches) > known, leader)
        used, began = processor_seconds(leader.life.pid), leader.batches[-1]
        time.sleep(size.window)
        known = len(leader.batches)
        _until(lambda: len(leader.batches) > known, leader)
        used = processor_seconds(leader.life.pid) - used
        ended = leader.batches[-1]
        count = sum(one["rows"] for one in leader.batches if began["batch"] < one["batch"] <= ended["batch"])
        found[RATE][contestant].append(count / (ended["ended"] - began["ended"]))
        found[BY_PROCESSOR][contestant].append(count / used)

    with _place() as folder, Driver(folder, f"--rows={size.large}") as leader:
        _until(lambda: len(leader.batches) > _WARM_UP, leader)
        for _ in range(repetitions):
            measure(ALONE)
            compared = _found(folder).batches
            with Driver(folder, f"--rows={size.large}", "--shadow") as shadow:
                _until(lambda before=compared: _found(folder).batches > before, leader, shadow)  # type: ignore[misc]
                measure(BESIDE)
                shadow.end()
        leader.end()
    return found


def _small_batches(size: Size, repetitions: int) -> Figures:
    found: Figures = {"batches a second": {"shadow": [], "leader": []}}
    with _place() as folder, Driver(folder, f"--rows={size.small}") as leader:
        _until(lambda: len(leader.batches) > _WARM_UP, leader)
        with Driver(folder, f"--rows={size.small}", "--shadow") as shadow:
            _until(lambda: _found(folder).batches > _WARM_UP, leader, shadow)
            marks = []
            for _ in range(repetitions + 1):
                marks.append((time.monotonic(), _found(folder).batches, len(leader.batches)))
                time.sleep(size.window)
            shadow.end()
        leader.end()
    for (began, compared, led), (ended, now_compared, now_led) in pairwise(marks):
        found["batches a second"]["shadow"].append((now_compared - compared) / (ended - began))
        found["batches a second"]["leader"].append((now_led - led) / (ended - began))
    return found


# --- the pause ----------------------------------------------------------------------------------------------


def _pauses(size: Size, repetitions: int) -> Figures:
    ways = {SWITCH: _switch, RESTART: _restart, TAKE_OVER: _take_over}
    pauses: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repetitions):
        for contestant in balanced(tuple(ways), number):
            with _place() as folder:
                pauses[contestant].append(
                    ways[contestant](folder, [f"--rows={size.small}", "--pace=1 second"])
                )
    return {PAUSE: pauses}


def _switch(folder: Path, arguments: Sequence[str]) -> float:
    with Driver(folder, *arguments) as old:
        _until(lambda: len(old.batches) > _WARM_UP, old)
        with Driver(folder, *arguments, "--shadow") as new:
            _until(lambda: _found(folder).states > _WARM_UP, old, new)
            command = [str(Path(sys.executable).with_name("chandy")), "switch", str(folder / "storage")]
            subprocess.run([*command, "--name", SHADOW], check=True, capture_output=True)
            return _pause(old, new)


def _restart(folder: Path, arguments: Sequence[str]) -> float:
    with Driver(folder, *arguments) as old:
        _until(lambda: len(old.batches) > _WARM_UP, old)
        old.end()
    with Driver(folder, *arguments) as new:
        return _pause(old, new)


def _take_over(folder: Path, arguments: Sequence[str]) -> float:
    with Driver(folder, *arguments, "--standby") as old:
        _until(lambda: len(old.batches) > _WARM_UP, old)
        with Driver(folder, *arguments, "--standby") as new:
            _until(lambda: new.is_warm, old, new)
            old.life.kill()
            return _pause(old, new)


def _pause(old: Driver, new: Driver) -> float:
    """Return the seconds from the end of the last batch of one driver to the end of the first one of the next."""
    _until(lambda: bool(new.batches), new)
    last = [one for one in old.batches if one["batch"] < new.batches[0]["batch"]][-1]
    seconds = float(new.batches[0]["ended"] - last["ended"])
    if new.life.is_alive:
        new.end()
    return seconds
