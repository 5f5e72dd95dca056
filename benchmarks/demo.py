"""The demo, ``python -m benchmarks.demo``: a year of flights through a pipeline whose driver is killed half-way.

A first driver process streams flights through a keyed operator and takes checkpoints, until it is killed with SIGKILL:
half-way, or after ``--kill-after-rows`` flights. A second driver continues to the end of the stream. It resumes after
the newest committed batch, from the latest checkpoint and the changelogs since then. If a changelog cannot be used, it
goes back to the checkpoint. Then the result of both drivers is compared with that of a plain batch job over all
flights. This process only watches: it starts no Spark.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from chandy.coordinator import Reason

from .demo_frame import PHASES, STARTING, Screen, checkpoints, demo_console, demo_folder, table, verdict
from .flights import Day, read_flights, write_days
from .lives import Event, Life
from .watching import DriverFailedError, Patience, Watch

SHOWN_DIFFERENCES = 20
_SHOWN: Final = 2
"""How many checkpoints are shown at each end of many that are alike."""


@attrs.frozen
class Course:
    """The stream, and when its first driver is killed. Progress is counted in input, see ``file_source``."""

    days: tuple[Day, ...]
    days_per_batch: int
    kill_after: int
    """The first driver is killed after at least so many flights."""
    kill_delay: float = 0.0
    """Seconds from these flights to the kill."""

    @property
    def flights(self) -> int:
        """The number of flights."""
        return self.flights_after(len(self.days))

    @property
    def batches(self) -> int:
        """The number of batches, if no batch has to take the input of two."""
        return math.ceil(len(self.days) / self.days_per_batch)

    def flights_after(self, days: int) -> int:
        """Return the number of flights in the first days."""
        return sum(day.flights for day in self.days[:days])

    def days_with(self, flights: int) -> int:
        """Return the number of first days that have at least so many flights."""
        counts = itertools.accumulate(day.flights for day in self.days)
        return next((days for days, count in enumerate(counts, 1) if count >= flights), len(self.days))

    def date_after(self, days: int) -> str:
        """Return the date of the last of the first days, or "" for no days."""
        return self.days[days - 1].date if days else ""


class DemoScreen(Screen):
    """Shows days, and how checkpoints end."""

    def __init__(self, console: Console, course: Course) -> None:
        super().__init__(console, course.flights, TextColumn("{task.fields[date]}"), date="")
        self._course = course

    def days(self, done: int) -> None:
        """Show that so many days have been processed."""
        date = self._course.date_after(done)
        self.flights(self._course.flights_after(done), f", {date}", date=date)

    def checkpoint(self, event: Event) -> None:
        """Show that a checkpoint has ended."""
        what = "savepoint" if event["kind"] == "savepoint" else f"{event['kind']} checkpoint"
        if event["reason"] == Reason.JOB_FAILOVER.value:
            self.note(f"  {what} {event['id']} is given up, for its batches run again", "yellow")
        elif event["status"] != "completed":
            self.note(f"  {what} {event['id']} failed: {event['reason']}", "yellow")
        elif event["kind"] != "periodic":
            self.note(f"  {what} {event['id']} completed in {event['seconds']:.2f} s", "cyan")


@attrs.define
class Story:
    """The events of the drivers."""

    checkpoints: list[tuple[int, Event]] = attrs.field(factory=list)
    """Each checkpoint with the number of its driver."""
    newest_batch: int = -1
    days: int = 0
    """The number of processed days."""
    phase: str = STARTING
    """What the driver is doing."""
    moments: dict[str, float] = attrs.field(factory=dict)
    """The times of the second driver's phases, in seconds since 1970."""
    restored: Event = attrs.field(factory=dict)
    recovery: Event = attrs.field(factory=dict)
    result: Event = attrs.field(factory=dict)

    def next_life(self) -> None:
        """Prepare for the second driver. The first one is dead."""
        self.phase = STARTING
        self.moments.clear()

    def take(self, life: int, event: Event, screen: DemoScreen) -> None:
        """Record and show one event of the first or second driver."""
        match event["event"]:
            case "batch":
                self.newest_batch, self.days = event["batch"], event["days"]
                screen.days(self.days)
            case "checkpoint":
                self.checkpoints.append((life, event))
                screen.checkpoint(event)
            case "recovery":
                self.recovery = event
            case "result":
                self.result = event
            case name:
                if name == "coordinator":
                    self.restored = event
                self.moments[name] = event["at"]
                self.phase = PHASES.get(name, self.phase)
                screen.phase(self.phase)


@click.command()
@click.option("--keep", is_flag=True, help="Keep the work folder for inspection.")
@click.option("--days-per-batch", type=click.IntRange(min=1), default=7, show_default=True)
@click.option(
    "--storage",
    default="",
    help="URI where checkpoints go, s3://... for instance; by default the work folder.",
)
@click.option(
    "--kill-after-rows", type=click.IntRange(min=1), help="Flights before the kill; by default half of them."
)
@click.option(
    "--kill-delay", type=click.FloatRange(min=0), default=0.0, help="Seconds from there to the kill."
)
@click.option(
    "--notice",
    type=click.FloatRange(min=0),
    default=Patience().notice,
    show_default=True,
    help="Seconds without progress after which the demo says so.",
)
@click.option(
    "--give-up",
    type=click.FloatRange(min=0),
    default=Patience().give_up,
    show_default=True,
    help="Seconds without progress after which it stops the driver and fails.",
)
def main(
    keep: bool,
    days_per_batch: int,
    storage: str,
    kill_after_rows: int | None,
    kill_delay: float,
    notice: float,
    give_up: float,
) -> None:
    """Kill the driver of a stream of 336,776 flights half-way, continue, and check every aircraft."""
    console = demo_console()
    began = time.monotonic()
    with demo_folder(console, keep=keep, storage=storage) as folder:
        stage = Stage(folder, checkpoints(folder, storage), Patience(notice, give_up))
        console.print("Writing a year of flights, a file a day")
        days = tuple(write_days(read_flights(), folder / "flights"))
        flights = sum(day.flights for day in days)
        course = Course(days, days_per_batch, kill_after_rows or flights // 2, kill_delay)
        if course.kill_after >= flights:
            raise click.BadParameter(f"there are {flights:,} flights", param_hint="--kill-after-rows")
        console.print(
            f"[bold]{flights:,} flights[/] of {len(days)} days in {course.batches} batches: "
            "flights, mean and worst delay per aircraft, a checkpoint every 3 s"
        )
        story, killed_at = run(console, course, stage)
        _show(console, story, killed_at)
    seconds = time.monotonic() - began
    console.print(f"{seconds:.0f} s altogether, {story.newest_batch + 1} batches; nothing is left running.")
    if not is_exact(story.result):
        raise SystemExit(1)


@attrs.frozen
class Stage:
    """The place of the drivers, and how they are watched."""

    folder: Path
    storage: str
    """URI where checkpoints go."""
    patience: Patience = attrs.field(factory=Patience)
    driver: str = "benchmarks.driver"
    """The module that each driver runs."""

    @property
    def log(self) -> Path:
        """The output of the drivers."""
        return self.folder / "driver.log"

    def start(self, *arguments: str) -> Life:
        """Start a driver."""
        given = [str(self.folder), f"--storage={self.storage}", *arguments]
        return Life(given, module=self.driver, folder=self.folder, log=self.log)

    def watch(self, name: str, life: Life, story: Story, course: Course, screen: DemoScreen) -> Watch:
        """Watch a driver."""

        def doing() -> str:
            date = course.date_after(story.days)
            return f"{story.phase}, after {date}" if story.phase == PHASES["query"] and date else story.phase

        return Watch(name, life, self.log, doing, screen.note, self.patience)


def run(console: Console, course: Course, stage: Stage) -> tuple[Story, float]:
    """Run the first driver until it is killed, and the second one to its end. Return the time of the kill, too.

    Raises:
        DriverFailedError: a driver failed, died by itself or made no progress.
    """
    story = Story()
    arguments = [f"--days={len(course.days)}", f"--days-per-batch={course.days_per_batch}"]
    with DemoScreen(console, course) as screen:
        checkpoint_after = course.days_with(course.kill_after // 2)
        with stage.start(*arguments, f"--checkpoint-after={checkpoint_after}") as life:
            screen.note(f"first driver: process {life.pid}")
            watch = stage.watch("first driver", life, story, course, screen)
            for event in watch.events():
                story.take(1, event, screen)
                if course.flights_after(story.days) >= course.kill_after:
                    break
            else:
                raise DriverFailedError(watch.failed("it ended before it was killed"))
            time.sleep(course.kill_delay)
            killed_at = life.kill()
            screen.note(
                f"SIGKILL to process {life.pid} and its JVM, after {course.date_after(story.days)} "
                f"(batch {story.newest_batch})",
                "bold red",
            )
            story.next_life()
            savepoint_after = course.days_with(course.flights * 3 // 4)
            with stage.start(*arguments, f"--savepoint-after={savepoint_after}") as next_life:
                screen.note(f"second driver: process {next_life.pid}")
                watch = stage.watch("second driver", next_life, story, course, screen)
                for event in watch.events():
                    story.take(2, event, screen)
                    if event["event"] == "query":
                        screen.note(_way_on(story.restored, event["in_place"]), "bold green")
                if not story.result:
                    raise DriverFailedError(watch.failed("it ended before it had a result"))
    return story, killed_at


def _way_on(restored: Event, in_place: bool) -> str:
    """Describe from where the second driver continues."""
    checkpoint, batch = restored["restored"], restored["batch"]
    if in_place:
        known = (
            "the changelogs" if checkpoint is None else f"checkpoint {checkpoint} and the changelogs since"
        )
        return f"resumes after the newest committed batch, from {known}; no batch runs again"
    if checkpoint is None:
        return "starts over: there was no checkpoint yet"
    return f"goes back to checkpoint {checkpoint}, to the end of batch {batch}; what came after it runs again"


# --- what is shown at the end -------------------------------------------------------------------------------


def _show(console: Console, story: Story, killed_at: float) -> None:
    taken = [(f"{('first', 'second')[life - 1]} driver", event) for life, event in story.checkpoints]
    show(console, [checkpoint_table(taken), _recovery(story, killed_at)], story.result)


def show(console: Console, tables: Iterable[Table], result: Event) -> None:
    """Print tables, the aircraft with the worst delays, and whether the result is exact."""
    for shown in (*tables, _worst(result["worst"])):
        console.print()
        console.print(shown)
    console.print()
    _verdict(console, result)


def is_exact(result: Event) -> bool:
    """Return whether the result of the stream is that of the batch job."""
    return not (result["sink_differs"] or result["state_differs"] or result["repeated"])


def checkpoint_table(taken: Sequence[tuple[str, Event]]) -> Table:
    """Return a table of checkpoints, each with who has taken it; of many alike in a row, the first and the last."""
    rows: list[Sequence[str]] = []
    for (by, kind, status), group in itertools.groupby(
        taken, lambda one: (one[0], one[1]["kind"], one[1]["status"])
    ):
        alike = [event for _, event in group]
        shown = [
            [
                by,
                kind,
                status,
                str(event["id"]),
                f"{event['seconds']:.2f} s",
                decimal(event["size"]),
                decimal(event["new_bytes"]),
                str(event["shards"]),
            ]
            for event in alike
        ]
        if len(shown) > 2 * _SHOWN + 1:
            between = alike[_SHOWN:-_SHOWN]
            median = statistics.median(event["seconds"] for event in between)
            folded = [by, kind, status, f"{len(between)} more", f"median {median:.2f} s", "", "", ""]
            shown = [*shown[:_SHOWN], folded, *shown[-_SHOWN:]]
        rows += shown
    columns = ["taken by", "kind", "status", "id", "trigger to end", "size", "new bytes", "shards"]
    return table("Checkpoints", columns, rows, left=3)


def _recovery(story: Story, killed_at: float) -> Table:
    at, inside = story.moments, story.recovery
    checkpoint = story.restored["restored"]
    found = "no checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
    steps = [
        ("a new process starts and imports Python's modules", at["process"] - killed_at),
        ("Spark session starts", at["session"] - at["process"]),
        (
            f"coordinator fences the dead driver and finds {found}",
            at["coordinator"] - at["session"],
        ),
        ("operator and query are defined and checked", inside["begun_at"] - at["coordinator"]),
        ("progress restored: offsets, commits, logs of source and sink", inside["restoring"]),
        ("Spark starts the query", inside["starting"]),
    ]
    end = "to the start of the query: no input was left"
    if inside["first_batch"] is not None:
        end = "to the first batch committed"
        steps.append(
            ("state host starts, shards are restored, the first batch commits", inside["first_batch"])
        )
    total = sum(seconds for _, seconds in steps)
    rows: list[list[str | Text]] = [[step, f"{seconds:.2f} s"] for step, seconds in steps]
    rows.append([Text(f"from the kill {end}", "bold"), Text(f"{total:.2f} s", "bold")])
    return table("Recovery", ["step", "time"], rows)


def _worst(worst: Sequence[tuple[str, Sequence[Any]]]) -> Table:
    rows = [
        [aircraft, f"{values[0]:,}", f"{values[1]:,}", f"{values[4]:.1f} min", f"{values[3]:,} min"]
        for aircraft, values in worst
    ]
    columns = ["aircraft", "flights", "departed", "mean delay", "worst delay"]
    return table("Latest aircraft, of those with 100 departures or more", columns, rows)


def _verdict(console: Console, result: Event) -> None:
    console.print(
        f"A plain Spark batch job over all {result['flights']:,} flights ({result['cancelled']:,} cancelled, "
        f"{result['without_number']:,} without a tail number) finds {result['aircraft']:,} aircraft. "
        "Compared with it, every figure exactly:"
    )
    sink = f"last row of each aircraft in the parquet sink ({result['rows']:,} rows)"
    state = f"keyed state in checkpoint {result['checkpoint']}, read from the storage"
    for what, differs in ((sink, result["sink_differs"]), (state, result["state_differs"])):
        if not differs:
            console.print(Text(f"  identical for {result['aircraft']:,} aircraft: {what}", "bold green"))
            continue
        console.print(Text(f"  {len(differs):,} aircraft differ: {what}", "bold red"))
        for aircraft, expected, found in differs[:SHOWN_DIFFERENCES]:
            console.print(f"    {aircraft}: expected {expected}, found {found}")
    repeated = result["repeated"]
    verdict(console, not repeated, "no row is in the sink twice", f"{repeated:,} rows are in the sink twice")


if __name__ == "__main__":
    main()
