"""States replicated to PostgreSQL, Kafka, Delta and Iceberg: each target is the state, in its own terms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from chandy import KafkaSink, PostgresSink, Replica, ReplicaError, SchemaRegistry, TwoPhaseSink
from chandy.coordinator import CheckpointCoordinator, CheckpointedQuery
from chandy.coordinator.errors import PipelineNameError

from ..coordinator.connectors import delta_tables, iceberg_tables
from ..coordinator.connectors.kafka_broker import Broker, new_topic, read
from ..coordinator.connectors.kafka_broker import kafka as kafka
from ..coordinator.connectors.postgres_server import PostgresServer
from ..coordinator.connectors.postgres_server import postgres as postgres
from ..coordinator.connectors.registry_server import Registry
from ..coordinator.connectors.registry_server import schema_registry as schema_registry
from ..waiting import DEADLINE
from .support import PLANS_IN_PYTHON, Make

pytestmark = [pytest.mark.spark, pytest.mark.server]

WAIT = f"{DEADLINE:g} s"


class CountsBelow(StatefulProcessor):
    """Counts the rows of a key, and forgets it at a row below zero."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long, last string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        for row in rows:
            if row.v < 0:
                self.count.clear()
            else:
                n, _ = self.count.get() or (0, None)
                self.count.update((n + 1, None if row.v == 0 else f"ü{row.v}"))
        return iter(())


@attrs.define
class Counted:
    """A pipeline that counts, and its replicas."""

    spark: SparkSession
    folder: Path
    make: Make
    coordinator: CheckpointCoordinator = attrs.field(init=False)
    query: CheckpointedQuery = attrs.field(init=False)
    files: int = 0

    def begin(self, **options: Any) -> None:
        """Begin a life of the driver."""
        self.coordinator = self.make(retained=5, restart=PLANS_IN_PYTHON, **options)
        rows = self.spark.readStream.schema("k string, v long").json(str(self.folder))
        counts = self.coordinator.transform_with_state(
            rows, key=["k"], processor=CountsBelow(), output="k string", uid="counts", shards=4
        )
        self.query = self.coordinator.start(counts.writeStream.format("noop"), name="counts")

    def give(self, **values: int) -> int:
        """Give a row for each key, and return the checkpoint that has them."""
        rows = "\n".join(json.dumps({"k": key, "v": value}) for key, value in values.items())
        (self.folder / f"{self.files}.json").write_text(rows)
        self.files += 1
        self.query.processAllAvailable()
        return self.coordinator.checkpoint().result(DEADLINE).id

    def replicate(self, to: TwoPhaseSink, name: str, **options: Any) -> Replica:
        return self.coordinator.replicate("counts", to=to, name=name, **options)


@pytest.fixture
def counted(spark: SparkSession, make: Make, tmp_path: Path) -> Counted:
    (tmp_path / "in").mkdir()
    return Counted(spark, tmp_path / "in", make)


def table(postgres: PostgresServer) -> PostgresSink:
    """A table that is not there yet."""
    postgres.execute("DROP TABLE IF EXISTS chandy_positions, copy")
    return PostgresSink(
        conninfo=postgres.conninfo(),
        table="copy",
        mode="upsert",
        key="k",
        deleted="_deleted",
        create_table=True,
    )


def test_a_table_is_the_state_over_lives_and_when_the_pipeline_goes_back(
    counted: Counted, postgres: PostgresServer
) -> None:
    sink = table(postgres)

    def rows() -> set[tuple[Any, ...]]:
        return set(postgres.execute("SELECT k, n, last FROM copy"))

    counted.begin()
    replica = counted.replicate(sink, "table")
    first = counted.give(a=1, b=0, c=3)
    assert replica.catch_up(WAIT) == first
    assert rows() == {("a", 1, "ü1"), ("b", 1, None), ("c", 1, "ü3")}
    counted.give(a=-1, b=2)
    replica.catch_up(WAIT)
    assert rows() == {("b", 2, "ü2"), ("c", 1, "ü3")}
    counted.coordinator.stop()

    counted.begin(restore=first)
    # The input since then is counted again, and more.
    replica = counted.replicate(sink, "table")
    counted.give(c=5, d=6)
    replica.catch_up(WAIT)
    assert rows() == {("b", 2, "ü2"), ("c", 2, "ü5"), ("d", 1, "ü6")}
    assert replica.status.targets == ("postgres",)
    # It can be switched off and on.
    replica.stop()
    counted.give(e=1)
    replica = counted.replicate(sink, "table")
    with pytest.raises(PipelineNameError, match="'table'"):
        counted.replicate(sink, "table")
    replica.catch_up(WAIT)
    assert rows() == {("b", 2, "ü2"), ("c", 2, "ü5"), ("d", 1, "ü6"), ("e", 1, "ü1")}
    counted.coordinator.stop()

    # The pipeline starts over, and at first no checkpoint has the operator.
    counted.begin(restore="none")
    counted.coordinator.checkpoint().result(DEADLINE)
    replica = counted.replicate(sink, "table")
    counted.give(f=1)
    replica.catch_up(WAIT)
    counts = {(k, n) for k, n, _ in rows() if k != "a"}
    assert counts == {("b", 2), ("c", 2), ("d", 1), ("e", 1), ("f", 1)}
    replica.drop()
    assert counted.coordinator.replicas == ()


@pytest.mark.full(
    "integration/test_replica_targets.py::test_a_table_is_the_state_over_lives_and_when_the_pipeline_goes_back"
)
def test_targets_that_were_away_get_what_has_come_meanwhile_in_one_step(
    counted: Counted, postgres: PostgresServer, tmp_path: Path
) -> None:
    by_key: dict[str, Any] = {"mode": "upsert", "key": ("k",), "deleted": "_deleted"}
    delta = delta_tables.DeltaTarget(str(tmp_path / "delta"))
    iceberg = iceberg_tables.IcebergTarget(tmp_path / "iceberg")
    (iceberg.folder / "warehouse").mkdir(parents=True)
    sinks = {
        "postgres": table(postgres),
        "delta": attrs.evolve(delta.sink(), **by_key),
        "iceberg": attrs.evolve(iceberg.sink(), **by_key),
    }

    def replicate() -> list[Replica]:
        return [counted.replicate(sink, name) for name, sink in sinks.items()]

    counted.begin()
    replicas = replicate()
    counted.give(a=1, b=1)
    for replica in replicas:
        replica.catch_up(WAIT)
        replica.stop()
    # Retention drops more checkpoints than it keeps.
    for _ in range(7):
        newest = counted.give(a=1, c=1)
    counted.give(b=-1)
    counted.coordinator.stop()
    counted.begin()
    for replica in replicate():
        assert replica.catch_up(WAIT) > newest
    in_lake = [
        delta.open().to_pyarrow_table().to_pylist(),
        iceberg.catalog().load_table(iceberg.name).scan().to_arrow().to_pylist(),
    ]
    expected = {("a", 8), ("c", 7)}
    assert set(postgres.execute("SELECT k, n FROM copy")) == expected
    assert [{(row["k"], row["n"]) for row in rows} for rows in in_lake] == [expected] * 2


def test_topics_are_the_state_for_readers_of_upserts_and_of_debezium(counted: Counted, kafka: Broker) -> None:
    plain, wrapped = new_topic(kafka), new_topic(kafka)

    def sink(topic: str) -> KafkaSink:
        return KafkaSink(bootstrap_servers=kafka.servers, topic=topic)

    counted.begin()
    replicas = [
        counted.replicate(sink(plain), "plain"),
        counted.replicate(sink(wrapped), "wrapped", format="debezium", before=True),
    ]
    assert [one.status.format for one in replicas] == ["upsert", "debezium"]
    first = counted.give(a=1, b=0)
    for replica in replicas:
        replica.catch_up(WAIT)
    second = counted.give(a=-1, b=2, c=3)
    for replica in replicas:
        replica.catch_up(WAIT)

    table: dict[str, Any] = {}
    for message in read(kafka.servers, plain):
        key = json.loads(message.key)["k"]
        table.pop(key, None)
        if message.value is not None:
            table[key] = json.loads(message.value)
    assert table == {"b": {"n": 2, "last": "ü2"}, "c": {"n": 1, "last": "ü3"}}

    by_key: dict[str, list[Any]] = {}
    for message in read(kafka.servers, wrapped):
        value = None if message.value is None else json.loads(message.value)
        by_key.setdefault(json.loads(message.key)["k"], []).append(value)
    # A reader that knows Debezium's envelope and nothing of Chandy builds the same table.
    last = {key: [value for value in values if value][-1] for key, values in by_key.items()}
    assert {key: value["after"] for key, value in last.items() if value["op"] != "d"} == table
    of_a, of_b, of_c = by_key["a"], by_key["b"], by_key["c"]
    assert [value and value["op"] for value in of_a] == ["r", "d", None]
    assert [value["op"] for value in of_b] == ["r", "u"]
    assert [value["op"] for value in of_c] == ["c"]
    deletion, update = of_a[1], of_b[1]
    assert (deletion["before"], deletion["after"]) == ({"n": 1, "last": "ü1"}, None)
    assert (update["before"], update["after"]) == ({"n": 1, "last": None}, {"n": 2, "last": "ü2"})
    assert update["transaction"] == {"id": str(second)}
    source = update["source"]
    assert (source["connector"], source["name"], source["operator"], source["state"]) == (
        "chandy",
        "p",
        "counts",
        "count",
    )
    assert (source["checkpoint"], source["snapshot"], of_b[0]["source"]["snapshot"]) == (
        second,
        "false",
        "true",
    )
    assert of_b[0]["source"]["checkpoint"] == first
    assert isinstance(update["ts_ms"], int)


def test_topics_in_avro_are_the_state_for_readers_of_the_registry(
    counted: Counted, kafka: Broker, schema_registry: Registry
) -> None:
    plain, wrapped = new_topic(kafka), new_topic(kafka)
    known = SchemaRegistry(url=schema_registry.url)
    sinks = [KafkaSink(bootstrap_servers=kafka.servers, topic=topic) for topic in (plain, wrapped)]

    def replicate() -> list[Replica]:
        return [
            counted.replicate(sinks[0], "in-avro", registry=known),
            counted.replicate(sinks[1], "wrapped-in-avro", registry=known, format="debezium", before=True),
        ]

    counted.begin()
    replicas = replicate()
    first = counted.give(a=1, b=0)
    for replica in replicas:
        replica.catch_up(WAIT)
    # What a later life writes has the same schemas.
    counted.coordinator.stop()
    counted.begin()
    replicas = replicate()
    second = counted.give(a=-1, b=2, c=3)
    for replica in replicas:
        replica.catch_up(WAIT)

    # A reader that knows the registry and nothing of Chandy.
    decode = AvroDeserializer(SchemaRegistryClient({"url": schema_registry.url}))

    def records(topic: str) -> list[tuple[Any, Any]]:
        return [
            (
                decode(one.key, SerializationContext(topic, MessageField.KEY)),
                decode(one.value, SerializationContext(topic, MessageField.VALUE)),
            )
            for one in read(kafka.servers, topic)
        ]

    upserts = [(key["k"], value) for key, value in records(plain)]
    table = {key: value for key, value in dict(upserts).items() if value is not None}
    assert table == {"b": {"n": 2, "last": "ü2"}, "c": {"n": 1, "last": "ü3"}}
    assert [value for key, value in upserts if key == "a"] == [{"n": 1, "last": "ü1"}, None]

    by_key: dict[str, list[Any]] = {}
    for key, value in records(wrapped):
        by_key.setdefault(key["k"], []).append(value)
    assert [value and value["op"] for value in by_key["a"]] == ["r", "d", None]
    deletion, update = by_key["a"][1], by_key["b"][1]
    assert (deletion["before"], deletion["after"]) == ({"n": 1, "last": "ü1"}, None)
    assert (update["before"], update["after"]) == ({"n": 1, "last": None}, {"n": 2, "last": "ü2"})
    assert (update["op"], update["transaction"], by_key["b"][0]["source"]["checkpoint"]) == (
        "u",
        {"id": str(second)},
        first,
    )
    for topic, versions in ((plain, [1]), (wrapped, [1])):
        assert schema_registry.ask(f"/subjects/{topic}-key/versions") == versions
        assert schema_registry.ask(f"/subjects/{topic}-value/versions") == versions

    # JSON would not replace what the topic has.
    replicas[0].stop()
    with pytest.raises(ReplicaError, match="'upsert' with keys in Avro"):
        counted.replicate(sinks[0], "in-avro")
    with pytest.raises(ReplicaError, match="'debezium'"):
        counted.replicate(sinks[0], "in-avro", format="debezium", registry=known)


def test_a_sink_that_cannot_be_a_copy_is_refused(counted: Counted, postgres: PostgresServer) -> None:
    counted.begin()
    sink = PostgresSink(conninfo=postgres.conninfo(), table="copy", mode="upsert", key="n")
    with pytest.raises(ReplicaError, match="deleted='_deleted'"):
        counted.replicate(sink, "table")
    assert counted.coordinator.replicas == ()
