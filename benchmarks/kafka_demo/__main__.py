"""The demo of Kafka, ``python -m benchmarks.kafka_demo``: everything is killed once, and every flight is counted once.

A driver reads flights from Kafka, keeps totals by aircraft, publishes each change of them to Kafka and PostgreSQL, and
replicates the totals themselves into a compacted topic and a table. On its way, the database, the broker and the driver
are killed with SIGKILL, and started again. At the end, all four are compared with the input. This process starts the
servers, watches, kills and compares: it starts no Spark.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from chandy.storage import codec

from ..demo_frame import PHASES, STARTING, Screen, demo_console, demo_folder, seconds, table, verdict
from ..flights import read_flights
from ..lives import REPOSITORY, Event, Life
from ..servers import kafka as kafka_server
from ..servers import postgres as postgres_server
from ..servers.maven import NoJavaServerError
from ..watching import DriverFailedError, Patience, Watch
from .check import Copy, Finding, check, check_copy, differing_rows
from .flow import COPY, FLIGHTS, GROUP, PARTITIONS, TOTALS, Places, answer, newest_values, records

_DRIVER: Final = "benchmarks.kafka_demo.driver"
_BATCHES: Final = 30
_SHOWN: Final = 5
_ORDINALS: Final = ("first", "second")
"""One driver is killed."""
_PHASES: Final = {**PHASES, "copies": "waiting for the copies of the state", "stopped": "stopping"}


@attrs.define
class Kill:
    """One process that is killed, and how long the pipeline took to go on."""

    what: str
    after: int
    """It is killed after at least so many flights."""
    act: Callable[[], None] | None
    """Kills it and starts it again; None if it is the driver."""
    at: float = 0.0
    """When, in seconds since 1970; 0: not yet."""
    flights: int = 0
    """How many flights had been read."""
    up: float | None = None
    """Seconds from the kill until it was up again."""
    batch: float | None = None
    """Seconds from the kill to the next batch that has committed."""
    checkpoint: float | None = None
    """Seconds from the kill to the next completed checkpoint."""

    def take(self, event: Event) -> None:
        """Record what the event of a driver says of the way on."""
        if not self.at or event["at"] < self.at:
            return
        seconds = event["at"] - self.at
        match event["event"]:
            case "query" if self.act is None and self.up is None:
                self.up = seconds
            case "batch" if self.batch is None:
                self.batch = seconds
            case "checkpoint" if self.checkpoint is None and event["status"] == "completed":
                self.checkpoint = seconds


@attrs.define
class Story:
    """What the drivers have told."""

    phase: str = STARTING
    flights: int = 0
    checkpoints: int = 0
    """Completed ones."""
    is_over: bool = False

    def take(self, event: Event, screen: Screen) -> None:
        """Record and show one event."""
        match event["event"]:
            case "batch":
                self.flights = event["flights"]
                screen.flights(self.flights)
            case "checkpoint":
                self.checkpoints += event["status"] == "completed"
            case "query":
                self.phase = _PHASES["query"]
                if event["in_place"]:
                    screen.note("  it resumes after the newest committed batch; no batch runs again", "green")
            case name:
                self.is_over = name == "stopped"
                self.phase = _PHASES.get(name, self.phase)
                screen.phase(self.phase)


@attrs.frozen
class Outcome:
    """What came of the demo."""

    findings: tuple[Finding, ...]
    """What readers of each target see."""
    copies: tuple[Copy, ...]
    """What they see of each copy of the state."""
    differing: int
    """Rows that are in one target and not in the other."""
    lag: int
    """Flights that the consumer group has not read, as lag tools show it."""
    spared: tuple[str, ...]
    """What was never killed: then the demo shows less than it says."""

    @property
    def is_right(self) -> bool:
        """Whether everything was killed, and every flight counted once."""
        are_exact = all(finding.is_right for finding in self.findings)
        are_copies = all(copy.is_right for copy in self.copies)
        return are_exact and are_copies and not self.differing and not self.lag and not self.spared


@click.command()
@click.option("--keep", is_flag=True, help="Keep the work folder for inspection.")
@click.option(
    "--flights", "limit", type=click.IntRange(min=1_000), help="Stream the first so many flights alone."
)
def main(keep: bool, limit: int | None) -> None:
    """Kill a database, a broker and a driver under a stream of 336,776 flights, and count every flight."""
    console = demo_console()
    began = time.monotonic()
    with demo_folder(console, keep=keep) as folder:
        try:
            outcome = _run(console, folder, limit)
        except NoJavaServerError as error:
            console.print(Text(_missing(error), "red"), soft_wrap=True)
            raise SystemExit(2) from None
    console.print(f"{time.monotonic() - began:.0f} s altogether; nothing is left running.")
    if not outcome.is_right:
        raise SystemExit(1)


def _missing(error: NoJavaServerError) -> str:
    return (
        f"This demo starts a real Kafka broker, which Maven fetches: {error}. On Debian or Ubuntu: apt-get install "
        "maven; on macOS: brew install maven. `make demo` needs neither Maven nor Kafka."
    )


def _run(console: Console, folder: Path, limit: int | None) -> Outcome:
    """Run the demo, and show what came of it."""
    with _servers(console, folder) as (broker, database, jars):
        flights = read_flights().slice(0, limit)
        total = len(flights)
        expected = answer(flights)
        console.print(f"Writing {total:,} flights of {len(expected):,} aircraft to topic {FLIGHTS!r}")
        for topic in (FLIGHTS, TOTALS):
            kafka_server.create_topic(broker.servers, topic, PARTITIONS)
        kafka_server.produce(broker.servers, FLIGHTS, records(flights))
        kafka_server.create_topic(broker.servers, COPY, PARTITIONS, **{"cleanup.policy": "compact"})
        database.execute(f"CREATE TABLE {TOTALS} (key text, value text)")
        database.execute(f"CREATE TABLE {COPY} (aircraft text PRIMARY KEY, flights bigint, delay bigint)")
        places = Places(
            str(folder), broker.servers, database.conninfo(), jars, max(1, total // _BATCHES), total
        )
        kills = [
            Kill("PostgreSQL", total // 4, lambda: _again(database)),
            Kill("Kafka", total // 2, lambda: broker.restart()),
            Kill("driver and JVM", total * 3 // 4, None),
        ]
        story = _stream(console, places, kills)
        rows = {
            "Kafka topic": [(one.value or b"").decode() for one in kafka_server.read(broker.servers, TOTALS)],
            "PostgreSQL table": [row[0] for row in database.execute(f"SELECT value FROM {TOTALS}")],
        }
        copies = {
            "compacted topic": newest_values(kafka_server.read(broker.servers, COPY)),
            "table": {row[0]: (row[1], row[2]) for row in database.execute(f"SELECT * FROM {COPY}")},
        }
        lag = total - sum(kafka_server.group_offsets(broker.servers, GROUP, FLIGHTS).values())
    outcome = Outcome(
        tuple(check(target, found, expected) for target, found in rows.items()),
        tuple(check_copy(target, found, expected) for target, found in copies.items()),
        differing_rows(*rows.values()),
        lag,
        tuple(kill.what for kill in kills if not kill.at),
    )
    for shown in _tables(kills, outcome):
        console.print()
        console.print(shown)
    console.print()
    _verdict(console, outcome, total, story)
    return outcome


@contextlib.contextmanager
def _servers(
    console: Console, folder: Path
) -> Iterator[tuple[kafka_server.Broker, postgres_server.PostgresServer, tuple[str, ...]]]:
    """Start a broker and a database; end them afterwards."""
    # Maven is asked once; `make clean` forgets what it has said.
    known = REPOSITORY / "build" / "maven"
    caches = {name: known / name for name in ("kafka", "kafka-for-spark")}
    for cache in (*caches.values(), folder / "kafka"):
        cache.mkdir(parents=True, exist_ok=True)
    console.print(
        "Fetching Kafka and Spark's connector with Maven, unless they are here, and starting the servers"
    )
    jars = tuple(str(jar) for jar in kafka_server.connector_jars(caches["kafka-for-spark"]))
    broker = kafka_server.Broker(kafka_server.broker_server(folder / "kafka", caches["kafka"]))
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres_server.running(postgres_server.PostgresServer))
        stack.callback(broker.server.kill)
        broker.server.start()
        console.print(
            f"Kafka at {broker.servers} (process {broker.pid}), PostgreSQL at 127.0.0.1:{database.port} "
            f"(process {database.pid})"
        )
        yield broker, database, jars


def _again(database: postgres_server.PostgresServer) -> None:
    database.kill()
    database.start()


def _stream(console: Console, places: Places, kills: list[Kill]) -> Story:
    """Run drivers to the end of the stream, and kill what is to be killed on the way.

    Raises:
        DriverFailedError: a driver failed, died by itself or made no progress.
    """
    description = places.folder / "places.json"
    description.write_bytes(codec.to_json(places))
    story = Story()
    lives = 0
    with Screen(console, places.flights) as screen:
        while not story.is_over:
            story.phase = STARTING
            log = places.folder / "driver.log"
            with Life([str(description)], module=_DRIVER, folder=places.folder, log=log) as life:
                name = f"{_ORDINALS[lives]} driver"
                screen.note(f"{name}: process {life.pid}")
                watch = Watch(name, life, log, lambda: story.phase, screen.note, Patience())
                for event in watch.events():
                    story.take(event, screen)
                    for kill in kills:
                        kill.take(event)
                    due = next((one for one in kills if not one.at and story.flights >= one.after), None)
                    if due is not None and event["event"] == "batch" and not _kill(due, story, life, screen):
                        break
                else:
                    if not story.is_over:
                        raise DriverFailedError(watch.failed("it ended before the end of the stream"))
            lives += 1
    return story


def _kill(kill: Kill, story: Story, life: Life, screen: Screen) -> bool:
    """Kill what is to be killed, and start it again; return whether the driver is still alive."""
    kill.at, kill.flights = time.time(), story.flights
    screen.note(f"SIGKILL to {kill.what}, after {story.flights:,} flights", "bold red")
    if kill.act is None:
        life.kill()
        return False
    kill.act()
    kill.up = time.time() - kill.at
    screen.note(f"  {kill.what} is up again after {kill.up:.1f} s")
    return True


# --- what is shown at the end -------------------------------------------------------------------------------


def _tables(kills: list[Kill], outcome: Outcome) -> Iterator[Table]:
    """Yield what was killed, and what readers see of the output and of the copies of the state."""
    columns = ["of", "after", "up again", "next batch", "next checkpoint"]
    times = ((kill.up, kill.batch, kill.checkpoint) for kill in kills)
    rows = [
        [kill.what, f"{kill.flights:,} flights", *map(seconds, each)]
        for kill, each in zip(kills, times, strict=True)
    ]
    yield table("SIGKILL", columns, rows)
    columns = ["target", "rows", "rows twice", "flights counted", "aircraft that differ"]
    counts = ((one.rows, one.twice, one.flights, len(one.differing)) for one in outcome.findings)
    rows = [
        [one.target, *(f"{count:,}" for count in each)]
        for one, each in zip(outcome.findings, counts, strict=True)
    ]
    yield table("What readers see", columns, rows)
    rows = [[one.target, f"{one.keys:,}", f"{len(one.differing):,}"] for one in outcome.copies]
    yield table("Copies of the state", ["target", "aircraft", "that differ"], rows)


def _verdict(console: Console, outcome: Outcome, flights: int, story: Story) -> None:
    for finding in outcome.findings:
        some = ", ".join(finding.differing[:_SHOWN])
        right = f"all {flights:,} flights are counted once in the {finding.target}"
        verdict(console, finding.is_right, right, f"the {finding.target} is wrong: {some}")
    for copy in outcome.copies:
        some = ", ".join(copy.differing[:_SHOWN])
        right = f"the {copy.target} is a copy of the state"
        verdict(console, copy.is_right, right, f"the {copy.target} is no copy of the state: {some}")
    differing = f"{outcome.differing:,} rows are in one target and not in the other"
    verdict(console, not outcome.differing, "both targets have the same rows", differing)
    right = f"the group {GROUP} shows no lag, after {story.checkpoints} checkpoints"
    verdict(console, not outcome.lag, right, f"the group {GROUP} shows a lag of {outcome.lag:,} flights")
    for what in outcome.spared:
        verdict(console, False, "", f"{what}: not killed, because the stream ended before")


if __name__ == "__main__":
    main()
