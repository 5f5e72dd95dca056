"""The places that contestants write to, and how a reader sees how far they have come.

Rows have a ``mark``, which ascends with the order in which the source makes them. ``newest`` is the greatest mark up to
which a reader sees all rows.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

NOTHING: Final = -1
"""What ``newest`` returns while no row is visible."""
SAMPLES: Final = 1000
"""How many keys of a table with upserts are looked at."""


class Target(Protocol):
    """A place with rows. It is a value, and is sent to the reader's process."""

    def reader(self) -> Reader:
        """Return a reader, connected for its life."""
        ...


class Reader(Protocol):
    """Looks at a target as any of its readers does."""

    def newest(self) -> int:
        """Return the greatest mark up to which all rows are visible."""
        ...


# --- PostgreSQL ---------------------------------------------------------------------------------------------


@attrs.frozen
class Table:
    """A table of PostgreSQL with the columns ``k`` (its key), ``mark`` and ``payload``."""

    conninfo: str
    name: str
    keys: int | None = None
    """How many keys there are, which come in turn; None: each row has its own."""
    parts: int = 1
    """How many partitions of a batch become visible one by one: rows go to them by their key, in turn."""

    def create(self) -> None:
        """Recreate it."""
        import psycopg

        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"DROP TABLE IF EXISTS {self.name}".encode())
            columns = "k bigint PRIMARY KEY, mark bigint NOT NULL, payload text NOT NULL"
            connection.execute(f"CREATE TABLE {self.name} ({columns})".encode())

    def reader(self) -> Reader:
        """Return a reader."""
        return _TableReader(self)


class _TableReader:
    def __init__(self, table: Table) -> None:
        import psycopg

        self._connection = psycopg.connect(table.conninfo, autocommit=True)
        if table.keys is not None:
            samples = ", ".join(str(key) for key in range(0, table.keys, max(1, table.keys // SAMPLES)))
            self._query = f"SELECT max(mark) FROM {table.name} WHERE k = ANY ('{{{samples}}}')"
        else:
            newest = f"SELECT mark FROM {table.name} WHERE k % {table.parts} = part ORDER BY k DESC LIMIT 1"
            parts = f"generate_series(0, {table.parts - 1}) AS part"
            self._query = (
                f"SELECT min(coalesce(mark, {NOTHING})) FROM {parts} LEFT JOIN LATERAL ({newest}) n ON true"
            )

    def newest(self) -> int:
        found = self._connection.execute(self._query.encode()).fetchone()
        return NOTHING if found is None or found[0] is None else int(found[0])


# --- Kafka --------------------------------------------------------------------------------------------------


@attrs.frozen
class Topic:
    """A topic whose values are ``<number of the row>,<mark>,<payload>``."""

    servers: str
    name: str
    partitions: int
    is_counted: bool
    """Whether the reader only asks how many records there are, for streams that are too fast to be consumed here."""

    def create(self) -> None:
        """Make it."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.servers})
        (made,) = admin.create_topics([NewTopic(self.name, self.partitions)]).values()
        made.result(60)

    def reader(self) -> Reader:
        """Return a consumer of what is committed."""
        return _TopicReader(self)


class _TopicReader:
    def __init__(self, topic: Topic) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": topic.servers,
                "group.id": "benchmark",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        self._places = [
            TopicPartition(topic.name, number, OFFSET_BEGINNING) for number in range(topic.partitions)
        ]
        if not topic.is_counted:
            self._consumer.assign(self._places)
        self._marks: dict[int, int] = {}
        """The marks of rows that came before others with a lower number."""
        self._next = 0
        self._newest = NOTHING

    def newest(self) -> int:
        return self._count() if self._topic.is_counted else self._consume()

    def _count(self) -> int:
        from confluent_kafka import KafkaException

        try:
            # With each transaction comes one more record in each of its partitions, which is no row.
            ends = [self._consumer.get_watermark_offsets(place, timeout=30)[1] for place in self._places]
        except KafkaException as error:
            # A topic that has just been made has no leader yet.
            if self._newest > NOTHING or error.args[0].name() != "NOT_LEADER_FOR_PARTITION":
                raise
            return NOTHING
        self._newest = sum(ends) - 1
        return self._newest

    def _consume(self) -> int:
        for message in self._consumer.consume(10_000, 0.01):
            if message.error() is not None:
                raise RuntimeError(f"the consumer has failed: {message.error()}")
            number, mark, _ = (message.value() or b"").split(b",", 2)
            if int(number) >= self._next:
                self._marks[int(number)] = int(mark)
        while (found := self._marks.pop(self._next, None)) is not None:
            self._newest = found
            self._next += 1
        return self._newest


# --- files and tables ---------------------------------------------------------------------------------------


@attrs.frozen
class Files:
    """A directory of Parquet files with Spark's log."""

    path: str

    def reader(self) -> Reader:
        """Return a reader of the log."""
        return _FilesReader(Path(self.path) / "_spark_metadata")


class _FilesReader:
    def __init__(self, log: Path) -> None:
        self._log = log
        self._entry = -1
        self._known = set[str]()
        self._newest = NOTHING

    def newest(self) -> int:
        for path in self._new_files():
            self._newest = max(self._newest, _greatest_mark(path))
        return self._newest

    def _new_files(self) -> Iterator[str]:
        try:
            names = [path.name for path in self._log.iterdir()]
        except FileNotFoundError:
            return
        entries = {int(name.removesuffix(".compact")): name for name in names if name[0].isdigit()}
        new = sorted(number for number in entries if number > self._entry)
        if not new:
            return
        # One of them may have been compacted, and then it has all before it.
        for number in new:
            for line in (self._log / entries[number]).read_text().splitlines()[1:]:
                entry = json.loads(line)
                path = urllib.parse.unquote(urllib.parse.urlsplit(entry["path"]).path)
                # A line about a folder is Chandy's, with its position.
                if not entry.get("isDir") and path not in self._known:
                    self._known.add(path)
                    yield path
        self._entry = new[-1]


def _greatest_mark(path: str) -> int:
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(path).metadata
    column = metadata.schema.to_arrow_schema().names.index("mark")
    groups = [metadata.row_group(number).column(column) for number in range(metadata.num_row_groups)]
    return max((int(group.statistics.max) for group in groups), default=NOTHING)


@attrs.frozen
class DeltaTable:
    """A Delta table."""

    path: str

    def reader(self) -> Reader:
        """Return a reader of the table's log, whose statistics are exact."""
        return _DeltaReader(self.path)


class _DeltaReader:
    def __init__(self, path: str) -> None:
        self._path = path
        self._table: Any = None
        self._version = -1
        self._newest = NOTHING

    def newest(self) -> int:
        import deltalake
        import pyarrow as pa
        from deltalake.exceptions import TableNotFoundError

        if self._table is None:
            try:
                self._table = deltalake.DeltaTable(self._path)
            except TableNotFoundError:
                return NOTHING
        self._table.update_incremental()
        if self._table.version() > self._version:
            self._version = self._table.version()
            actions = pa.table(self._table.get_add_actions(flatten=True))
            if actions.num_rows:
                self._newest = max(actions.column("max.mark").to_pylist())
        return self._newest


@attrs.frozen
class IcebergTable:
    """An Iceberg table of a catalog in SQLite."""

    folder: str
    name: str = "benchmark.rows"

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of the catalog."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}",
        }

    def reader(self) -> Reader:
        """Return a reader of the table's manifests, whose bounds are exact."""
        return _IcebergReader(self)


class _IcebergReader:
    def __init__(self, table: IcebergTable) -> None:
        from pyiceberg.catalog import load_catalog

        self._catalog = load_catalog("default", **table.catalog)
        self._table = self._catalog.load_table(table.name)
        self._snapshot: int | None = None
        self._newest = NOTHING

    def newest(self) -> int:
        self._table.refresh()
        snapshot = self._table.current_snapshot()
        if snapshot is not None and snapshot.snapshot_id != self._snapshot:
            self._snapshot = snapshot.snapshot_id
            field = self._table.schema().find_field("mark").field_id
            bounds = [(task.file.upper_bounds or {}).get(field) for task in self._table.scan().plan_files()]
            marks = [int.from_bytes(bound, "little", signed=True) for bound in bounds if bound is not None]
            self._newest = max(marks, default=NOTHING)
        return self._newest
