"""A real Kafka broker for tests, as a process, and a proxy in front of it that cuts connections."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs

from ...maven import class_path, program
from ...storage.servers import Server, free_port
from ...waiting import eventually

POM = Path(__file__).with_name("kafka") / "pom.xml"
CLUSTER_ID = "Y2hhbmR5LXRlc3RzLWth"
STRANGER = "stranger"
"""A user without permissions."""
PASSWORD = "PASSWORDOFTESTS"
START = 300.0
"""Seconds in which the broker starts on a machine that is busy otherwise."""


@attrs.define
class Broker:
    """One broker, controller of itself. Its port stays when it is started again, and so do its logs."""

    server: Server
    sasl: int
    """The port for users with passwords."""
    behind: int
    """The port for a proxy. Its clients are sent to the proxy's own port."""
    proxy: int

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def pid(self) -> int:
        assert self.server.process is not None
        return self.server.process.pid

    def restart(self) -> None:
        self.server.kill()
        self.server.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)


def broker(directory: Path, cache: Path) -> Broker:
    """Return a broker that is formatted and not started.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    java = [program("java"), "-Xmx370m", "-XX:+UseSerialGC", "-cp", class_path(POM, cache)]
    port, controller, sasl, behind, proxy = (free_port() for _ in range(5))
    settings = directory / "server.properties"
    users = "".join(f' user_{name}="{PASSWORD}"' for name in (STRANGER,))
    settings.write_text(
        f"""
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},BEHIND://127.0.0.1:{behind},SASL_PLAINTEXT://127.0.0.1:{sasl},\
CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},BEHIND://127.0.0.1:{proxy},SASL_PLAINTEXT://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BEHIND:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,\
CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required{users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
log.dirs={directory}/logs
num.partitions=3
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4000000
"""
    )
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(settings)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    server = Server(
        [*java, "kafka.Kafka", str(settings)], port, directory, lambda _: _serves(port), deadline=START
    )
    return Broker(server, sasl, behind, proxy)


def _serves(port: int) -> bool:
    """Whether the broker answers a client, which is later than its port is open."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False


class Proxy:
    """Passes connections on to a port, until a request comes whose answer is to be lost. Then nothing passes."""

    def __init__(self, port: int, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", port))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._is_meant: Callable[[bytes], bool] | None = None
        self._arrives = False
        self._cut = False
        self._awaited: socket.socket | None = None
        """The broker's end of the connection whose answer is to be lost."""
        self._answered = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @contextlib.contextmanager
    def losing(self, is_meant: Callable[[bytes], bool], *, arrives: bool) -> Iterator[None]:
        """Cut all connections at a request that is meant, once it has arrived or before, until the end of the block."""
        self._answered.clear()
        self._arrives, self._is_meant = arrives, is_meant
        try:
            yield
            assert self._cut, "the request did not come"
            # Another request could overtake it.
            assert not arrives or self._answered.wait(START), "the request was not answered"
        finally:
            self._is_meant, self._cut = None, False

    def close(self) -> None:
        # While a thread waits in ``accept``, the port stays taken, also after ``close``.
        _shut(self._listener)
        self._accepting.join(START)
        self._listener.close()
        self._shut_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                if self._cut:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._to))
                with self._lock:
                    self._open += [client, server]
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if asks and self._is_meant is not None and self._is_meant(data):
                    self._cut = True
                    if self._arrives:
                        self._awaited = sink
                        _shut(source)
                        sink.sendall(data)
                        # The broker answers once it has done it, and then the connection ends.
                        return
                    self._shut_all()
                elif not self._cut:
                    sink.sendall(data)
                elif source is self._awaited:
                    self._answered.set()
                    self._shut_all()
                else:
                    break
        _shut(source)
        _shut(sink)

    def _shut_all(self) -> None:
        with self._lock:
            for one in self._open:
                _shut(one)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def ends_a_transaction(data: bytes) -> bool:
    """Whether a request to Kafka is the one that commits or aborts: EndTxn, key 26."""
    return len(data) > 6 and int.from_bytes(data[4:6], "big") == 26


@attrs.frozen
class Record:
    """A record as a consumer sees it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def read(servers: str, *topics: str, isolation: str = "read_committed") -> list[Record]:
    """Return all records of topics up to their ends, partition by partition in their order.

    What is committed while it reads is in a partition's records with its whole transaction or not at all.
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
    try:
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ]
        consumer.assign(places)
        records: list[Record] = []
        ended = set[tuple[str | None, int | None]]()

        def all_read() -> bool:
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
            return len(ended) == len(places)

        eventually(all_read, f"the end of {topics}")
    finally:
        consumer.close()
    return sorted(records, key=lambda one: (one.topic, one.partition, one.offset))
