"""The demo, ``python -m benchmarks.demo``: a year of flights through a pipeline whose driver is killed half-way.

A first driver process streams flights through a keyed operator and takes checkpoints, until it is killed with
SIGKILL. A second one goes on to the end: where the first one stood, by the latest checkpoint and the changelogs that
were written since, or, should one of these not do, from the checkpoint. Then the result of both lives is compared
with that of a plain batch job over all flights. This process only looks on: it starts no Spark.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from chandy.storage.uri import join_uri

from .flights import Day, read_flights, write_days
from .lives import Event, Life, await_hosts, runtime

PLAIN_WIDTH = 120
"""Columns of the tables where there is no terminal."""
SHOWN_DIFFERENCES = 20


@attrs.frozen
class Course:
    """What happens at which batch of the stream."""

    days: tuple[Day, ...]
    days_per_batch: int

    @property
    def batches(self) -> int:
        """How many there are."""
        return math.ceil(len(self.days) / self.days_per_batch)

    def batch_at(self, part: float) -> int:
        """The batch at a part of the way from 0 to 1."""
        return round(self.batches * part)

    def days_after(self, batch: int) -> int:
        """How many days have been processed when a batch has committed."""
        return min(len(self.days), (batch + 1) * self.days_per_batch)

    def date_after(self, batch: int) -> str:
        """The last day of a batch."""
        return self.days[self.days_after(batch) - 1].date


class Screen:
    """What the demo shows while it runs: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, course: Course) -> None:
        self.console = console
        self._course = course
        self._next_line = 0.1
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
            TextColumn("{task.fields[date]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: TaskID = self._progress.add_task(
            "starting", total=sum(day.flights for day in course.days), date=""
        )

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, name: str) -> None:
        """Say beside the bar what goes on."""
        self._progress.update(self._bar, description=name)

    def note(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(Text(text, style))

    def batch(self, batch: int) -> None:
        """A batch has committed."""
        done = self._course.days_after(batch)
        flights, date = sum(day.flights for day in self._course.days[:done]), self._course.date_after(batch)
        self._progress.update(self._bar, completed=flights, date=date)
        part = done / len(self._course.days)
        if not self.console.is_terminal and part >= self._next_line:
            self.note(f"  {flights:>7,} flights, {date}")
        self._next_line = max(self._next_line, math.floor(part * 10 + 1) / 10)

    def checkpoint(self, event: Event) -> None:
        """A checkpoint has ended."""
        what = "savepoint" if event["kind"] == "savepoint" else f"{event['kind']} checkpoint"
        if event["status"] != "completed":
            self.note(f"  {what} {event['id']} failed: {event['reason']}", "yellow")
        elif event["kind"] != "periodic":
            self.note(f"  {what} {event['id']} completed in {event['seconds']:.2f} s", "cyan")


@attrs.define
class Story:
    """What the drivers have told."""

    checkpoints: list[tuple[int, Event]] = attrs.field(factory=list)
    """Each with the life that took it."""
    newest_batch: int = -1
    moments: dict[str, float] = attrs.field(factory=dict)
    """When the second driver got where, in seconds since 1970."""
    restored: Event = attrs.field(factory=dict)
    recovery: Event = attrs.field(factory=dict)
    result: Event = attrs.field(factory=dict)

    def take(self, life: int, event: Event, screen: Screen) -> None:
        """Note and show one event of the first or second life."""
        match event["event"]:
            case "batch":
                self.newest_batch = event["batch"]
                screen.batch(event["batch"])
            case "checkpoint":
                self.checkpoints.append((life, event))
                screen.checkpoint(event)
            case "coordinator" if life == 2:
                self.restored = event
                self.moments["coordinator"] = event["at"]
            case "recovery":
                self.recovery = event
            case "result":
                self.result = event
            case name:
                self.moments[name] = event["at"]
                screen.phase(_PHASES.get(name, ""))


_PHASES = {
    "process": "Spark starts",
    "session": "the coordinator starts",
    "query": "streaming",
    "stopped": "checking with a batch job",
}


class DemoFailed(Exception):
    """The demo could not be carried through."""


@click.command()
@click.option("--keep", is_flag=True, help="Keep the work folder, to look into it.")
@click.option("--days-per-batch", type=click.IntRange(min=1), default=7, show_default=True)
@click.option(
    "--storage", help="URI where checkpoints go, s3://... for instance; by default the work folder."
)
def main(keep: bool, days_per_batch: int, storage: str | None) -> None:
    """Kill the driver of a stream of 336,776 flights half-way, go on, check every aircraft."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH, highlight=False)
    began = time.monotonic()
    # Resolved: a socket's path is long enough without the links of a temporary folder.
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    log = folder / "driver.log"
    # A place that is the demo's alone: it must find no checkpoint of an earlier one.
    storage = join_uri(storage, folder.name) if storage else (folder / "checkpoints").as_uri()
    try:
        days = write_days(read_flights(), folder / "flights")
        course = Course(tuple(days), days_per_batch)
        console.print(
            f"[bold]{sum(day.flights for day in days):,} flights[/] of {len(days)} days in {course.batches} batches: "
            "flights, mean and worst delay per aircraft, a checkpoint every 3 s"
        )
        story, killed_at = _run(console, course, folder, storage, log)
        if not story.result:
            raise DemoFailed("the second driver ended before it had a result")
        _show(console, course, story, killed_at)
    except (DemoFailed, TimeoutError) as error:
        tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        console.print(Text(f"{tail}\nThe demo failed: {error}", "red"))
        raise SystemExit(2) from error
    finally:
        # The hosts of a driver that was killed end by themselves when their lease is lost.
        ended = await_hosts(folder)
        if keep:
            console.print(f"Kept {folder}; try: chandy list {storage}")
        elif ended:
            shutil.rmtree(folder, ignore_errors=True)
    if not ended:
        console.print(Text(f"A state host still runs; its log is below {runtime(folder)}", "red"))
        raise SystemExit(2)
    console.print(f"{time.monotonic() - began:.0f} s altogether; nothing is left running.")
    if story.result["sink_differs"] or story.result["state_differs"] or story.result["repeated"]:
        raise SystemExit(1)


def _run(console: Console, course: Course, folder: Path, storage: str, log: Path) -> tuple[Story, float]:
    """Let the first driver run until it is killed, and the second to its end; return when the kill was."""
    story = Story()
    arguments = [str(folder), f"--days-per-batch={course.days_per_batch}", f"--batches={course.batches}"]
    arguments.append(f"--storage={storage}")
    kill_at = course.batch_at(0.5)
    with Screen(console, course) as screen:
        first = [*arguments, f"--checkpoint-at={course.batch_at(0.25)}"]
        with Life(first, folder=folder, log=log) as life:
            screen.note(f"first driver: process {life.pid}")
            for event in life.events():
                story.take(1, event, screen)
                # Without a checkpoint there would be nothing to go back to.
                if story.newest_batch >= kill_at and story.checkpoints:
                    break
            else:
                raise DemoFailed("the first driver ended by itself")
            killed_at = life.kill()
            last = story.newest_batch
            screen.note(
                f"SIGKILL to process {life.pid} and its JVM, after {course.date_after(last)} (batch {last})",
                "bold red",
            )
            second = [*arguments, f"--savepoint-at={course.batch_at(0.75)}"]
            with Life(second, folder=folder, log=log) as next_life:
                screen.note(f"second driver: process {next_life.pid}")
                story.moments = {"start": next_life.started_at}
                for event in next_life.events():
                    story.take(2, event, screen)
                    if event["event"] == "query":
                        screen.note(_way_on(course, story.restored, event["in_place"]), "bold green")
                code = next_life.wait()
        if code != 0:
            raise DemoFailed(f"the second driver ended with code {code}")
    return story, killed_at


def _way_on(course: Course, restored: Event, in_place: bool) -> str:
    """Say from where the second driver goes on."""
    checkpoint, batch = restored["restored"], restored["batch"]
    if in_place:
        return f"goes on where that stood, with checkpoint {checkpoint} and the changelogs since; no batch runs again"
    return (
        f"goes back to checkpoint {checkpoint}: {course.date_after(batch)} (batch {batch}); what came after it "
        "runs again"
    )


# --- what is shown at the end -------------------------------------------------------------------------------


def _show(console: Console, course: Course, story: Story, killed_at: float) -> None:
    for table in (
        _checkpoints(story.checkpoints),
        _recovery(story, killed_at),
        _worst(story.result["worst"]),
    ):
        console.print()
        console.print(table)
    console.print()
    _verdict(console, story.result)


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1
) -> Table:
    """A table whose first ``left`` columns are text and the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _checkpoints(taken: Sequence[tuple[int, Event]]) -> Table:
    rows = [
        [
            f"{('first', 'second')[life - 1]} driver",
            event["kind"],
            event["status"],
            str(event["id"]),
            f"{event['seconds']:.2f} s",
            decimal(event["size"]),
            decimal(event["new_bytes"]),
            str(event["shards"]),
        ]
        for life, event in taken
    ]
    columns = ["taken by", "kind", "status", "id", "trigger to end", "size", "new bytes", "shards"]
    return _table("Checkpoints", columns, rows, left=3)


def _recovery(story: Story, killed_at: float) -> Table:
    at, inside = story.moments, story.recovery
    steps = [
        ("a new process starts and imports Python's modules", at["process"] - killed_at),
        ("Spark session starts", at["session"] - at["process"]),
        (
            f"coordinator fences the dead driver and finds checkpoint {story.restored['restored']}",
            at["coordinator"] - at["session"],
        ),
        ("operator and query are defined and checked", inside["begun_at"] - at["coordinator"]),
        ("progress restored: offsets, commits, logs of source and sink", inside["restoring"]),
        ("Spark starts the query", inside["starting"]),
        ("state host starts, shards are restored, the first batch commits", inside["first_batch"]),
    ]
    total = sum(seconds for _, seconds in steps)
    rows: list[list[str | Text]] = [[step, f"{seconds:.2f} s"] for step, seconds in steps]
    rows.append([Text("from the kill to the first batch committed", "bold"), Text(f"{total:.2f} s", "bold")])
    return _table("Recovery", ["step", "time"], rows)


def _worst(worst: Sequence[tuple[str, Sequence[Any]]]) -> Table:
    rows = [
        [aircraft, f"{values[0]:,}", f"{values[1]:,}", f"{values[4]:.1f} min", f"{values[3]:,} min"]
        for aircraft, values in worst
    ]
    columns = ["aircraft", "flights", "departed", "mean delay", "worst delay"]
    return _table("Latest aircraft, of those with 100 departures or more", columns, rows)


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
    if result["repeated"]:
        console.print(Text(f"  {result['repeated']:,} rows are in the sink twice", "bold red"))
    else:
        console.print(Text("  no row is in the sink twice", "bold green"))


if __name__ == "__main__":
    main()
