"""The demo on a cluster: a year of flights on three machines. A fourth one joins, and one of the first loses its power.

The machines are made on this one: with their own network, files and processes in Linux namespaces where that is
permitted (root), otherwise at addresses of the loopback interface. Spark's master runs here, a worker on each machine,
and the driver in a process of its own. When a machine is lost, the pipeline goes back to its checkpoint on those that
are left. At the end the result is compared with that of a plain batch job over all flights.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import attrs
import click
from rich.console import Console
from rich.table import Table

from chandy.storage.codec import to_json

from ..cluster import choice
from ..cluster.machine import Machine, Machines
from ..cluster.standalone import SOON, Standalone
from ..demo import Course, DemoScreen, checkpoint_table, is_exact, show
from ..demo_frame import PHASES, STARTING, demo_console, demo_folder, seconds, table
from ..flights import read_flights, write_days
from ..lives import REPOSITORY, Event, Life
from ..watching import DriverFailedError, Patience, Watch
from .plan import Plan, Shards, most_loaded, shown

_MACHINES: Final = ("m1", "m2", "m3")
_NEWCOMER: Final = "m4"
_DRIVER: Final = "benchmarks.cluster_demo.driver"
_PATIENCE: Final = Patience(notice=30.0, give_up=300.0)


class Workers(Protocol):
    """What starts Spark's workers."""

    def start_worker(self, machine: Machine) -> object:
        """Start a worker on a machine."""
        ...


@attrs.define
class Story:
    """The events of the driver, and what happened to machines."""

    checkpoints: list[Event] = attrs.field(factory=list)
    recoveries: list[Event] = attrs.field(factory=list)
    newest_batch: int = -1
    days: int = 0
    """The number of processed days."""
    phase: str = STARTING
    """What the driver is doing."""
    executors: int = 0
    shards: Shards = attrs.field(factory=dict)
    """Who has which shards now."""
    moments: dict[str, Shards] = attrs.field(factory=dict)
    """Who had which shards, by the moment."""
    lost: str = ""
    """The machine that has lost its power."""
    lost_at: float = 0.0
    """When, in seconds since 1970; as ``next_batch_at``."""
    next_batch_at: float = 0.0
    """When the first batch after that had committed."""
    result: Event = attrs.field(factory=dict)

    def take(self, event: Event, screen: DemoScreen) -> None:
        """Record and show one event."""
        match event["event"]:
            case "batch":
                self.newest_batch, self.days = event["batch"], event["days"]
                screen.days(self.days)
                if self.lost and not self.next_batch_at:
                    self.next_batch_at = event["at"]
                    screen.note(f"  goes on after {event['at'] - self.lost_at:.1f} s", "bold green")
            case "checkpoint":
                self.checkpoints.append(event)
                screen.checkpoint(event)
            case "cluster":
                if event["executors"] != self.executors:
                    screen.note(f"  {event['executors']} executors")
                self.executors, self.shards = event["executors"], event["shards"]
            case "recovery":
                self.recoveries.append(event)
            case "result":
                self.result = event
            case name:
                self.phase = PHASES.get(name, self.phase)
                screen.phase(self.phase)

    def had(self, moment: str) -> None:
        """Keep who has which shards now."""
        self.moments[moment] = self.shards


@click.command()
@click.option("--keep", is_flag=True, help="Keep the work folder for inspection.")
@click.option("--days-per-batch", type=click.IntRange(min=1), default=7, show_default=True)
def main(keep: bool, days_per_batch: int) -> None:
    """Stream 336,776 flights on three machines; one joins, one loses its power; check every aircraft."""
    console = demo_console()
    began = time.monotonic()
    is_isolated = choice.are_isolated()
    failures = (DriverFailedError, TimeoutError, OSError)
    with demo_folder(console, keep=keep, failures=failures) as folder:
        # All machines see these; whatever else is below this folder each has of its own.
        shared = [folder / name for name in ("flights", "delays", "checkpoints", "logs")]
        for path in shared[1:]:
            path.mkdir()
        console.print("Writing a year of flights, a file a day")
        days = tuple(write_days(read_flights(), folder / "flights"))
        flights = sum(day.flights for day in days)
        course = Course(days, days_per_batch, flights // 2)
        console.print(
            f"[bold]{flights:,} flights[/] in {course.batches} batches on {len(_MACHINES)} machines "
            + ("in namespaces" if is_isolated else "that share a network: no namespaces are permitted here")
        )
        visible: list[str | Path] = [*shared, REPOSITORY, sys.prefix]
        with choice.machines(_MACHINES, visible, isolated=is_isolated) as machines:
            story = run(console, course, machines, folder)
            _show(console, story)
    console.print(
        f"{time.monotonic() - began:.0f} s altogether, {story.newest_batch + 1} batches; nothing is left running."
    )
    if not is_exact(story.result):
        raise SystemExit(1)


def run(console: Console, course: Course, machines: Machines, folder: Path) -> Story:
    """Run the driver to the end of the stream; let a machine join soon, and one be lost at half of it or later.

    Raises:
        DriverFailedError: the driver failed, made no progress, or ended too soon.
        TimeoutError: the cluster did not start.
    """
    # Spark takes the executors' Python from the environment of the driver, and their modules from that of the workers.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    story = Story()
    log = folder / "driver.log"
    with DemoScreen(console, course) as screen:
        screen.phase("starting the cluster")
        with Standalone(machines, folder / "logs", env={"PYTHONPATH": str(REPOSITORY)}) as standalone:
            settings = {**standalone.session_settings(), **_settings(folder)}
            names = (*_MACHINES, _NEWCOMER)
            storage = (folder / "checkpoints").as_uri()
            plan = Plan(str(folder), storage, len(course.days), course.days_per_batch, settings, names)
            with Life([to_json(plan).decode()], module=_DRIVER, folder=folder, log=log) as life:
                watch = Watch("driver", life, log, lambda: story.phase, screen.note, _PATIENCE)
                for event in watch.events():
                    story.take(event, screen)
                    act(story, course, standalone, machines, screen)
                if not story.lost:
                    raise DriverFailedError(watch.failed("it ended before a machine was lost"))
                if not story.result:
                    raise DriverFailedError(watch.failed("it ended before it had a result"))
    story.had("at the end")
    return story


def _settings(folder: Path) -> Mapping[str, str]:
    return {
        **SOON,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "6",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataProgressEventInterval": "1s",
        # So that tasks run where their shards are.
        "spark.shuffle.reduceLocality.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


def act(story: Story, course: Course, workers: Workers, machines: Machines, screen: DemoScreen) -> None:
    """Let a machine join, or lose its power, if it is time."""
    done = course.flights_after(story.days)
    if len(machines.machines) == len(_MACHINES) and done >= course.flights // 20:
        story.had(f"before {_NEWCOMER} joined")
        screen.note(f"machine {_NEWCOMER} joins, after {done:,} flights", "bold cyan")
        workers.start_worker(machines.add(_NEWCOMER))
    # The newcomer has taken its part. Where it is slow to, the stream must not end before a machine is lost.
    has_grown = _NEWCOMER in story.shards or done >= course.flights * 7 // 8
    if not story.lost and done >= course.kill_after and story.executors > len(_MACHINES) and has_grown:
        story.lost = most_loaded(story.shards, spared=_NEWCOMER)
        story.had(f"before {story.lost} was lost")
        screen.note(f"machine {story.lost} loses its power, after {done:,} flights", "bold red")
        story.lost_at = time.time()
        next(one for one in machines.machines if one.name == story.lost).kill()


# --- what is shown at the end -------------------------------------------------------------------------------


def _show(console: Console, story: Story) -> None:
    taken = [("driver", event) for event in story.checkpoints]
    tables = [checkpoint_table(taken), _recoveries(story), shard_table(story.moments)]
    show(console, tables, story.result)


def _recoveries(story: Story) -> Table:
    rows = [
        [
            textwrap.shorten(event["cause"].partition("\n")[0], 60, placeholder=" ..."),
            "no checkpoint" if event["checkpoint"] is None else f"checkpoint {event['checkpoint']}",
            f"{event['begun_at'] - event['waiting'] - story.lost_at:.1f} s",
            *(seconds(event[part], 2) for part in ("stopping", "restoring", "starting", "first_batch")),
        ]
        for event in story.recoveries
    ]
    columns = ["cause", "back to", "noticed after", "stopping", "restoring", "starting", "first batch"]
    return table(f"After {story.lost} was lost", columns, rows, left=2)


def shard_table(moments: Mapping[str, Shards]) -> Table:
    """Return a table of the machines' shards at some moments."""
    names = sorted({name for shards in moments.values() for name in shards})
    rows: list[Sequence[str]] = [
        [name, *(shown(shards.get(name, ())) for shards in moments.values())] for name in names
    ]
    return table("Which machine had which shards", ["machine", *moments], rows, left=1 + len(moments))


if __name__ == "__main__":
    main()
