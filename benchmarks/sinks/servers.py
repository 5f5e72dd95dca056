"""The servers that sinks write to, on this machine. They are those of the tests, with what durability costs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

from ..servers import kafka
from ..servers.maven import NoJavaServerError, class_path
from ..servers.postgres import PostgresServer, running

_DRIVER: Final = "postgresql"
"""The beginning of the name of the JDBC driver's jar."""
_CACHE: Final = Path.home() / ".cache" / "chandy-benchmarks"
"""What Maven has resolved."""


@attrs.frozen
class Servers:
    """What runs here."""

    postgres: str
    """The conninfo of PostgreSQL."""
    kafka: str | None
    """Where Kafka is; None: it cannot be had."""
    jars: tuple[str, ...]
    """Spark's Kafka connector and the JDBC driver; empty: they cannot be had."""
    missing: dict[str, str]
    """Why something cannot be had."""

    @property
    def jdbc(self) -> str:
        """The URL of PostgreSQL for JDBC, with which inserts are put together into few statements."""
        given = dict(part.split("=", 1) for part in self.postgres.split())
        where = f"{given['host']}:{given['port']}/{given['dbname']}"
        return f"jdbc:postgresql://{where}?user={given['user']}&sslmode=disable&reWriteBatchedInserts=true"


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Run PostgreSQL, and Kafka if there is Maven, for the duration of the context.

    Args:
        folder: takes Kafka's files.
    """
    missing: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running(PostgresServer, fsync="on", shared_buffers="256MB"))
        brokers = None
        try:
            (folder / "kafka").mkdir(parents=True)
            broker = kafka.Broker(kafka.broker_server(folder / "kafka", cache_folder("kafka")))
            stack.callback(broker.server.kill)
            broker.server.start()
            brokers = broker.servers
        except (NoJavaServerError, RuntimeError) as error:
            missing["Kafka"] = str(error)
        jars: tuple[str, ...] = ()
        try:
            found = [*kafka.connector_jars(cache_folder("connector")), *_driver()]
            jars = tuple(map(str, found))
        except NoJavaServerError as error:
            missing["Spark's Kafka connector and the JDBC driver"] = str(error)
        yield Servers(postgres.conninfo(), brokers, jars, missing)


def _driver() -> list[Path]:
    jars = map(
        Path, class_path(Path(__file__).with_name("jdbc.pom.xml"), cache_folder("jdbc")).split(os.pathsep)
    )
    return [jar for jar in jars if jar.name.startswith(_DRIVER)]


def cache_folder(name: str) -> Path:
    """Return the folder in which the class path of one POM is remembered."""
    folder = _CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
