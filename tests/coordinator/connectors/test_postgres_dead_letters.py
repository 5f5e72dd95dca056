"""Rows that a table of PostgreSQL refuses become dead letters, each once, and all others are published."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import date
from random import Random
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.coordinator.sinks.two_phase.limits import Limits
from chandy.testing import SCHEMA, Row, SinkPipeline

from ...effort import chance, rounds
from .postgres_proxy import Link, PostgresProxy
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres
from .postgres_tables import OutTable, through
from .postgres_tables import proxy as proxy
from .postgres_tables import store as store

pytestmark = pytest.mark.server

COLUMNS = "k bigint PRIMARY KEY CHECK (k % 7 <> 0), v text NOT NULL"


@attrs.frozen
class Lenient(OutTable):
    """A table whose sinks write dead letters, by key or not."""

    key: tuple[str, ...] = ()

    def sink(self, uid: str = "out") -> PostgresSink:
        appends = OutTable(self.server, self.schema).sink(uid)
        mode = "upsert" if self.key else "append"
        return attrs.evolve(
            appends, mode=mode, key=self.key, dead_letters="Refused %s", max_dead_letters=1000
        )

    def letters(self) -> list[tuple[Any, ...]]:
        """The writer, the checkpoint, the reason and the row of each letter."""
        return self.server.execute(f'SELECT writer, checkpoint, error, "row" FROM {self.letters_sql}')

    @property
    def letters_sql(self) -> str:
        return f'"{self.schema}"."Refused %s"'


def taken_in_order(published: dict[int, str], rows: list[Row], *, replaces: bool) -> list[Row]:
    """Publish rows one by one as the table of ``COLUMNS`` takes them, and return those that it refuses."""
    refused = []
    for key, value in rows:
        if value is None or key % 7 == 0 or (key in published and not replaces):
            refused.append((key, value))
        else:
            published[key] = value
    return refused


@pytest.mark.parametrize("key", [(), ("k",)], ids=["append", "upsert"])
def test_what_is_refused_is_what_would_be_refused_row_by_row_whatever_is_cut_off(
    postgres: PostgresServer, proxy: PostgresProxy, store: str, key: tuple[str, ...]
) -> None:
    numbers = chance(f"dead letters {key}")
    table = Lenient.make(postgres, COLUMNS)
    pipeline = SinkPipeline(attrs.evolve(table, key=key).sink(), store)
    published: dict[int, str] = {}
    refused, replaced = Counter[tuple[int, Row]](), Counter[tuple[int, Row]]()
    cuts = 0
    for id in range(1, rounds(5, full=30) + 1):
        batches = [some_rows(numbers, id) for _ in range(numbers.randint(1, 3))]
        epoch = pipeline.epoch(id, *batches)
        with contextlib.closing(through(proxy, pipeline).recover()) as cut_off:
            # Each epoch has ten messages at least.
            message = numbers.randrange(10 if id % 2 else 100)
            proxy.act_at(message, before=numbers.choice([Link.cut, Link.lose_answers]))
            try:
                cut_off.commit(epoch)
            except TargetUnavailableError:
                cuts += 1
            proxy.act_at(-1)
        with contextlib.closing(pipeline.recover()) as again:
            if again.position != id:
                again.commit(epoch)
        rows = [row for batch in batches for row in batch]
        refused.update((id, row) for row in taken_in_order(published, rows, replaces=bool(key)))
        if key:
            last = {k: at for at, (k, _) in enumerate(rows)}
            replaced.update((id, row) for at, row in enumerate(rows) if at != last[row[0]])
        assert dict(table.rows()) == published
    letters = Counter((id, (int(row["k"]), row["v"])) for _, id, _, row in table.letters())
    # Whether an upsert takes a row that another one of its epoch replaces, nobody asks.
    assert refused - replaced <= letters <= refused
    assert refused - replaced
    assert {writer for writer, *_ in table.letters()} == {"flights/delays/out"}
    assert cuts


def some_rows(numbers: Random, id: int) -> list[Row]:
    """Rows of which some are refused, also because of others."""
    return [
        (numbers.randrange(60), f"{id}.{at}" if numbers.random() < 0.9 else None)  # type: ignore[misc]
        for at in range(numbers.choice([1, 3, 30]))
    ]


GOOD = {
    "k": 1,
    "v": "a",
    "short": "abc",
    "day": date(2026, 1, 2),
    "at": None,
    "few": "ab",
    "kind": "x",
    "ids": [1, None],
    "data": b"\0",
}
TYPES = {
    "k": pa.int64(),
    "v": pa.string(),
    "short": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "few": pa.string(),
    "kind": pa.string(),
    "ids": pa.list_(pa.int32()),
    "data": pa.binary(),
}
REASONS: dict[str, dict[str, Any]] = {
    "out_v_check": {"v": "no"},
    "not-null constraint": {"k": None},
    "duplicate key": {"k": 1},
    "value too long": {"short": "abcd"},
    "one with more blanks at its end": {"short": "abc "},
    "foreign key": {"kind": "y"},
    "NUL character": {"v": "a\0b"},
    "no UTF-8": {"v": b"a\xffb"},
    "year 12921": {"day": 4_000_000},
    "year 33658": {"at": 10**18},
    "year 67536": {"at": 2_069_076_182_400_000_000},
    "year -1199": {"at": -(10**17)},
    "does not allow null values": {"few": None},
    "SQLSTATE P0001": {"v": "trigger of P0001"},
    "SQLSTATE 45000": {"v": "trigger of 45000"},
    "SQLSTATE 40001": {"v": "trigger of 40001"},
}


def test_every_reason_makes_a_letter_and_letters_can_be_fed_back(
    postgres: PostgresServer, store: str
) -> None:
    table = make_with_reasons(postgres)
    rows = [GOOD] + [GOOD | {"k": 10 + at} | one for at, one in enumerate(REASONS.values())]
    pipeline = SinkPipeline(table.sink(), store)
    with contextlib.closing(pipeline.recover()) as committer:
        committer.commit(pipeline.accepted(1, table_of(rows)))
    assert table.server.execute(f"SELECT k FROM {table.sql}") == [(1,)]
    errors = [error for _, _, error, _ in table.letters()]
    assert {reason: sum(reason in error for error in errors) for reason in REASONS} == dict.fromkeys(
        REASONS, 1
    )
    assert len(errors) == len(REASONS)
    # Once the table is mended, they can be rows of it.
    table.server.execute(f"ALTER TABLE {table.sql} DROP CONSTRAINT out_v_check")
    table.server.execute(
        f"INSERT INTO {table.sql} SELECT fed.* FROM {table.letters_sql}, "
        f"json_populate_record(null::{table.sql}, \"row\") AS fed WHERE error LIKE '%out_v_check%'"
    )
    (fed,) = table.server.execute(f"SELECT {', '.join(TYPES)} FROM {table.sql} WHERE k = 10")
    assert dict(zip(TYPES, fed, strict=True)) == GOOD | {"k": 10, "v": "no"}
    far = f"SELECT fed.at::date - date '1970-01-01' FROM {table.letters_sql}, json_populate_record(null::{table.sql}, "
    read_back = f"{far} \"row\") AS fed WHERE error LIKE '%in column ''at''%'"
    days = [day for (day,) in table.server.execute(read_back)]
    moments = [one["at"] for one in REASONS.values() if "at" in one]
    assert sorted(days) == sorted(moment // 86_400_000_000 for moment in moments)


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as a query has them, also with what Python's types do not have: bytes as text, days since 1970 as a date."""
    columns = []
    for name, kind in TYPES.items():
        values = [row[name] for row in rows]
        if name == "v":
            column = pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary()).view(
                kind
            )
        elif name == "day":
            days = [(value - date(1970, 1, 1)).days if isinstance(value, date) else value for value in values]
            column = pa.array(days, pa.int32()).cast(kind)
        else:
            column = pa.array(values, kind)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema(TYPES))


def test_too_many_refused_rows_publish_nothing(postgres: PostgresServer, store: str) -> None:
    table = Lenient.make(postgres, COLUMNS)
    pipeline = SinkPipeline(attrs.evolve(table.sink(), max_dead_letters=2), store)
    with contextlib.closing(pipeline.recover()) as committer:
        committer.commit(pipeline.epoch(1, [(7, "a"), (14, "b"), (1, "c")]))
        with pytest.raises(
            OutputError, match=r"at most max_dead_letters=2 rows.*found 3 and perhaps more.*k_check"
        ):
            committer.commit(pipeline.epoch(2, [(7, "a"), (14, "b")], [(2, "c"), (21, "d")]))
    with contextlib.closing(pipeline.recover()) as committer:
        assert committer.position == 1
    assert table.rows() == [(1, "c")]
    assert len(table.letters()) == 2


def test_what_is_no_fault_of_a_row_is_an_error_and_no_letter(postgres: PostgresServer, store: str) -> None:
    table = Lenient.make(postgres, COLUMNS)
    pipeline = SinkPipeline(table.sink(), store)
    with contextlib.closing(pipeline.recover()) as committer:
        postgres.execute(f"ALTER TABLE {table.sql} RENAME COLUMN v TO w")
        with pytest.raises(OutputError, match="no column 'v'"):
            committer.commit(pipeline.epoch(1, [(1, "a")]))
    assert table.letters() == []


def test_a_row_of_a_batch_that_is_published_at_once_is_a_letter(postgres: PostgresServer, store: str) -> None:
    table = Lenient.make(postgres, COLUMNS)
    pipeline = SinkPipeline(attrs.evolve(table.sink(), mode="upsert", key=("k",), publish="batch"), store)
    with contextlib.closing(pipeline.recover()) as committer:
        committer.upsert(pipeline.batch(0, (7, "a"), (1, "b")))
    assert table.rows() == [(1, "b")]
    assert [(id, row) for _, id, _, row in table.letters()] == [(None, {"k": "7", "v": "a"})]


def test_the_table_of_letters_is_checked_before_the_start(postgres: PostgresServer) -> None:
    table = Lenient.make(postgres, COLUMNS)
    assert table.sink().check(SCHEMA) == Limits(), "a null is no reason to fail a batch"
    other = attrs.evolve(table.sink(), dead_letters="other")
    postgres.execute(f'CREATE TABLE "{table.schema}".other (k bigint)')
    with pytest.raises(OutputError, match="has no column writer, checkpoint, time, error, row"):
        other.check(SCHEMA)
    with pytest.raises(OutputError, match=r"may not CREATE the table .* for dead letters"):
        attrs.evolve(other, dead_letters="nowhere.letters").check(SCHEMA)


def make_with_reasons(postgres: PostgresServer) -> Lenient:
    """A table that refuses rows for many reasons."""
    table = Lenient.make(postgres, "")
    kinds = f'"{table.schema}".kinds'
    postgres.execute(f"CREATE TABLE {kinds} (kind text PRIMARY KEY)")
    postgres.execute(f"INSERT INTO {kinds} VALUES ('x')")
    postgres.execute(f'CREATE DOMAIN "{table.schema}".few AS varchar(2) NOT NULL')
    postgres.execute(
        f"CREATE TABLE {table.sql} (k bigint PRIMARY KEY, v text CHECK (v <> 'no'), short varchar(3), day date, "
        f'at timestamptz, few "{table.schema}".few, '
        f"kind text REFERENCES {kinds} DEFERRABLE INITIALLY DEFERRED, ids int[], data bytea)"
    )
    postgres.execute(
        f'CREATE FUNCTION "{table.schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS '
        "'BEGIN IF NEW.v LIKE ''trigger%'' THEN RAISE EXCEPTION ''refused'' USING ERRCODE = right(NEW.v, 5); END IF; "
        "RETURN NEW; END'"
    )
    postgres.execute(
        f'CREATE TRIGGER refuse BEFORE INSERT ON {table.sql} FOR EACH ROW EXECUTE FUNCTION "{table.schema}".refuse()'
    )
    assert isinstance(table, Lenient)
    return table
