"""The parts of ``PostgresSink`` that need no server: names, SQL, types, settings."""

from __future__ import annotations

import pickle

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.postgres import rows, sql
from chandy.coordinator.connectors.postgres.rows import ColumnType
from chandy.coordinator.connectors.postgres.session import Session
from chandy.coordinator.connectors.postgres.sink import PostgresSink
from chandy.coordinator.connectors.postgres.sql import TableName
from chandy.coordinator.errors import ConfigError, SetupError
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError

SINK = PostgresSink(conninfo="host=db password=verysecret", table="public.out")


def test_the_password_is_not_in_what_is_printed() -> None:
    assert "verysecret" not in repr(SINK)
    assert pickle.loads(pickle.dumps(SINK)) == SINK


@pytest.mark.parametrize(
    "conninfo", ["postgresql://u:pa/hunter2@127.0.0.1:9/db", "postgresql://u:pa@hunter2@127.0.0.1:9/db"]
)
def test_a_password_that_ends_too_early_is_not_taken_for_a_host(conninfo: str) -> None:
    with pytest.raises(SetupError, match="%40") as caught:
        Session.connect(conninfo, "t", "name", 2.0)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "conninfo",
    [
        "postgresql://u:p%40@127.0.0.1:9/db?options=-c%20x&application_name=a@b",
        "host=127.0.0.1 port=9 password=a@b/c@d",
        "postgresql:///db?host=/tmp&user=a@b",
    ],
)
def test_a_conninfo_that_says_what_it_means_is_taken(conninfo: str) -> None:
    with pytest.raises(TargetUnavailableError):
        Session.connect(conninfo, "t", "name", 2.0)


def test_a_conninfo_that_cannot_be_read_is_not_repeated() -> None:
    with pytest.raises(SetupError) as caught:
        attrs.evolve(SINK, conninfo="host=db password='very secret").check(pa.schema([("k", pa.int64())]))
    error: BaseException | None = caught.value
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"table": "a.b.c"}, "schema.table"),
        ({"table": ""}, "schema.table"),
        ({"mode": "merge"}, '"append" or "upsert"'),
        ({"mode": "upsert"}, "columns of the key"),
        ({"key": "k"}, "no key for an append"),
        ({"deleted": "gone"}, "no deletions in an append"),
        ({"mode": "upsert", "key": ("k", "k")}, "each column once"),
        ({"mode": "upsert", "key": "k", "deleted": "k"}, "a mark apart from the key"),
        ({"timeout": 0}, "above 0 s"),
        ({"uid": ""}, "a uid"),
        ({"dead_letters": "a.b.c"}, "a table of dead letters as"),
        ({"dead_letters": "public.out"}, "beside the target"),
        ({"max_dead_letters": 0}, "max_dead_letters as a positive number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        attrs.evolve(SINK, **settings)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("out", TableName("out")),
        ("my.out", TableName("out", "my")),
        ("My Schema.Out", TableName("Out", "My Schema")),
        ('"a.b"."c""d"', TableName('c"d', "a.b")),
        ('my."a.b"', TableName("a.b", "my")),
        ('a"b', None),
        ("a.", None),
        (".a", None),
        ('"a', None),
    ],
)
def test_a_table_is_named_by_its_parts(text: str, name: TableName | None) -> None:
    assert TableName.parse(text) == name


def test_the_name_of_a_session_is_short_plain_and_no_other_writers() -> None:
    assert sql.session_name("flights/delays/out") == "chandy flights/delays/out"
    long = [f"{'flights' * 20}/{uid}" for uid in "ab"]
    names = {sql.session_name(writer) for writer in [*long, "é", "ü", "a\nb"]}
    assert len(names) == 5
    assert all(len(name.encode()) <= sql.NAME_BYTES and name.isprintable() for name in names)


def test_a_merge_without_values_leaves_what_is_there() -> None:
    statement = sql.merge(TableName("t"), ["k"], ["k"], None)
    assert statement.endswith('ON CONFLICT ("k") DO NOTHING')
    assert "DELETE" not in statement


@pytest.mark.parametrize(
    ("type", "expected"),
    [
        (pa.int8(), "smallint"),
        (pa.uint16(), "integer"),
        (pa.uint64(), "numeric(20)"),
        (pa.decimal128(10, 2), "numeric(10, 2)"),
        (pa.decimal128(3, -2), "numeric(5, 0)"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
        (pa.list_(pa.string()), "text[]"),
        (pa.list_(pa.list_(pa.string())), None),
        (pa.struct([("a", pa.int64())]), None),
        (pa.map_(pa.string(), pa.string()), None),
    ],
)
def test_a_type_has_the_closest_of_the_server(type: pa.DataType, expected: str | None) -> None:
    assert rows.type_for(type) == expected


@pytest.mark.parametrize(
    ("type", "column", "expected"),
    [
        (pa.int32(), ColumnType("int4", "N"), True),
        (pa.int32(), ColumnType("int8", "N"), True),
        (pa.int64(), ColumnType("int4", "N"), False),
        (pa.uint32(), ColumnType("int4", "N"), False),
        (pa.int64(), ColumnType("float8", "N"), False),
        (pa.int32(), ColumnType("numeric", "N", 10, 0), True),
        (pa.int32(), ColumnType("numeric", "N", 10, 1), False),
        (pa.float32(), ColumnType("float8", "N"), True),
        (pa.float64(), ColumnType("float4", "N"), False),
        (pa.decimal128(10, 2), ColumnType("numeric", "N"), True),
        (pa.decimal128(10, 2), ColumnType("numeric", "N", 12, 4), True),
        (pa.decimal128(10, 2), ColumnType("numeric", "N", 11, 4), False),
        (pa.decimal128(10, 2), ColumnType("numeric", "N", 20, 1), False),
        (pa.string(), ColumnType("varchar", "S"), True),
        (pa.string(), ColumnType("jsonb", "U"), True),
        (pa.string(), ColumnType("bytea", "U"), False),
        (pa.string(), ColumnType("int4", "N"), False),
        (pa.binary(), ColumnType("bytea", "U"), True),
        (pa.binary(), ColumnType("text", "S"), False),
        (pa.timestamp("us"), ColumnType("timestamptz", "D"), False),
        (pa.timestamp("us", "UTC"), ColumnType("timestamp", "D"), False),
        (pa.date32(), ColumnType("date", "D"), True),
        (pa.list_(pa.int32()), ColumnType("int8", "N", is_array=True), True),
        (pa.list_(pa.int32()), ColumnType("int8", "N"), False),
        (pa.int32(), ColumnType("int8", "N", is_array=True), False),
        (pa.null(), ColumnType("int8", "N"), True),
    ],
)
def test_a_column_fits_if_it_takes_all_values_as_they_are(
    type: pa.DataType, column: ColumnType, expected: bool
) -> None:
    assert rows.fits(type, column) is expected


def test_a_type_modifier_has_precision_and_a_scale_with_its_sign() -> None:
    assert ColumnType.of("numeric", "N", (10 << 16 | 2) + 4, False) == ColumnType("numeric", "N", 10, 2)
    assert ColumnType.of("numeric", "N", (10 << 16 | (-3 & 0x7FF)) + 4, False).scale == -3
    assert ColumnType.of("numeric", "N", -1, True) == ColumnType("numeric", "N", is_array=True)
    assert ColumnType.of("varchar", "S", 14, False).precision is None


def test_rows_are_text_as_copy_reads_it() -> None:
    table = pa.table({"a": [1, None, 3], "b": ["x\ty", "\\N", None], "c": [[b"\xff"], [], None]})
    assert b"".join(rows.copy_text(table)) == b'1\tx\\ty\t{"\\\\\\\\xff"}\n\\N\t\\\\N\t{}\n3\t\\N\t\\N\n'
    assert b"".join(rows.copy_text(table.slice(1, 1))) == b"\\N\t\\\\N\t{}\n"
    assert list(rows.copy_text(table.slice(3))) == []


def test_many_rows_are_turned_into_text_piece_by_piece() -> None:
    count = rows.CHUNK_ROWS * 2 + 1
    pieces = list(rows.copy_text(pa.table({"a": pa.array(range(count))})))
    assert len(pieces) == 3
    assert b"".join(pieces).split(b"\n")[:-1] == [str(n).encode() for n in range(count)]
