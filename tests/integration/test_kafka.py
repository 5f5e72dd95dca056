"""Kafka to keyed state to Kafka, under Spark, with a real broker: nothing is lost unsaid, nothing is counted twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from click.testing import CliRunner

from benchmarks.flights import read_flights
from benchmarks.kafka_demo.check import check
from benchmarks.servers import kafka as servers
from benchmarks.upgrade_demo.flow import NO_NUMBER, WRONGED, Part, answer, as_rows, parts
from chandy.coordinator.cli import main
from chandy.coordinator.verdict import Kind
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog

from ..coordinator.connectors.kafka_broker import Broker, new_topic, read
from ..coordinator.connectors.kafka_broker import kafka as kafka
from ..coordinator.connectors.kafka_targets import ends
from ..coordinator.connectors.postgres_server import PostgresServer
from ..coordinator.connectors.postgres_server import postgres as postgres
from ..effort import IS_FULL
from ..maven import or_skip
from ..pages import ROOT, blocks, commands
from ..waiting import DEADLINE, eventually
from .kafka_driver import PIPELINE, QUERY, KafkaDriver

pytestmark = [pytest.mark.spark, pytest.mark.server]

PAGE = ROOT / "docs" / "kafka.md"
PACKAGE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
GROUP = f"chandy-{PIPELINE}-{QUERY}"


@pytest.fixture(scope="module")
def jars(pytestconfig: pytest.Config) -> list[str]:
    assert pytestconfig.cache is not None
    with or_skip("Kafka connector", unless="CHANDY_REQUIRE_KAFKA"):
        found = servers.connector_jars(pytestconfig.cache.mkdir("kafka-for-spark"))
    return [str(jar) for jar in found]


@attrs.define
class Flow:
    """A topic in, a topic out, and what was put in."""

    kafka: Broker
    folder: Path
    jars: list[str]
    topic: str
    out: str | None
    given: list[tuple[str, int]] = attrs.field(factory=list)

    real_time: bool = False
    more: dict[str, str] = attrs.field(factory=dict)
    """Other options of the driver."""

    def driver(self, **more: str) -> KafkaDriver:
        reader = {
            "kafka.bootstrap.servers": self.kafka.servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.metadata.max.age.ms": "500",
        }
        options = {"folder": str(self.folder), "jars": self.jars, "reader": reader | more, "out": self.out}
        options["real_time"] = self.real_time
        return KafkaDriver(self.folder, options | self.more)

    def give(self, records: int, partitions: int) -> None:
        first = len(self.given)
        rows = [(f"k{number % 7}", first + number) for number in range(records)]
        given = (
            (None, json.dumps({"k": key, "v": value}).encode(), number % partitions)
            for number, (key, value) in enumerate(rows)
        )
        servers.produce(self.kafka.servers, self.topic, given)
        self.given += rows

    def totals(self) -> dict[str, tuple[int, int]]:
        """What is right: by key the number of records and their sum."""
        found: dict[str, tuple[int, int]] = {}
        for key, value in self.given:
            n, total = found.get(key, (0, 0))
            found[key] = n + 1, total + value
        return found

    def published(self) -> dict[str, tuple[int, int]]:
        """The last row of each key; no row may come twice."""
        assert self.out is not None
        rows = [
            ((one.key or b"").decode(), json.loads(one.value or b""))
            for one in read(self.kafka.servers, self.out)
        ]
        counts = [(key, row["n"]) for key, row in rows]
        assert len(set(counts)) == len(counts), "a row came twice"
        return {key: (row["n"], row["total"]) for key, row in sorted(rows, key=lambda row: row[1]["n"])}

    def counts(self) -> dict[str, int]:
        """The largest count of each key. Spark's own sink may write a row twice."""
        assert self.out is not None
        found: dict[str, int] = {}
        for one in read(self.kafka.servers, self.out):
            key = (one.key or b"").decode()
            found[key] = max(found.get(key, 0), json.loads(one.value or b"")["n"])
        return found

    def offsets_of_checkpoint(self) -> dict[str, Any]:
        """What `chandy show` says of the latest checkpoint."""
        done = CliRunner().invoke(main, ["show", str(self.folder / "store"), "--json"])
        assert done.exit_code == 0, done.output
        (source,) = json.loads(done.stdout)["sources"]
        assert (source["query"], source["source"]) == (QUERY, "0")
        found: dict[str, Any] = json.loads(source["offset"])
        return found

    def offsets_of_group(self) -> dict[str, Any]:
        """What lag tools show."""
        found = servers.group_offsets(self.kafka.servers, GROUP, self.topic)
        return {self.topic: {str(partition): offset for partition, offset in found.items()}}

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.kafka.servers})

    def add_partitions(self, total: int) -> None:
        from confluent_kafka.admin import NewPartitions

        admin = self.admin()
        (made,) = admin.create_partitions([NewPartitions(self.topic, total)]).values()
        made.result(DEADLINE)
        eventually(lambda: len(admin.list_topics(self.topic, 30).topics[self.topic].partitions) == total)

    def delete_records(self, partition: int, before: int) -> None:
        from confluent_kafka import TopicPartition

        admin = self.admin()
        asked = admin.delete_records([TopicPartition(self.topic, partition, before)])
        (deleted,) = asked.values()
        deleted.result(DEADLINE)


@pytest.fixture
def flow(kafka: Broker, jars: list[str], tmp_path: Path) -> Iterator[Flow]:
    (tmp_path / "r").mkdir(mode=0o700)
    yield Flow(kafka, tmp_path, jars, new_topic(kafka, 2), new_topic(kafka, 2))


def test_a_query_reads_kafka_goes_on_after_a_kill_and_is_not_started_without_what_comes_next(
    flow: Flow,
) -> None:
    flow.give(50, partitions=2)
    with flow.driver() as first:
        first.heard("coordinator")
        first.tell("start")
        first.heard("started")
        first.tell("checkpoint")
        first.heard("checkpoint")
        assert flow.published() == flow.totals()
        assert flow.offsets_of_checkpoint() == {flow.topic: {"0": 25, "1": 25}}
        eventually(lambda: flow.offsets_of_group() == flow.offsets_of_checkpoint())
        # What no checkpoint has is counted by nobody yet, and lag tools say so.
        flow.give(20, partitions=2)
        first.tell("process")
        first.heard("processed")
        first.kill()
    assert flow.offsets_of_group() == {flow.topic: {"0": 25, "1": 25}}
    assert first.log.read_text().count("read_committed") == 1

    # Partitions that come while nobody reads are read from their beginning.
    flow.add_partitions(4)
    flow.give(40, partitions=4)
    with flow.driver() as second:
        assert second.heard("coordinator") != [0]
        second.tell("start")
        second.heard("started")
        second.tell("checkpoint")
        second.heard("checkpoint")
        assert flow.published() == flow.totals()
        second.tell("stop")
        second.heard("stopped")
    # A stop waits until lag tools see its checkpoint.
    assert flow.offsets_of_group() == flow.offsets_of_checkpoint()
    assert set(flow.offsets_of_group()[flow.topic]) == {"0", "1", "2", "3"}

    flow.give(80, partitions=4)
    stands = flow.offsets_of_checkpoint()[flow.topic]["3"]
    flow.delete_records(3, stands + 4)
    with flow.driver() as third:
        third.heard("coordinator")
        third.tell("start")
        kind, message, running = third.heard("refused")
        assert kind == "SourceLostError"
        assert f"offset {stands} in partition 3 of topic '{flow.topic}'" in message
        assert f"{stands + 4} as the earliest" in message
        # Spark has not been asked for anything.
        assert running == 0
    with flow.driver(failOnDataLoss="false") as fourth:
        fourth.heard("coordinator")
        fourth.tell("start")
        fourth.heard("started")
        fourth.tell("checkpoint")
        fourth.heard("checkpoint")
        found = flow.published()
        assert sum(n for n, _ in found.values()) == len(flow.given) - 4


@pytest.mark.full(
    "coordinator/connectors/test_kafka_source.py::test_a_broker_that_is_away_holds_nobody_up_and_gets_the_newest_offsets_later"
)
def test_a_broker_that_does_not_answer_holds_up_no_checkpoint(flow: Flow) -> None:
    flow.out = None
    flow.give(20, partitions=2)
    with flow.driver() as driver:
        driver.heard("coordinator")
        driver.tell("start")
        driver.heard("started")
        driver.tell("process")
        driver.heard("processed")
        with flow.kafka.frozen():
            driver.tell("checkpoint as it is")
            driver.heard("checkpoint")
            driver.tell("checkpoint as it is")
            driver.heard("checkpoint")
        driver.tell("checkpoint as it is")
        driver.heard("checkpoint")
        eventually(lambda: flow.offsets_of_group() == flow.offsets_of_checkpoint() != {flow.topic: {}})


def test_the_plan_of_a_query_tells_its_kafka_sources_each_once_in_the_order_of_the_log(flow: Flow) -> None:
    with flow.driver() as driver:
        driver.heard("coordinator")
        driver.tell("facts")
        first, second = driver.heard("facts")
        assert [first[0], second[0]] == ["kafka", "kafka"]
        assert first[2]["kafka.bootstrap.servers"] == flow.kafka.servers
        assert first[2]["subscribe"] == flow.topic
        assert "failondataloss" not in first[2]
        assert second[2]["failondataloss"] == "false"


def run(code: str, kafka: Broker, jars: list[str], folder: Path) -> str:
    """Run a program that users read, on the broker and the connector of the tests; return what it prints."""
    assert code.count('"spark.jars.packages", PACKAGE') == 1
    code = code.replace('"spark.jars.packages", PACKAGE', f'"spark.jars", "{",".join(jars)}"')
    (folder / "program.py").write_text(code.replace("localhost:9092", kafka.servers))
    done = subprocess.run(
        [sys.executable, "program.py", str(folder)],
        cwd=folder,
        env=os.environ | {"CHANDY_RUNTIME_DIR": str(folder / "r"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    return done.stdout


def give_flights(flow: Flow, part: Part) -> None:
    """Write flights in one transaction."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": flow.kafka.servers, "transactional.id": flow.topic})
    producer.init_transactions()
    producer.begin_transaction()
    for row in part.flights.select(["carrier", "tailnum", "dep_delay"]).to_pylist():
        record = {
            "carrier": row["carrier"],
            "aircraft": row["tailnum"] or NO_NUMBER,
            "dep_delay": row["dep_delay"],
        }
        producer.produce(flow.topic, json.dumps(record).encode())
    producer.commit_transaction()
    # The broker answers before readers of what is committed can read it.
    eventually(lambda: len(set(ends(flow.kafka, flow.topic))) == 1, "the end of the transaction")


@pytest.mark.full(
    "integration/test_kafka.py::test_a_query_reads_kafka_goes_on_after_a_kill_and_is_not_started_without_what_comes_next"
)
def test_the_example_counts_each_order_once_in_every_run(
    kafka: Broker, jars: list[str], tmp_path: Path
) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    code = (ROOT / "examples" / "kafka_totals.py").read_text()
    assert f'"{PACKAGE}"' in code
    for begins, times in (("begins", 1), ("goes on from a checkpoint", 2)):
        sums = [
            f"customer {at}: {times * 25} orders, {times * sum(range(at, 100, 4))} cents" for at in range(4)
        ]
        assert run(code, kafka, jars, tmp_path).splitlines() == [begins, *sums]


def test_the_code_of_the_page_runs(kafka: Broker, jars: list[str], tmp_path: Path) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    code = "\n".join(block.code for block in blocks(PAGE) if block.language == "python")
    run(code.replace(f'"{PACKAGE}"', "PACKAGE").replace("/tmp/", f"{tmp_path}/"), kafka, jars, tmp_path)
    for block in blocks(PAGE):
        for command in commands(block) if block.language == "sh" else ():
            if command.words[0] == "chandy":
                words = [word.replace("/tmp/", f"{tmp_path}/") for word in command.words[1:]]
                shown = CliRunner().invoke(main, words)
                assert shown.exit_code == command.exit_code, (command, shown.output)


def test_a_real_time_query_goes_on_from_the_end_of_a_batch_after_its_driver_was_killed(flow: Flow) -> None:
    flow.real_time = True

    def wanted() -> dict[str, int]:
        return {key: n for key, (n, _) in flow.totals().items()}

    def give(records: int) -> None:
        flow.give(records, partitions=2)
        eventually(lambda: flow.counts() == wanted(), "the counts of all records")

    flow.give(50, partitions=2)
    with flow.driver() as first:
        first.heard("coordinator")
        first.tell("start")
        first.heard("started")
        give(20)
        # The rows have been read by a batch that is still open: the checkpoint waits for its end.
        first.tell("checkpoint as it is")
        first.heard("checkpoint")
        assert flow.offsets_of_checkpoint() == {flow.topic: {"0": 35, "1": 35}}
        give(30)
        first.kill()
    with flow.driver() as second:
        assert second.heard("coordinator") != [0]
        second.tell("start")
        second.heard("started")
        give(40)
        second.tell("stop")
        second.heard("stopped")
    assert flow.counts() == wanted(), "a row has been counted twice"
    assert flow.offsets_of_checkpoint() == {flow.topic: {"0": 70, "1": 70}}


def test_a_version_that_was_compared_goes_on_from_kafka_into_postgresql_and_a_wrong_one_is_found(
    kafka: Broker, jars: list[str], postgres: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "r").mkdir(mode=0o700)
    course = parts(read_flights(), 15)
    before, mistake = [number for number, part in enumerate(course) if part.shows][:2]
    if not IS_FULL:
        course = [course[at] for at in (before, before + 1, mistake, mistake + 1)]
        before, mistake = 0, 2
    topic = new_topic(kafka, 1)
    table = topic.replace("-", "_")
    postgres.execute(
        f"CREATE TABLE {table} (carrier text, aircraft text, new bigint, flights bigint, delay bigint)"
    )
    flow = Flow(kafka, tmp_path, jars, topic, table, more={"postgres": postgres.conninfo()})
    store = open_store(str(tmp_path / "store" / PIPELINE))
    cuts: list[int] = []
    """The last batch of each part: Spark may make two of a transaction."""

    with flow.driver(**{"kafka.isolation.level": "read_committed"}) as driver:

        def has_the_end() -> bool:
            """Take a checkpoint; return whether it has all records."""
            driver.tell("checkpoint")
            driver.heard("checkpoint")
            return int(flow.offsets_of_checkpoint()[topic]["0"]) == ends(kafka, topic)[1]

        def run(some: Sequence[Part]) -> None:
            """Have a checkpoint for each part."""
            for part in some:
                give_flights(flow, part)
                # A batch that was being planned meanwhile may have asked Kafka before: Spark takes its answer for all.
                eventually(has_the_end, "a checkpoint of the part")
                latest = Catalog(store).latest()
                assert latest is not None
                cuts.append(latest.queries[0].batch)

        def differs(shadow: str) -> bool:
            """Wait until a shadow has compared all that there is; return whether anything has differed."""
            batch = cuts[-1]
            eventually(
                lambda: (
                    (found := read_verdict(store, shadow))
                    and found.stood.get(QUERY) == batch
                    and found.states
                ),
                f"batch {batch} compared by {shadow}",
            )
            found = read_verdict(store, shadow)
            assert found is not None and found.skipped == 0
            return not found.is_equal

        driver.heard("coordinator")
        driver.tell("start")
        driver.heard("started")
        run(course[: before + 1])
        for version in ("wrong", "new"):
            driver.tell("shadow", version)
            driver.heard("shadow")
        run(course[before + 1 : mistake])
        assert not differs("wrong")
        run(course[mistake : mistake + 1])
        assert differs("wrong")
        assert not differs("new")
        driver.tell("switch", "new")
        driver.heard("switched")
        run(course[mistake + 1 :])
        # It is the shadow of the driver that leads now.
        assert differs("wrong")
    found = read_verdict(store, "wrong")
    assert found is not None
    output, state = (
        next(one for one in found.findings if one.kind is kind) for kind in (Kind.OUTPUT, Kind.STATE)
    )
    assert cuts[mistake - 1] < output.batch <= cuts[mistake] == state.batch
    assert output.what == "sink 'postgres'"
    assert "columns with other values: delay" in output.says
    assert WRONGED in output.example or WRONGED in state.example
    rows = postgres.execute(f"SELECT row_to_json(t) FROM {table} t")
    table = pa.Table.from_pylist([row for (row,) in rows])
    counted = check("postgres", map(json.dumps, as_rows(table)), answer(part.flights for part in course))
    assert counted.is_right, counted
