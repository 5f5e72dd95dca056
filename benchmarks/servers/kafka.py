"""A Kafka broker from Maven, and the jars with which Spark reads and writes Kafka."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from ..ports import free_ports
from .maven import class_path, program
from .process import Server, listens

POM: Final = Path(__file__).with_name("kafka.pom.xml")
CONNECTOR_POM: Final = Path(__file__).with_name("kafka_for_spark.pom.xml")
CLUSTER_ID: Final = "Y2hhbmR5LXRlc3RzLWth"
START: Final = 300.0
"""Seconds in which a broker starts on a machine that is busy otherwise."""
_FORMAT_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 30.0
_FLUSH_SECONDS: Final = 120.0
_READ_SECONDS: Final = 90.0
_MARKER_SECONDS: Final = 5.0
"""How long a reader waits for the ends of transactions that are committed."""
_OWN_JARS: Final = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""What the connector brings that Spark does not have."""


@attrs.frozen
class Listener:
    """One more port of a broker."""

    name: str
    port: int
    advertised: int
    """The port that its clients are sent to."""
    protocol: str = "PLAINTEXT"


@attrs.define
class Broker:
    """One broker, controller of itself. Its port stays when it is started again, and so do its logs."""

    server: Server

    @property
    def servers(self) -> str:
        """Where it is, as ``bootstrap.servers``."""
        return f"127.0.0.1:{self.server.port}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.server.pid

    def restart(self) -> None:
        """Kill it and start it again."""
        self.server.kill()
        self.server.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop its process for the length of the ``with``: it accepts connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine its threads go on for a moment.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def broker_server(
    directory: Path, cache: Path, *, listeners: Iterable[Listener] = (), settings: str = ""
) -> Server:
    """Return the server of a broker that is formatted and not started.

    Args:
        directory: for its settings, its logs and its log. It exists.
        cache: where the class path is remembered.
        listeners: ports besides the one for everybody.
        settings: lines of its properties beyond those that every broker has here.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    java = [program("java"), "-Xmx370m", "-XX:+UseSerialGC", "-cp", class_path(POM, cache)]
    port, controller = free_ports(2)
    everybody = Listener("PLAINTEXT", port, port)
    open_to = (everybody, *listeners)
    properties = directory / "server.properties"
    properties.write_text(
        f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={"".join(f"{one.name}://127.0.0.1:{one.port}," for one in open_to)}CONTROLLER://127.0.0.1:{controller}
advertised.listeners={",".join(f"{one.name}://127.0.0.1:{one.advertised}" for one in open_to)}
listener.security.protocol.map={"".join(f"{one.name}:{one.protocol}," for one in open_to)}CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/logs
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4000000
{settings}
"""
    )
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties)],
        check=True,
        capture_output=True,
        timeout=_FORMAT_SECONDS,
    )
    return Server(
        [*java, "kafka.Kafka", str(properties)], port, directory, lambda _: _serves(port), deadline=START
    )


def connector_jars(cache: Path) -> list[Path]:
    """Return the jars of Spark's connector for Kafka, for ``spark.jars``.

    Args:
        cache: where the class path is remembered.

    Raises:
        NoJavaServerError: no Maven, or no repository with the artefacts.
    """
    jars = [Path(jar) for jar in class_path(CONNECTOR_POM, cache).split(":")]
    return [jar for jar in jars if jar.name.startswith(_OWN_JARS)]


# --- topics -------------------------------------------------------------------------------------------------


@attrs.frozen
class Record:
    """A record as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def create_topic(servers: str, name: str, partitions: int, **settings: str) -> None:
    """Create a topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    (made,) = admin.create_topics([NewTopic(name, partitions, config=settings)]).values()
    made.result(_ANSWER_SECONDS)


def delete_topic(servers: str, name: str) -> None:
    """Delete a topic. Brokers may show it for a moment longer."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers})
    (gone,) = admin.delete_topics([name]).values()
    gone.result(_ANSWER_SECONDS)


def produce(servers: str, topic: str, records: Iterable[tuple[bytes | None, bytes, int | None]]) -> None:
    """Write records, each a key, a value and a partition; without a partition, the key decides.

    Raises:
        RuntimeError: one was not delivered.
    """
    from confluent_kafka import Producer

    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "on_delivery": delivered})
    for key, value, partition in records:
        while True:
            try:
                producer.produce(topic, value, key, -1 if partition is None else partition)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(_FLUSH_SECONDS)
    if left or failures:
        raise RuntimeError(f"{left + len(failures)} records were not delivered to {topic}: {failures[:1]}")


def read(servers: str, *topics: str, isolation: str = "read_committed") -> list[Record]:
    """Return all records of topics up to their ends, partition by partition in their order.

    What is committed while it reads is in a partition's records with its whole transaction or not at all. What was
    committed before is in them: a broker answers that a transaction is committed before its partitions show it, so
    this waits a while for open transactions to end.

    Raises:
        TimeoutError: the ends were not reached in time.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "tests",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "log_level": 0,
        }
    )
    records: list[Record] = []
    deadline = time.monotonic() + _READ_SECONDS
    try:
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        ]
        if isolation == "read_committed":
            _await_markers(servers, places)
        consumer.assign(places)
        ended = set[tuple[str | None, int | None]]()
        while len(ended) < len(places):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the end of {topics} was not reached in {_READ_SECONDS:g} s")
            some: list[Any] = consumer.consume(1_000, 0.1)
            for message in some:
                place = message.topic(), message.partition()
                if place in ended:
                    # The client goes on past the end with what has come since, of which this may be a part.
                    continue
                if message.error() is None:
                    records.append(
                        Record(*place, message.offset(), message.key(), message.value(), message.headers())
                    )
                elif message.error().name() == "_PARTITION_EOF":
                    ended.add(place)
    finally:
        consumer.close()
    return sorted(records, key=lambda one: (one.topic, one.partition, one.offset))


def _await_markers(servers: str, partitions: Iterable[Any]) -> None:
    """Wait until no transaction is open in some partitions, or until those that are open are there to stay."""
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    latest: Any = OffsetSpec

    def ends(level: Any) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(one.topic, one.partition): latest.latest() for one in partitions}
        answers = admin.list_offsets(asked, isolation_level=level)
        return {
            (one.topic, one.partition): answer.result(_ANSWER_SECONDS).offset
            for one, answer in answers.items()
        }

    def are_closed() -> bool:
        try:
            return ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED)
        except KafkaException as error:
            # A topic that was just made has no leader yet.
            if error.args[0].code() in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE):
                return False
            raise

    deadline = time.monotonic() + _MARKER_SECONDS
    while not are_closed() and time.monotonic() < deadline:
        time.sleep(0.02)


def group_offsets(servers: str, group: str, topic: str) -> dict[int, int]:
    """Return the offsets that a consumer group has of a topic, by partition, as lag tools see them."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic].partitions
        places = [TopicPartition(topic, partition) for partition in partitions]
        found = consumer.committed(places, timeout=_ANSWER_SECONDS)
        # One that has none has a negative one.
        return {place.partition: place.offset for place in found if place.offset >= 0}
    finally:
        consumer.close()


def _serves(port: int) -> bool:
    """Whether the broker answers a client, which is later than its port is open."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if not listens(port):
        return False
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
