"""What ``PostgresSink`` accepts it publishes, and readers get the same values; a table is known by its identity."""

from __future__ import annotations

import contextlib
import datetime
import re
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.testing import SCHEMA, SinkPipeline

from ...drawn_rows import refused_is_no_example
from ...effort import trying
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres
from .postgres_tables import OutTable, publish

pytestmark = pytest.mark.server

UTC = datetime.UTC


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/flights/"


# --- values -------------------------------------------------------------------------------------------------


@attrs.frozen
class PgKind:
    """A type of rows, with the types that a table may have for it and values."""

    arrow: pa.DataType
    columns: tuple[str, ...]
    """The first one is tried most."""
    values: st.SearchStrategy[Any]


MOMENTS = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999))
INSTANTS = st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29)).map(
    lambda at: at.replace(tzinfo=UTC)
)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6) | st.sampled_from(
    ["", " ", "ab   ", "   ", "a\0b", "\\N", 'q"\\,{}\t\r\n', "null", "NULL", "é\U0001f600"]
)
INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
WHOLE = ("numeric", "smallint", "int", "bigint", "numeric(5)", "numeric(20, 2)", "real", "double precision")
REAL = tuple(reversed(WHOLE))
KINDS = [
    *(
        PgKind(arrow, WHOLE, st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for bits, arrow in INTEGERS.items()
    ),
    PgKind(pa.float32(), REAL, st.floats(width=32)),
    PgKind(pa.float64(), REAL, st.floats()),
    PgKind(
        pa.decimal128(10, 3),
        ("numeric", "numeric(10, 3)", "numeric(12, 2)", "numeric(9, 3)", "double precision"),
        st.decimals("-9999999.999", "9999999.999", places=3),
    ),
    PgKind(pa.bool_(), ("boolean", "int", "text"), st.booleans()),
    # Each of these changes text in a way of its own.
    PgKind(pa.string(), ("varchar(4)",), st.text("a ", max_size=7)),
    PgKind(pa.string(), ("char(4)", "text"), st.text("a ", max_size=7)),
    PgKind(pa.string(), ("text", "name", '"char"', "bytea"), TEXTS),
    PgKind(pa.binary(), ("bytea", "text"), st.binary(max_size=5)),
    PgKind(pa.date32(), ("date", "timestamp", "text"), st.dates() | st.just(-800_000) | st.just(4_000_000)),
    PgKind(
        pa.timestamp("us"),
        ("timestamp", "timestamp(0)", "timestamp(3)", "timestamp(6)", "timestamptz", "date"),
        MOMENTS | st.just(-(10**17)) | st.just(3 * 10**17),
    ),
    PgKind(
        pa.timestamp("us", "America/New_York"),
        ("timestamptz", "timestamptz(2)", "timestamptz(6)", "timestamp"),
        INSTANTS,
    ),
    PgKind(pa.time64("ns"), ("time", "time(3)", "time(6)", "timetz"), st.times()),
    PgKind(
        pa.duration("us"),
        (
            "interval",
            "interval(2)",
            "interval(6)",
            "interval year",
            "interval day to second",
            "interval day to minute",
        ),
        st.timedeltas(datetime.timedelta(days=-99_999), datetime.timedelta(days=99_999)),
    ),
]
LISTS = [
    PgKind(
        pa.list_(kind.arrow),
        tuple(f"{column}[]" for column in kind.columns),
        st.lists(st.none() | kind.values, max_size=3),
    )
    for kind in KINDS
]
NAMES = ["k", "chandy_row", "Column", 'odd "%s" .name', "select", "chandy_row_", "é"]


@attrs.frozen
class DeclaredColumn:
    """How a column of the table is declared."""

    type: str
    never_null: bool = False
    domains: int = 0
    """How many domains stand between the column and its type."""
    altered: str | None = None
    """The type that it is altered to while the sink publishes."""


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, dict[str, DeclaredColumn]]:
    """Rows, and the columns of a table for them."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    kinds = {name: draw(st.sampled_from([*KINDS, *LISTS])) for name in names}
    count = draw(st.integers(1, 4))
    rows = {
        name: pa.array(draw(st.lists(st.none() | kind.values, min_size=count, max_size=count)), kind.arrow)
        for name, kind in kinds.items()
    }
    is_altered = draw(st.sampled_from([False, False, True]))
    columns = {}
    for name, kind in kinds.items():
        types = st.just(kind.columns[0]) | st.sampled_from(kind.columns)
        columns[name] = DeclaredColumn(
            draw(types),
            draw(st.sampled_from([False, False, True])),
            draw(st.sampled_from([0, 0, 1, 2])),
            draw(types) if is_altered else None,
        )
    return pa.table(rows), columns


def same(value: Any) -> Any:
    """A value as it is compared: equal texts are of equal values. Singles are compared as doubles."""
    if isinstance(value, list):
        return [same(one) for one in value]
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return f"{value:f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_published(
    postgres: PostgresServer,
    rows: pa.Table,
    columns: dict[str, DeclaredColumn],
    *,
    upserts: bool,
) -> None:
    """Check that rows are refused in time, or are read back as they were.

    What no longer fits because the table was altered meanwhile is refused by the commit.
    """
    table = OutTable(postgres, "Values")
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in columns}
    statements = ['DROP SCHEMA IF EXISTS "Values" CASCADE', 'CREATE SCHEMA "Values"']
    declared, altered = ["id int PRIMARY KEY"], []
    for at, (name, column) in enumerate(columns.items()):
        type_, no_nulls = column.type, " NOT NULL" * column.never_null
        for depth in range(column.domains):
            domain = f'"Values".domain_{at}_{depth}'
            statements.append(f"CREATE DOMAIN {domain} AS {type_}{no_nulls}")
            type_, no_nulls = domain, ""
        declared.append(f"{quoted[name]} {type_}{no_nulls}")
        if column.altered is not None:
            altered.append(f"ALTER {quoted[name]} TYPE {column.altered} USING NULL")
    statements.append(f"CREATE TABLE {table.sql} ({', '.join(declared)})")
    postgres.execute("; ".join(statements))
    rows = rows.append_column("id", pa.array(range(rows.num_rows), pa.int32()))
    sink = attrs.evolve(table.sink(), mode="upsert", key="id") if upserts else table.sink()
    with tempfile.TemporaryDirectory() as folder:
        pipeline = SinkPipeline(sink, f"file://{folder}/flights/")
        with refused_is_no_example():
            epoch = pipeline.accepted(1, rows)
        with contextlib.closing(pipeline.recover()) as committer:
            if altered:
                postgres.execute(f"ALTER TABLE {table.sql} {', '.join(altered)}")
            try:
                committer.commit(epoch)
            except OutputError:
                assert altered
                assert postgres.execute(f"SELECT * FROM {table.sql}") == []
                return
    exact = {"real": "::float8", "real[]": "::float8[]"}
    names = ", ".join(
        f"{quoted[name]}{exact.get(column.altered or column.type, '')}" for name, column in columns.items()
    )
    found = postgres.execute(f"SELECT {names} FROM {table.sql} ORDER BY id")
    expected = [[row[name] for name in columns] for row in rows.to_pylist()]
    assert [[same(value) for value in row] for row in found] == [
        [same(value) for value in row] for row in expected
    ]


@given(drawn=tables(), upserts=st.booleans())
@trying(60)
def test_what_is_accepted_is_published_and_read_back_as_it_was(
    postgres: PostgresServer, drawn: tuple[pa.Table, dict[str, DeclaredColumn]], upserts: bool
) -> None:
    check_published(postgres, *drawn, upserts=upserts)


@given(texts=st.lists(st.none() | st.text("a ", max_size=7), min_size=1, max_size=3), upserts=st.booleans())
@trying(40)
def test_texts_of_a_limited_length_are_read_back_as_they_were(
    postgres: PostgresServer, texts: list[str | None], upserts: bool
) -> None:
    check_published(
        postgres,
        pa.table({"v": pa.array(texts, pa.string())}),
        {"v": DeclaredColumn("varchar(4)")},
        upserts=upserts,
    )


@pytest.mark.parametrize(
    ("type_", "column"),
    [
        (pa.timestamp("us"), "timestamp(0)"),
        (pa.timestamp("us", "UTC"), "timestamptz(5)"),
        (pa.time64("ns"), "time(3)"),
        (pa.duration("us"), "interval year"),
        (pa.duration("us"), "interval(2)"),
        (pa.string(), "char(4)"),
        (pa.string(), "name"),
        (pa.list_(pa.timestamp("us")), "timestamp(0)[]"),
    ],
)
def test_a_column_that_would_change_values_is_refused_before_the_start(
    postgres: PostgresServer, type_: pa.DataType, column: str
) -> None:
    table = OutTable.make(postgres, f"v {column}")
    with pytest.raises(OutputError, match="column 'v' is"):
        table.sink().check(pa.schema([("v", type_)]))


@pytest.mark.parametrize(
    ("event", "deleted", "is_refused"),
    [("UPDATE", None, True), ("INSERT", None, True), ("DELETE", None, False), ("DELETE", "gone", True)],
)
def test_a_rule_that_an_upsert_does_not_work_with_is_refused_by_name(
    postgres: PostgresServer, event: str, deleted: str | None, is_refused: bool
) -> None:
    table = OutTable.make(postgres, "k bigint PRIMARY KEY, v text")
    postgres.execute(f"CREATE RULE told AS ON {event} TO {table.sql} DO ALSO NOTIFY x")
    schema = SCHEMA.append(pa.field("gone", pa.bool_())) if deleted else SCHEMA
    with (
        pytest.raises(OutputError, match=f"the rule 'told' ON {event}")
        if is_refused
        else contextlib.nullcontext()
    ):
        table.upsert(deleted).check(schema)
    # COPY passes rules over.
    table.sink().check(SCHEMA)


def test_what_the_table_refuses_without_a_row_is_refused_before_the_start(postgres: PostgresServer) -> None:
    table = OutTable.make(postgres, "k bigint PRIMARY KEY, v text")
    postgres.execute(
        f'CREATE FUNCTION "{table.schema}".refuse() RETURNS trigger LANGUAGE plpgsql AS '
        f"'BEGIN RAISE EXCEPTION ''closed''; END'; CREATE TRIGGER refuse BEFORE INSERT ON {table.sql} "
        f'EXECUTE FUNCTION "{table.schema}".refuse()'
    )
    for sink in (table.sink(), table.upsert()):
        with pytest.raises(OutputError, match="closed"):
            sink.check(SCHEMA)


def test_a_domain_that_takes_no_nulls_is_a_limit_and_keeps_no_key_from_being_deleted(
    postgres: PostgresServer, store: str
) -> None:
    table = OutTable.make(postgres, "")
    domain = f'"{table.schema}".filled'
    postgres.execute(f"CREATE DOMAIN {domain} AS text NOT NULL")
    postgres.execute(f"CREATE TABLE {table.sql} (k bigint PRIMARY KEY, v {domain}, w {domain}[])")
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("w", pa.list_(pa.string()))])
    limits = table.upsert().check(schema)
    good = pa.table({"k": [1], "v": ["a"], "w": [["b"]]}, schema=schema)
    assert limits.broken_by(good) is None
    assert limits.broken_by(good.set_column(1, "v", pa.array([None], pa.string()))) == "null in column 'v'"
    in_list = good.set_column(2, "w", pa.array([["b", None]], pa.list_(pa.string())))
    assert limits.broken_by(in_list) == "null in a list in column 'w'"
    deletion = pa.table(
        {
            "k": [1],
            "v": pa.array([None], pa.string()),
            "w": pa.array([None], schema.field("w").type),
            "gone": [True],
        }
    )
    for letters in (None, "letters"):
        sink = attrs.evolve(table.upsert("gone"), dead_letters=letters, uid=f"with {letters}")
        pipeline = SinkPipeline(sink, store)
        sink.check(deletion.schema)
        publish(pipeline, good.append_column("gone", pa.array([False])))
        assert table.rows() == [(1, "a")]
        publish(pipeline, deletion)
        assert table.rows() == []


def test_a_single_is_the_same_value_in_a_column_of_double_precision(
    postgres: PostgresServer, store: str
) -> None:
    table = OutTable.make(postgres, "k float8, v real")
    singles = pa.array([0.1], pa.float32())
    publish(SinkPipeline(table.sink(), store), pa.table({"k": singles, "v": singles}))
    exact = singles.to_pylist()[0]
    assert postgres.execute(f"SELECT k, v::float8 FROM {table.sql}") == [(exact, exact)]


def test_blanks_are_not_cut_off_without_a_word(postgres: PostgresServer, store: str) -> None:
    table = OutTable.make(postgres, "k bigint, v varchar(2)")
    pipeline = SinkPipeline(table.sink(), store)
    with pytest.raises(OutputError, match="at most 2 characters in column 'v'"):
        publish(pipeline, pa.table({"k": [1], "v": ["ab  "]}))
    publish(pipeline, pa.table({"k": [1], "v": ["a "]}))
    assert table.rows() == [(1, "a ")]


def test_a_row_that_marks_a_deletion_needs_its_key_alone(postgres: PostgresServer) -> None:
    table = OutTable.make(postgres, "k bigint PRIMARY KEY, v text NOT NULL")
    schema = pa.schema([("k", pa.int64()), ("v", pa.string()), ("gone", pa.bool_())])
    assert table.upsert().check(schema.remove(2)).never_null == {"k", "v"}
    assert table.upsert("gone").check(schema).never_null == {"k"}


@pytest.mark.parametrize("name", ["chandy_row", "chandy_row_"])
def test_a_column_may_have_any_name_in_an_upsert(postgres: PostgresServer, store: str, name: str) -> None:
    table = OutTable.make(postgres, f"k bigint PRIMARY KEY, {name} bigint, v text")
    rows = [pa.table({"k": [1], name: [9 - n], "v": [f"{n}"]}) for n in range(3)]
    publish(SinkPipeline(table.upsert(), store), *rows)
    assert table.rows() == [(1, "2")]


def test_a_key_may_be_an_identity_and_another_column_of_an_upsert_may_not(
    postgres: PostgresServer, store: str
) -> None:
    always = "bigint GENERATED ALWAYS AS IDENTITY"
    table = OutTable.make(postgres, f"k {always} PRIMARY KEY, v text")
    table.upsert().check(SCHEMA)
    for text in ("a", "b"):
        publish(SinkPipeline(table.upsert(), store), pa.table({"k": [7], "v": [text]}))
    assert table.rows() == [(7, "b")]
    other = OutTable.make(postgres, f"k text PRIMARY KEY, v {always}")
    rows = pa.schema([("k", pa.string()), ("v", pa.int64())])
    with pytest.raises(OutputError, match="column 'v' of the table is GENERATED ALWAYS AS IDENTITY"):
        other.upsert().check(rows)
    other.sink().check(rows)


# --- identity -----------------------------------------------------------------------------------------------


def position_of(pipeline: SinkPipeline, generation: int) -> int | None:
    with contextlib.closing(pipeline.recover(generation)) as committer:
        return committer.position


def published(table: OutTable, store: str) -> SinkPipeline:
    """A pipeline that has published two epochs."""
    pipeline = SinkPipeline(table.sink(), store)
    for _ in range(2):
        publish(pipeline, pa.table({"k": [1], "v": ["a"]}))
    return pipeline


@pytest.fixture
def table(postgres: PostgresServer) -> OutTable:
    return OutTable.make(postgres)


def test_a_table_that_was_made_anew_has_nothing_of_what_was_published(table: OutTable, store: str) -> None:
    pipeline = published(table, store)
    assert position_of(pipeline, 2) == 2
    table.server.execute(f"DROP TABLE {table.sql}; CREATE TABLE {table.sql} (k bigint, v text)")
    assert position_of(pipeline, 3) is None
    # A look changes nothing: not before something is published there.
    assert position_of(pipeline, 4) is None
    with contextlib.closing(pipeline.recover(5)) as committer:
        committer.commit(pipeline.epoch(3, [(3, "c")]))
        assert committer.position == 3
    assert position_of(pipeline, 6) == 3
    assert table.rows() == [(3, "c")]


def test_another_table_of_the_same_sink_has_nothing_and_the_first_one_keeps_its_position(
    table: OutTable, store: str
) -> None:
    pipeline = published(table, store)
    table.server.execute(f'CREATE TABLE "{table.schema}".other (k bigint, v text)')
    assert isinstance(pipeline.sink, PostgresSink)
    other = attrs.evolve(pipeline, sink=attrs.evolve(pipeline.sink, table=f"{table.schema}.other"))
    assert position_of(other, 2) is None
    # It was a mistake.
    assert position_of(pipeline, 3) == 2


EXCHANGES = [
    "ALTER TABLE {0}.out RENAME TO old; CREATE TABLE {0}.out (LIKE {0}.old); INSERT INTO {0}.out SELECT * FROM {0}.old",
    "DROP TABLE {0}.out; CREATE TABLE {0}.out (k bigint, v text)",
    "CREATE TABLE {0}.new (LIKE {0}.chandy_positions INCLUDING ALL); INSERT INTO {0}.new SELECT * FROM "
    "{0}.chandy_positions; DROP TABLE {0}.chandy_positions; ALTER TABLE {0}.new RENAME TO chandy_positions",
]


@pytest.mark.parametrize("statement", EXCHANGES, ids=["copied", "recreated", "positions"])
def test_a_table_that_is_exchanged_while_the_sink_publishes_is_noticed(
    table: OutTable, store: str, statement: str
) -> None:
    pipeline = published(table, store)
    with contextlib.closing(pipeline.recover(2)) as committer:
        table.server.execute(statement.format(f'"{table.schema}"'))
        before = table.rows()
        with pytest.raises(TargetUnavailableError, match="recreated or exchanged"):
            committer.commit(pipeline.epoch(3, [(3, "c")]))
        assert table.rows() == before
    # Of another table, nothing is known to be published; with other positions, the table may be a copy of itself.
    assert position_of(pipeline, 3) == (2 if "positions" in statement else None)


@pytest.mark.parametrize(
    ("altered", "value"),
    [
        ("v TYPE varchar(5)", "abc   "),
        ("v TYPE char(5)", "abc"),
        ("k TYPE numeric(3)", "a"),
        ("v TYPE name", "a"),
    ],
)
@pytest.mark.parametrize("letters", [None, "letters"])
def test_columns_that_are_altered_while_the_sink_publishes_change_no_value(
    table: OutTable, store: str, altered: str, value: str, letters: str | None
) -> None:
    pipeline = SinkPipeline(attrs.evolve(table.sink(), dead_letters=letters), store)
    with contextlib.closing(pipeline.recover()) as committer:
        table.server.execute(f"ALTER TABLE {table.sql} ALTER {altered}")
        epoch = pipeline.epoch(1, [(1, value)])
        if letters and "varchar" in altered:
            committer.commit(epoch)
            assert len(table.server.execute(f'SELECT * FROM "{table.schema}".letters')) == 1
        else:
            with pytest.raises(OutputError, match=f"column '{altered[0]}'"):
                committer.commit(epoch)
    assert table.rows() == []


REWRITES = [
    "TRUNCATE {}",
    "VACUUM FULL {}",
    "ALTER TABLE {} ALTER k TYPE numeric",
    "ALTER TABLE {} RENAME COLUMN v TO w",
]


@pytest.mark.parametrize("statement", REWRITES)
def test_a_table_that_was_cleared_or_rewritten_is_the_same_one(
    table: OutTable, store: str, statement: str
) -> None:
    pipeline = published(table, store)
    table.server.execute(statement.format(table.sql))
    assert position_of(pipeline, 2) == 2


def test_a_database_that_was_dumped_and_restored_has_what_was_published(table: OutTable, store: str) -> None:
    pipeline = published(table, store)
    for name in ("out", "chandy_positions"):
        there, old = (f'"{table.schema}".{one}' for one in (name, "old"))
        table.server.execute(
            f"ALTER TABLE {there} RENAME TO old; CREATE TABLE {there} (LIKE {old} INCLUDING ALL); "
            f"INSERT INTO {there} SELECT * FROM {old}; DROP TABLE {old}"
        )
    assert position_of(pipeline, 2) == 2


def test_positions_of_an_earlier_version_count_and_are_brought_up_to_date(
    table: OutTable, store: str
) -> None:
    pipeline = published(table, store)
    positions = f'"{table.schema}".chandy_positions'
    table.server.execute(f"ALTER TABLE {positions} DROP COLUMN target")
    assert position_of(pipeline, 2) == 2
    assert table.server.execute(f"SELECT target FROM {positions}") == [(None,)]
    with contextlib.closing(pipeline.recover(3)) as committer:
        committer.commit(pipeline.epoch(3, [(3, "c")]))
    ((target,),) = table.server.execute(f"SELECT target FROM {positions}")
    assert re.fullmatch(r"\d+/\d+", target)


def test_a_user_who_may_not_bring_them_up_to_date_is_told_who_may(table: OutTable, store: str) -> None:
    published(table, store)
    table.server.execute(f'ALTER TABLE "{table.schema}".chandy_positions DROP COLUMN target')
    user = table.server.user_with(
        "USAGE ON SCHEMA {0}; INSERT ON {0}.out; SELECT, INSERT, UPDATE ON {0}.chandy_positions", table.schema
    )
    sink = attrs.evolve(table.sink(), conninfo=f"{table.sink().conninfo} user={user}")
    with pytest.raises(OutputError, match="of an earlier version: let its owner ALTER TABLE"):
        sink.check(SCHEMA)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {0} SET UNLOGGED",
        "DROP TABLE {0}; CREATE TABLE {0} (k bigint, v text) PARTITION BY LIST (k); "
        "CREATE UNLOGGED TABLE {0}_1 PARTITION OF {0} FOR VALUES IN (1)",
        "CREATE UNLOGGED TABLE {1}.chandy_positions "
        "(writer text PRIMARY KEY, store text, generation bigint, epoch bigint, target text)",
    ],
    ids=["table", "partition", "positions"],
)
def test_what_is_empty_after_a_crash_is_refused(table: OutTable, statement: str) -> None:
    table.server.execute(statement.format(table.sql, f'"{table.schema}"'))
    with pytest.raises(OutputError, match="UNLOGGED"):
        table.sink().check(SCHEMA)
