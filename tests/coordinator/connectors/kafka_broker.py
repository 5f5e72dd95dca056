"""A real Kafka broker for tests, as a process, and a proxy in front of it that cuts connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from benchmarks.servers import kafka as servers
from benchmarks.servers.kafka import START as START
from benchmarks.servers.kafka import Listener, create_topic
from benchmarks.servers.kafka import Record as Record
from benchmarks.servers.kafka import delete_topic as delete_topic
from benchmarks.servers.kafka import produce as produce
from benchmarks.servers.kafka import read as read

from ...maven import or_skip
from ...storage.servers import free_port

STRANGER = "stranger"
"""A user without permissions."""
PASSWORD = "PASSWORDOFTESTS"


@attrs.define
class Broker(servers.Broker):
    """A broker with more ports."""

    sasl: int
    """The port for users with passwords."""
    behind: int
    """The port for a proxy. Its clients are sent to the proxy's own port."""
    proxy: int


def broker(directory: Path, cache: Path) -> Broker:
    """Return a broker that is formatted and not started.

    Raises:
        NoJavaServerError: no Maven, no Java, or no repository with the class path.
    """
    sasl, behind, proxy = (free_port() for _ in range(3))
    users = "".join(f' user_{name}="{PASSWORD}"' for name in (STRANGER,))
    server = servers.broker_server(
        directory,
        cache,
        listeners=(
            Listener("BEHIND", behind, proxy),
            Listener("SASL_PLAINTEXT", sasl, sasl, "SASL_PLAINTEXT"),
        ),
        settings=f"""
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required{users};
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
""",
    )
    return Broker(server, sasl, behind, proxy)


def broker_or_skip(directory: Path, pytestconfig: pytest.Config) -> Broker:
    """Return a broker that is not started; skip where none can be had, unless ``CHANDY_REQUIRE_KAFKA=1``."""
    assert pytestconfig.cache is not None
    with or_skip("Kafka", unless="CHANDY_REQUIRE_KAFKA"):
        return broker(directory, pytestconfig.cache.mkdir("kafka"))


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that tests share."""
    made = broker_or_skip(tmp_path_factory.mktemp("kafka"), pytestconfig)
    try:
        made.server.start()
        yield made
    finally:
        made.server.kill()


def new_topic(kafka: Broker, partitions: int = 3, name: str | None = None, **settings: str) -> str:
    name = name or f"rows-{uuid.uuid4().hex[:8]}"
    create_topic(kafka.servers, name, partitions, **settings)
    return name


class KafkaProxy:
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
