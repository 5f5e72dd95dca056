"""The demo of an upgrade, ``python -m benchmarks.upgrade_demo``: two new versions run the batches of the old one.

A driver with the old version adds up a year of flights. Two new versions run as shadows beside it: one leaves out the
delays of one carrier, which has 32 flights in the year, and the other is written in another way and counts the same.
The wrong one is found at the first batch in which it shows. The right one takes over, and the old version follows it.
At last, the old version takes the pipeline back, and goes on to the end of the year. Then the rows of both drivers are
compared with the input. This process starts the drivers, hands out the input, and looks: it starts no Spark.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import attrs
import click
import pyarrow.dataset as ds
from rich.console import Console

from chandy.coordinator.verdict import Finding, ShadowVerdict
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store, pipeline_uri

from ..demo_frame import PHASES, STARTING, Screen, checkpoints, demo_console, demo_folder, table, verdict
from ..file_source import write_file
from ..flights import read_flights
from ..kafka_demo.check import check
from ..lives import Event, Life
from ..watching import DriverFailedError, Patience, Watch
from .flow import PIPELINE, WRONGED, Part, answer, as_rows, parts

_DRIVER: Final = "benchmarks.upgrade_demo.driver"
_PATIENCE: Final = Patience(notice=120.0, give_up=300.0)
"""A driver also waits because it is given no input."""
_AHEAD: Final = 2
"""How many parts are there that have not been read."""
_STEP_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.5
_OLD, _WRONG, _NEW = "old", "wrong", "new"
_FOLLOWS: Final = f"before-{_NEW}"
"""The old version as the shadow of the new one."""


class Driver:
    """One driver, watched on a thread of its own."""

    def __init__(self, version: str, folder: Path, storage: str, screen: Screen, *, shadow: bool) -> None:
        self.version = version
        self.phase = STARTING
        self.batches: list[Event] = []
        """What it has told of each batch."""
        self._failure: DriverFailedError | None = None
        self._may_end = False
        log = folder / f"{version}.log"
        arguments = [str(folder), f"--storage={storage}", f"--version={version}"]
        self.life = Life([*arguments, *["--shadow"] * shadow], module=_DRIVER, folder=folder, log=log)
        watch = Watch(f"{version} version", self.life, log, lambda: self.phase, screen.note, _PATIENCE)
        self._thread = threading.Thread(target=self._take, args=(watch,), daemon=True)
        self._thread.start()

    @property
    def parts(self) -> int:
        """How many parts of the input it has read."""
        return self.batches[-1]["entry"] + 1 if self.batches else 0

    def check(self) -> None:
        """Raise what has gone wrong with it.

        Raises:
            DriverFailedError: it failed, died or made no progress.
        """
        if self._failure is not None:
            raise self._failure

    def may_end(self) -> None:
        """From now on its end is no failure."""
        self._may_end = True

    def end(self) -> None:
        """Ask it by a signal to end, and wait until it has.

        Raises:
            DriverFailedError: it failed instead.
        """
        self.may_end()
        self.life.ask_to_end()
        self._thread.join()
        self.check()

    def _take(self, watch: Watch) -> None:
        try:
            for event in watch.events():
                if event["event"] == "batch":
                    self.batches.append(event)
                self.phase = PHASES.get(event["event"], self.phase)
            if not self._may_end:
                self._failure = DriverFailedError(watch.failed("it ended"))
        except DriverFailedError as error:
            if not self._may_end:
                self._failure = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.life.__exit__()


@attrs.define
class Stage:
    """The input, of which a little more is there than has been read, and the drivers."""

    folder: Path
    storage: str
    course: Sequence[Part]
    screen: Screen
    drivers: list[Driver] = attrs.field(factory=list)
    open: int = 0
    """How many parts may be read by now."""
    _written: int = attrs.field(default=0, init=False)

    @property
    def done(self) -> int:
        """How many parts have been read."""
        return max((driver.parts for driver in self.drivers), default=0)

    def until(self, reached: Callable[[], bool]) -> None:
        """Hand out input until something is reached.

        Raises:
            DriverFailedError: a driver has failed.
        """
        looked_at = 0.0
        while True:
            for driver in self.drivers:
                driver.check()
            done = self.done
            while self._written < min(self.open, done + _AHEAD):
                part = self.course[self._written]
                write_file(part.flights, self.folder / "input" / f"{self._written:03}.parquet", self._written)
                self._written += 1
            date = self.course[done - 1].days[-1].date if done else ""
            self.screen.flights(sum(len(part.flights) for part in self.course[:done]), f", {date}")
            if (now := time.monotonic()) - looked_at >= _LOOK_SECONDS:
                looked_at = now
                if reached():
                    return
            time.sleep(_STEP_SECONDS)

    def found(self, shadow: str) -> ShadowVerdict | None:
        """Return what a shadow has found so far."""
        return read_verdict(open_store(pipeline_uri(self.storage, PIPELINE)), shadow)

    def has_caught_up(self, shadow: str) -> bool:
        """Return whether a shadow has run all that has been read, and its state was compared."""
        found = self.found(shadow)
        read = max((one["batch"] for driver in self.drivers for one in driver.batches), default=-1)
        return found is not None and max(found.stood.values(), default=-1) >= read and found.states > 0

    def batch_of(self, part: int) -> int:
        """Return the batch that has read a part."""
        return int(next(one["batch"] for one in self.drivers[0].batches if one["entry"] >= part))


@attrs.frozen
class Outcome:
    """What came of the demo."""

    finding: Finding
    """What was found in the wrong version first."""
    expected_batch: int
    """The batch in which its mistake shows first."""
    compared: ShadowVerdict
    """What was found in the right one."""
    followed: ShadowVerdict
    """What the old one has found that followed it."""
    twice: int
    differing: tuple[str, ...]
    rows: int

    @property
    def is_right(self) -> bool:
        """Whether the wrong version was found where it is wrong, and every flight counted once."""
        return (
            self.finding.batch == self.expected_batch
            and WRONGED in self.finding.example
            and self.compared.is_equal
            and self.followed.is_equal
            and not self.twice
            and not self.differing
        )


@click.command()
@click.option("--keep", is_flag=True, help="Keep the work folder for inspection.")
@click.option("--days-per-batch", type=click.IntRange(1, 30), default=15, show_default=True)
def main(keep: bool, days_per_batch: int) -> None:
    """Run two new versions beside the old one under a stream of 336,776 flights, and switch to the right one."""
    console = demo_console()
    began = time.monotonic()
    with demo_folder(console, keep=keep) as folder:
        flights = read_flights()
        course = parts(flights, days_per_batch)
        console.print(
            f"[bold]{len(flights):,} flights[/] in {len(course)} batches: flights and delays per carrier and aircraft"
        )
        outcome = run(console, folder, course)
        console.print()
        _show(console, outcome, len(flights))
    console.print(f"{time.monotonic() - began:.0f} s altogether; nothing is left running.")
    if not outcome.is_right:
        raise SystemExit(1)


def run(console: Console, folder: Path, course: Sequence[Part]) -> Outcome:
    """Run the drivers to the end of the stream.

    Raises:
        DriverFailedError: a driver failed, died by itself or made no progress.
    """
    (folder / "input").mkdir()
    storage = checkpoints(folder)
    before, mistake = [number for number, part in enumerate(course) if part.shows][:2]
    nearly_all = len(course) * 7 // 8
    with ExitStack() as stack, Screen(console, sum(len(part.flights) for part in course)) as screen:
        stage = Stage(folder, storage, course, screen)

        def start(version: str, *, shadow: bool = True) -> Driver:
            driver = stack.enter_context(Driver(version, folder, storage, screen, shadow=shadow))
            stage.drivers.append(driver)
            kind = "as its shadow" if shadow else "leads"
            screen.note(f"the {version} version {kind}: process {driver.life.pid}", "bold")
            return driver

        old = start(_OLD, shadow=False)
        stage.open = before + 1
        stage.until(lambda: stage.done == stage.open)
        wrong, new = start(_WRONG), start(_NEW)
        # What shows the mistake comes when both follow.
        stage.open = mistake
        stage.until(lambda: all(stage.has_caught_up(name) for name in (_WRONG, _NEW)))
        screen.note("  both have run what the old version has run, and are equal so far")
        stage.open = nearly_all
        stage.until(lambda: not _verdict_of(stage, _WRONG).is_equal)
        finding = _verdict_of(stage, _WRONG).findings[0]
        screen.note(f"  the wrong version differs in batch {finding.batch}: {finding.example}", "bold red")
        wrong.end()
        stage.drivers.remove(wrong)
        stage.until(lambda: stage.done == stage.open and stage.has_caught_up(_NEW))
        compared = _verdict_of(stage, _NEW)
        screen.note(f"  the new version is equal in all of {compared.batches} batches", "bold green")
        _switch(stage, old, _NEW)
        screen.note("  it leads, and the old version is its shadow", "bold green")
        stage.open = len(course) - 1
        stage.until(lambda: stage.done == stage.open and stage.has_caught_up(_FOLLOWS))
        followed = _verdict_of(stage, _FOLLOWS)
        _switch(stage, new, _FOLLOWS)
        screen.note("  the old version leads again", "bold green")
        stage.open = len(course)
        stage.until(lambda: stage.done == stage.open)
        old.end()
        new.end()
    return _outcome(stage, finding, stage.batch_of(mistake), compared, followed)


def _verdict_of(stage: Stage, shadow: str) -> ShadowVerdict:
    found = stage.found(shadow)
    assert found is not None, "it has been waited for"
    return found


def _switch(stage: Stage, leader: Driver, shadow: str) -> None:
    """Have a shadow take over.

    Raises:
        DriverFailedError: it does not.
    """
    leader.may_end()
    command = [str(Path(sys.executable).with_name("chandy")), "switch", stage.storage, "--name", shadow]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DriverFailedError(f"The switch failed: {done.stdout}{done.stderr}")


def _outcome(
    stage: Stage, finding: Finding, expected: int, compared: ShadowVerdict, followed: ShadowVerdict
) -> Outcome:
    files = sorted((stage.folder / "totals").glob("**/*.parquet"))
    rows = [json.dumps(row, sort_keys=True) for row in as_rows(ds.dataset(files).to_table())]
    counted = check("files", rows, answer(part.flights for part in stage.course))
    return Outcome(finding, expected, compared, followed, counted.twice, counted.differing, counted.rows)


# --- what is shown at the end -------------------------------------------------------------------------------


def _show(console: Console, outcome: Outcome, flights: int) -> None:
    finding, compared = outcome.finding, outcome.compared
    rows = [
        [_WRONG, f"differs since batch {finding.batch}", f"{finding.what}: {finding.says}"],
        *[
            [name, f"equal in {one.batches} batches", f"state compared at {one.states} checkpoints"]
            for name, one in ((_NEW, compared), (_FOLLOWS, outcome.followed))
        ],
    ]
    console.print(table("What the shadows found", ["version", "output and state", ""], rows, left=3))
    console.print(f"  {finding.example}")
    console.print()
    right = f"the mistake was found in batch {finding.batch}, the first in which it shows"
    is_found = finding.batch == outcome.expected_batch and WRONGED in finding.example
    verdict(
        console, is_found, right, f"it shows in batch {outcome.expected_batch} first, not in {finding.batch}"
    )
    is_equal = compared.is_equal and outcome.followed.is_equal
    verdict(console, is_equal, "the rewritten version counts the same", "the rewritten version differs")
    right = f"all {flights:,} flights are counted once in {outcome.rows:,} rows of both versions"
    is_exact = not outcome.twice and not outcome.differing
    wrong = f"{outcome.twice} rows are there twice, and {len(outcome.differing)} aircraft are wrong"
    verdict(console, is_exact, right, wrong)


if __name__ == "__main__":
    main()
