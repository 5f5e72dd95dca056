"""``PostgresSink`` on a real server."""

from __future__ import annotations

import contextlib
import datetime
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from random import Random

import attrs
import psycopg
import pyarrow as pa
import pytest

from chandy.coordinator.connectors.postgres.sink import PostgresCommitter, PostgresSink
from chandy.coordinator.errors import SetupError
from chandy.coordinator.sinks.two_phase.contract import Batch, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError
from chandy.storage.errors import DamagedError, FencedError
from chandy.testing import SCHEMA, Row, SinkPipeline

from ...effort import rounds, some
from ...storage.servers import free_port
from ...waiting import DEADLINE, retried
from .batch_conformance import BatchRaces
from .boundaries import Server as ServerBoundary
from .boundaries import postgres_messages
from .postgres_proxy import Link, PostgresProxy
from .postgres_server import PostgresServer
from .postgres_server import postgres as postgres
from .postgres_tables import BatchTable, OutTable, assert_nothing_is_open, position_of, publish, through
from .postgres_tables import proxy as proxy
from .postgres_tables import store as store
from .postgres_tables import table as table
from .races import LivesConformance
from .steps import Stepped, StepsConformance

pytestmark = pytest.mark.server


FIRST = (b"Q", b"P", b"d", b"c")
"""Messages that begin a step: a query, the parsing of a statement, data and the end of it."""
LAST = (b"Q", b"S", b"d", b"c")
"""Messages that end a step, after which the server acts."""


class TestConformance(LivesConformance):
    @pytest.fixture
    def target(self, postgres: PostgresServer) -> OutTable:
        return OutTable.make(postgres)


KEYED = "k bigint PRIMARY KEY, v text"


class TestBatches(BatchRaces):
    @pytest.fixture
    def target(self, postgres: PostgresServer) -> OutTable:
        return BatchTable.make(postgres, KEYED)


@attrs.frozen
class Upserted(OutTable):
    """A table whose rows are replaced by key."""

    def sink(self, uid: str = "out") -> PostgresSink:
        appends = OutTable(self.server, self.schema).sink(uid)
        return attrs.evolve(appends, mode="upsert", key=("k",))


def by_port(sink: TwoPhaseSink, port: int) -> TwoPhaseSink:
    """The same sink through a proxy."""
    assert isinstance(sink, PostgresSink)
    conninfo, count = re.subn(r"port=\d+", f"port={port}", sink.conninfo)
    assert count == 1
    return attrs.evolve(sink, conninfo=conninfo)


class TestSteps(StepsConformance):
    @pytest.fixture(params=[OutTable, Upserted], ids=["append", "upsert"])
    def stepped(self, request: pytest.FixtureRequest, postgres: PostgresServer) -> Stepped:
        kind: type[OutTable] = request.param
        boundary = ServerBoundary(postgres.port, postgres_messages, by_port)
        return Stepped(lambda: kind.make(postgres, KEYED), boundary)


def batches_of(epoch: int) -> list[list[Row]]:
    return [[(epoch * 10 + n, f"of {epoch}")] for n in range(3)]


def rows_of(*epochs: int) -> list[Row]:
    return sorted(row for epoch in epochs for batch in batches_of(epoch) for row in batch)


def messages_of_a_commit(proxy: PostgresProxy, pipeline: SinkPipeline) -> list[bytes]:
    """The types of the messages that a client sends for an epoch."""
    committer = through(proxy, pipeline).recover(1)
    epoch = pipeline.epoch(1, *batches_of(1))
    proxy.act_at(-1)
    committer.commit(epoch)
    kinds = list(proxy.kinds)
    committer.close()
    return kinds


# --- connections that are cut, and servers that are killed ---------------------------------------------------


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("is_answer_lost", [False, True])
def test_a_connection_that_is_cut_at_any_message_of_a_commit_costs_and_repeats_no_row(
    postgres: PostgresServer, proxy: PostgresProxy, store: str, mode: str, is_answer_lost: bool
) -> None:
    def pipeline_of(table: OutTable) -> SinkPipeline:
        return SinkPipeline(table.upsert() if mode == "upsert" else table.sink(), store)

    columns = "k bigint PRIMARY KEY, v text"
    kinds = messages_of_a_commit(proxy, pipeline_of(OutTable.make(postgres, columns)))
    # Between the messages of one step the server does nothing.
    messages = [n for n, kind in enumerate(kinds) if kind in (LAST if is_answer_lost else FIRST)]
    assert len(messages) >= 6
    # The last message is the COMMIT.
    tried = [*some(messages[:-1], 2, mode, is_answer_lost), messages[-1]]
    positions = []
    for message in tried:
        table = OutTable.make(postgres, columns)
        pipeline = pipeline_of(table)
        first = through(proxy, pipeline).recover(1)
        first.commit(pipeline.epoch(1, *batches_of(1)))
        epoch = pipeline.epoch(2, *batches_of(2))
        proxy.act_at(message, before=Link.lose_answers if is_answer_lost else Link.cut)
        with pytest.raises(TargetUnavailableError):
            first.commit(epoch)
        with pytest.raises(TargetUnavailableError):
            first.commit(epoch)
        first.close()

        again = pipeline.recover(1)
        position = again.position
        assert position in (1, 2)
        assert sorted(table.rows()) == rows_of(*range(1, position + 1))
        if position == 1:
            again.commit(epoch)
        again.commit(pipeline.epoch(3, *batches_of(3)))
        again.close()
        assert sorted(table.rows()) == rows_of(1, 2, 3)
        positions.append(position)
    assert positions == [1] * (len(tried) - 1) + [2 if is_answer_lost else 1]
    assert_nothing_is_open(postgres)


def test_a_server_that_is_killed_at_any_moment_has_each_row_once(
    postgres: PostgresServer, proxy: PostgresProxy, store: str
) -> None:
    table = OutTable.make(postgres)
    pipeline = SinkPipeline(table.sink(), store)
    count = len(messages_of_a_commit(proxy, pipeline))
    random = Random(7)
    outcomes = set()
    for _ in range(rounds(6, full=20)):
        committer = through(proxy, pipeline).recover(1)
        proxy.act_at(
            random.randrange(2 * count), **{random.choice(("before", "after")): lambda _: postgres.kill()}
        )
        with pytest.raises(TargetUnavailableError):
            for id in range(position_of(committer) + 1, 1000):
                committer.commit(pipeline.epoch(id, *batches_of(id)))
        told = position_of(committer)
        committer.close()
        postgres.start()
        seen = sorted(table.rows())
        assert seen in (rows_of(*range(1, told + 1)), rows_of(*range(1, told + 2)))
        outcomes.add(len(seen) - len(rows_of(*range(1, told + 1))))
        with contextlib.closing(pipeline.recover(1)) as again:
            assert rows_of(*range(1, position_of(again) + 1)) == seen
    assert 0 in outcomes
    assert_nothing_is_open(postgres)


def test_a_server_that_is_not_there_is_unavailable(table: OutTable, store: str) -> None:
    sink = attrs.evolve(table.sink(), conninfo=table.server.conninfo(port=free_port()))
    with pytest.raises(
        TargetUnavailableError, match=r"PostgreSQL at 127\.0\.0\.1:\d+/postgres, table .*refused"
    ):
        SinkPipeline(sink, store).recover()
    with pytest.raises(TargetUnavailableError):
        sink.check(SCHEMA)


def test_a_server_that_says_nothing_any_more_is_unavailable(
    proxy: PostgresProxy, table: OutTable, store: str
) -> None:
    pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=2), store)
    committer = retried(through(proxy, pipeline).recover, TargetUnavailableError)
    epoch = pipeline.epoch(1, *batches_of(1))
    released = threading.Event()

    def freeze(_: Link) -> None:
        released.wait(DEADLINE)

    proxy.act_at(3, before=freeze)
    with pytest.raises(TargetUnavailableError, match="has not answered within 4 s"):
        committer.commit(epoch)
    released.set()
    again = SinkPipeline(table.sink(), store).recover()
    again.commit(epoch)
    assert sorted(table.rows()) == rows_of(1)
    again.close()


# --- batches that are published at once ---------------------------------------------------------------------


def messages_of_a_batch(postgres: PostgresServer, proxy: PostgresProxy, store: str) -> list[bytes]:
    """The types of the messages that a client sends for a batch."""
    pipeline = SinkPipeline(BatchTable.make(postgres, KEYED).sink(), store)
    committer = through(proxy, pipeline).recover(1)
    batch = pipeline.batch(0, (1, "a"))
    proxy.act_at(-1)
    committer.upsert(batch)
    kinds = list(proxy.kinds)
    committer.close()
    return kinds


def test_a_statement_that_never_fits_into_its_time_is_not_taken_for_a_server_that_is_away(
    table: OutTable, store: str
) -> None:
    table.server.execute(
        f'CREATE FUNCTION "{table.schema}".slow() RETURNS trigger LANGUAGE plpgsql AS '
        "'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'"
    )
    table.server.execute(
        f'CREATE TRIGGER slow BEFORE INSERT ON {table.sql} FOR EACH ROW EXECUTE FUNCTION "{table.schema}".slow()'
    )
    pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=1.0), store)
    with (
        contextlib.closing(retried(pipeline.recover, TargetUnavailableError)) as committer,
        pytest.raises(TargetUnavailableError, match="raise the sink's `timeout`") as caught,
    ):
        committer.commit(pipeline.epoch(1, *batches_of(1)))
    assert not caught.value.is_understood


@pytest.mark.parametrize("is_answer_lost", [False, True])
@pytest.mark.full(
    "coordinator/connectors/test_postgres.py::test_a_connection_that_is_cut_at_any_message_of_a_commit_costs_and_repeats_no_row"
)
def test_a_connection_that_is_cut_at_any_message_of_a_batch_leaves_all_of_it_or_nothing(
    postgres: PostgresServer, proxy: PostgresProxy, store: str, is_answer_lost: bool
) -> None:
    kinds = messages_of_a_batch(postgres, proxy, store)
    messages = [n for n, kind in enumerate(kinds) if kind in (LAST if is_answer_lost else FIRST)]
    assert len(messages) >= 6
    before, after = [(1, "a"), (2, "a")], [(1, "b"), (2, "a"), (3, "b")]
    found = []
    for message in messages:
        table = BatchTable.make(postgres, KEYED)
        pipeline = SinkPipeline(table.sink(), store)
        first = through(proxy, pipeline).recover(1)
        first.upsert(pipeline.batch(0, *before))
        batch = pipeline.batch(1, (1, "b"), (3, "b"))
        proxy.act_at(message, before=Link.lose_answers if is_answer_lost else Link.cut)
        with pytest.raises(TargetUnavailableError):
            first.upsert(batch)
        first.close()
        again = pipeline.recover(1)
        found.append(sorted(table.rows()))
        again.upsert(batch)
        assert sorted(table.rows()) == after
        again.close()
    assert found == [before] * (len(messages) - 1) + [after if is_answer_lost else before]
    assert_nothing_is_open(postgres)


@pytest.mark.full("coordinator/connectors/test_postgres.py::TestSteps")
def test_an_earlier_life_that_freezes_at_any_step_of_its_batch_neither_blocks_its_successor_nor_publishes(
    postgres: PostgresServer, proxy: PostgresProxy, store: str
) -> None:
    kinds = messages_of_a_batch(postgres, proxy, store)
    for step in [number for number, kind in enumerate(kinds) if kind in FIRST]:
        table = BatchTable.make(postgres, KEYED)
        pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=8), store)
        zombie = through(proxy, pipeline).recover(1)
        zombie.upsert(pipeline.batch(0, (1, "a")))
        frozen, thawed = threading.Event(), threading.Event()

        def freeze(link: Link, frozen: threading.Event = frozen, thawed: threading.Event = thawed) -> None:
            frozen.set()
            thawed.wait(DEADLINE)

        batch = pipeline.batch(1, (1, "zombie"), (2, "zombie"))
        proxy.act_at(step, before=freeze)
        with ThreadPoolExecutor(1) as executor:
            outcome = executor.submit(zombie.upsert, batch)
            assert frozen.wait(DEADLINE)
            successor = pipeline.recover(2)
            successor.upsert(pipeline.batch(1, (1, "b")))
            thawed.set()
            with pytest.raises((FencedError, TargetUnavailableError)):
                outcome.result(DEADLINE)
        assert table.rows() == [(1, "b")]
        successor.close()
        zombie.close()
    assert_nothing_is_open(postgres)


def test_a_batch_deletes_keys(postgres: PostgresServer, store: str) -> None:
    table = OutTable.make(postgres, KEYED)
    pipeline = SinkPipeline(attrs.evolve(table.upsert("gone"), publish="batch"), store)
    committer = pipeline.recover()
    for number, rows in enumerate((((1, "a", False), (2, "b", False)), ((1, None, True), (2, "c", None)))):
        context = WriteContext(store, "staged/delays/", number, 0)
        staged = pipeline.sink.write(iter(changes(*rows).to_batches()), context)
        committer.upsert(Batch(number, staged.rows, staged.files, store))
    assert table.rows() == [(2, "c")]
    committer.close()


# --- earlier lives ------------------------------------------------------------------------------------------


def test_a_record_that_somebody_else_has_locked_is_unavailable_and_the_error_says_who(
    table: OutTable, store: str
) -> None:
    pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=3), store)
    retried(pipeline.recover, TargetUnavailableError).close()
    with table.server.connect() as other, other.transaction():
        other.execute("SET application_name = 'somebody'")
        other.execute(f'SELECT * FROM "{table.schema}".chandy_positions FOR UPDATE'.encode())
        with pytest.raises(
            TargetUnavailableError,
            match=rf"locked by session {other.info.backend_pid} of user postgres \(somebody\)",
        ):
            pipeline.recover(2)
        assert other.execute("SELECT 1").fetchall() == [(1,)]
    retried(lambda: pipeline.recover(2), TargetUnavailableError).close()


def test_a_session_that_the_user_may_not_end_is_named(table: OutTable, store: str) -> None:
    server = table.server
    user = server.user_with("USAGE, CREATE ON SCHEMA {0}; INSERT ON {0}.out", table.schema)
    pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=3, conninfo=server.conninfo(user)), store)
    retried(pipeline.recover, TargetUnavailableError).close()
    with psycopg.connect(server.conninfo(), application_name="chandy flights/delays/out") as zombie:
        zombie.execute(f'SELECT * FROM "{table.schema}".chandy_positions FOR UPDATE'.encode())
        with pytest.raises(TargetUnavailableError, match=r"which the user may not end.*pg_signal_backend"):
            pipeline.recover(2)
    retried(lambda: pipeline.recover(2), TargetUnavailableError).close()


def test_who_makes_the_first_record_and_freezes_does_not_block_the_successor(
    table: OutTable, store: str
) -> None:
    server = table.server
    pipeline = SinkPipeline(attrs.evolve(table.sink(), timeout=8), store)
    other = attrs.evolve(pipeline, sink=table.sink("other"))
    other.recover(1).close()
    with psycopg.connect(server.conninfo(), application_name="chandy flights/delays/out") as zombie:
        zombie.execute(
            f'INSERT INTO "{table.schema}".chandy_positions VALUES (%s, %s, 1, NULL)'.encode(),
            ("flights/delays/out", store),
        )
        successor = pipeline.recover(2)
        with pytest.raises(psycopg.OperationalError):
            zombie.execute("SELECT 1")
        successor.commit(pipeline.epoch(1, *batches_of(1)))
        successor.close()
    assert sorted(table.rows()) == rows_of(1)


def test_many_first_starts_at_once_make_one_table_of_positions(postgres: PostgresServer, store: str) -> None:
    for _ in range(5):
        table = OutTable.make(postgres)
        start = threading.Barrier(6)

        def recover(uid: str, table: OutTable = table, start: threading.Barrier = start) -> int | None:
            start.wait(DEADLINE)
            committer = SinkPipeline(table.sink(uid), store).recover()
            committer.close()
            return committer.position

        with ThreadPoolExecutor(6) as executor:
            assert list(executor.map(recover, [f"sink {n}" for n in range(6)])) == [None] * 6
        found = postgres.execute(f'SELECT count(*) FROM "{table.schema}".chandy_positions')
        assert found == [(6,)]


def test_a_target_that_was_restored_to_an_older_state_reports_its_position(
    table: OutTable, store: str
) -> None:
    pipeline = SinkPipeline(table.sink(), store)
    committer = pipeline.recover(3)
    committer.commit(pipeline.epoch(1, *batches_of(1)))
    committer.commit(pipeline.epoch(2, *batches_of(2)))
    server = table.server
    server.execute(f"DELETE FROM {table.sql} WHERE k >= 20")
    server.execute(f'UPDATE "{table.schema}".chandy_positions SET epoch = 1, generation = 2')
    with pytest.raises(TargetUnavailableError, match="was restored"):
        committer.commit(pipeline.epoch(3, *batches_of(3)))
    again = pipeline.recover(3)
    assert again.position == 1
    again.close()
    assert sorted(table.rows()) == rows_of(1)


def test_two_connections_of_one_life_publish_an_epoch_once(table: OutTable, store: str) -> None:
    pipeline = SinkPipeline(table.sink(), store)
    one, two = pipeline.recover(1), pipeline.recover(1)
    epoch = pipeline.epoch(1, *batches_of(1))
    two.commit(epoch)
    with pytest.raises(TargetUnavailableError, match="another connection publishes"):
        one.commit(epoch)
    assert sorted(table.rows()) == rows_of(1)
    one.close()
    two.close()


# --- rows -----------------------------------------------------------------------------------------------------

UTC = datetime.UTC
EVERY_TYPE = pa.table(
    {
        "flag": pa.array([True, None]),
        "small": pa.array([-(2**15), None], pa.int16()),
        "whole": pa.array([2**31 - 1, None], pa.int32()),
        "big": pa.array([-(2**63), None], pa.int64()),
        "single": pa.array([0.1, None], pa.float32()),
        "real": pa.array([0.1 + 0.2, None]),
        "odd": pa.array([float("inf"), float("nan")]),
        "money": pa.array([Decimal("-12345678901234567890.0123456789"), None], pa.decimal128(38, 10)),
        "Text": pa.array(['tab\t line\n quote" back\\ \\N \\. é\U0001f600', None]),
        "empty": pa.array(["", "\\N"]),
        "data": pa.array([bytes(range(256)), None]),
        "day": pa.array([datetime.date(1, 1, 1), None]),
        "moment": pa.array([datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999), None], pa.timestamp("us")),
        "instant": pa.array(
            [datetime.datetime(2024, 7, 1, 12, tzinfo=UTC), None], pa.timestamp("us", "America/New_York")
        ),
        "span": pa.array([datetime.timedelta(days=-1, microseconds=1), None], pa.duration("us")),
        "many": pa.array([[1, None, 3], None], pa.list_(pa.int64())),
        "texts": pa.array([['a"b', "c\\d,}", None, "NULL", "", "x\ty"], []], pa.list_(pa.string())),
        "times": pa.array(
            [[datetime.datetime(2024, 7, 1, tzinfo=UTC)], None], pa.list_(pa.timestamp("us", "UTC"))
        ),
    }
)


def test_values_of_every_type_arrive_in_a_table_that_the_sink_has_made(
    postgres: PostgresServer, store: str
) -> None:
    table = OutTable.make(postgres, columns="")
    sink = attrs.evolve(table.sink(), create_table=True)
    sink.check(EVERY_TYPE.schema)
    sink.check(EVERY_TYPE.schema)
    publish(SinkPipeline(sink, store), EVERY_TYPE)
    found = postgres.execute(f"SELECT * FROM {table.sql} ORDER BY whole")
    expected = [tuple(row.values()) for row in EVERY_TYPE.to_pylist()]
    assert [repr(plain(row)) for row in found] == [repr(plain(row)) for row in expected]


def plain(value: object) -> object:
    """A value without its zone of time and its kind of sequence, single floats rounded."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return round(value, 7) if isinstance(value, float) else value


def test_a_string_may_be_json_uuid_or_an_enum(postgres: PostgresServer, store: str) -> None:
    table = OutTable(postgres)
    postgres.execute(f'CREATE SCHEMA "{table.schema}"')
    postgres.execute(f"CREATE TYPE \"{table.schema}\".mood AS ENUM ('sad', 'glad')")
    postgres.execute(f'CREATE TABLE {table.sql} (a jsonb, b uuid, c "{table.schema}".mood)')
    id = uuid.uuid4()
    rows = pa.table({"a": ['{"x": ["\\t"]}'], "b": [str(id)], "c": ["glad"]})
    table.sink().check(rows.schema)
    publish(SinkPipeline(table.sink(), store), rows)
    assert postgres.execute(f"SELECT * FROM {table.sql}") == [({"x": ["\t"]}, id, "glad")]


def test_columns_are_found_by_name_and_others_get_their_default(postgres: PostgresServer, store: str) -> None:
    table = OutTable.make(postgres, 'id serial, "odd % ""name" text, k bigint, at int NOT NULL DEFAULT 7')
    rows = pa.table({"k": [1, 2], 'odd % "name': ["a", "b"]})
    table.sink().check(rows.schema)
    publish(SinkPipeline(table.sink(), store), rows)
    assert sorted(postgres.execute(f"SELECT * FROM {table.sql}")) == [(1, "a", 1, 7), (2, "b", 2, 7)]


def test_names_that_mean_something_in_sql_are_only_names(postgres: PostgresServer, store: str) -> None:
    schema = f'a%s.{uuid.uuid4().hex[:8]}"; DROP'
    escaped = schema.replace('"', '""')
    postgres.execute(f'CREATE SCHEMA "{escaped}"')
    sink = PostgresSink(
        conninfo=postgres.conninfo(),
        table=f'"{escaped}"."t%s ""1"',
        mode="upsert",
        key="k %s",
        create_table=True,
    )
    rows = pa.table({"k %s": [1, 2], "v": ["a", "b"]})
    sink.check(rows.schema)
    publish(SinkPipeline(sink, store), rows)
    publish(SinkPipeline(sink, store), rows)
    assert postgres.execute(f'SELECT count(*) FROM "{escaped}"."t%s ""1"') == [(2,)]


def test_batches_of_different_versions_of_a_query_may_have_different_columns(
    postgres: PostgresServer, store: str
) -> None:
    for sink_of in (OutTable.sink, OutTable.upsert):
        table = OutTable.make(postgres, "k bigint PRIMARY KEY, v text, w bigint")
        publish(
            SinkPipeline(sink_of(table), store),
            pa.table({"k": [1], "v": ["a"]}),
            pa.table({"w": [5], "k": [2]}),
        )
        found = postgres.execute(f"SELECT * FROM {table.sql} ORDER BY k")
        assert found == [(1, "a", None), (2, None, 5)]


def changes(*rows: tuple[int, str | None, bool | None]) -> pa.Table:
    ks, vs, gone = zip(*rows, strict=True)
    return pa.table(
        {"k": pa.array(ks, pa.int64()), "gone": pa.array(gone, pa.bool_()), "v": pa.array(vs, pa.string())}
    )


def test_an_upsert_keeps_the_last_row_of_a_key_and_deletes(postgres: PostgresServer, store: str) -> None:
    table = OutTable.make(postgres, "v text, k bigint PRIMARY KEY")
    pipeline = SinkPipeline(table.upsert("gone"), store)
    pipeline.sink.check(changes((1, "", False)).schema)
    publish(
        pipeline,
        changes((1, "a", False), (2, "b", None), (1, "A", False), (3, "c", True)),
        changes((2, "B", False)),
    )
    assert sorted(table.rows()) == [(1, "A"), (2, "B")]
    publish(
        pipeline,
        changes((1, None, True), (2, None, True), (4, "d", False)),
        changes((2, "again", False), (4, None, True), (5, None, False)),
    )
    assert sorted(table.rows()) == [(2, "again"), (5, None)]


def test_a_key_may_have_several_columns_and_be_all_that_there_is(
    postgres: PostgresServer, store: str
) -> None:
    table = OutTable.make(postgres, "k bigint, v text, PRIMARY KEY (v, k)")
    sink = attrs.evolve(table.sink(), mode="upsert", key=("k", "v"))
    rows = pa.table({"k": pa.array([1, 1, 1], pa.int64()), "v": ["a", "b", "a"]})
    sink.check(rows.schema)
    publish(SinkPipeline(sink, store), rows)
    publish(SinkPipeline(sink, store), rows)
    assert sorted(table.rows()) == [(1, "a"), (1, "b")]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("k bigint PRIMARY KEY, v text NOT NULL", 'null value in column "v"'),
        ("k bigint PRIMARY KEY, v text CHECK (v <> 'bad')", "bad"),
        ("k bigint PRIMARY KEY, v varchar(2)", "too long"),
    ],
)
def test_a_refused_row_leaves_the_target_as_it_was_and_is_named(
    postgres: PostgresServer, store: str, mode: str, columns: str, words: str
) -> None:
    table = OutTable.make(postgres, columns)
    pipeline = SinkPipeline(table.upsert() if mode == "upsert" else table.sink(), store)
    publish(pipeline, pa.table({"k": [1], "v": ["1"]}))
    bad = "bad" if "NOT NULL" not in columns else None
    with pytest.raises(OutputError, match=words) as caught:
        publish(pipeline, pa.table({"k": [2], "v": ["2"]}), pa.table({"k": [3, 4], "v": ["3", bad]}))
    assert table.name in str(caught.value)
    if mode == "append":
        assert "line 3" in str(caught.value)
    assert [(k, str(v)) for k, v in table.rows()] == [(1, "1")]
    with contextlib.closing(pipeline.recover(2)) as committer:
        assert committer.position == 1


def test_staged_rows_that_are_damaged_leave_the_target_as_it_was(table: OutTable, store: str) -> None:
    pipeline = SinkPipeline(table.sink(), store)
    epoch = pipeline.epoch(1, [(1, "a")], [(2, "b")])
    last = epoch.record.staged.files[-1]
    path = Path(store.removeprefix("file://")) / last.key
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with contextlib.closing(pipeline.recover()) as committer:
        with pytest.raises(DamagedError):
            committer.commit(epoch)
        assert committer.position is None
    assert table.rows() == []


def test_a_deferred_constraint_that_refuses_at_the_commit_is_an_error_of_the_output(
    postgres: PostgresServer, store: str
) -> None:
    table = OutTable.make(postgres, "k bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, v text")
    pipeline = SinkPipeline(table.sink(), store)
    with pytest.raises(OutputError, match="duplicate key"):
        publish(pipeline, pa.table({"k": [1, 1], "v": ["a", "b"]}))
    assert table.rows() == []


# --- the check before the start -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("k bigint", "no column 'v' (text)"),
        ("k int, v text", "column 'k' is integer and the query's is int64 (bigint)"),
        ("k bigint, v timestamp", "column 'v' is timestamp without time zone"),
        ("k bigint, v text[]", "column 'v' is text[]"),
        ("k numeric(10), v text", "column 'k' is numeric(10,0)"),
        ("k bigint, v text, w int NOT NULL", "column 'w' of the table takes no nulls"),
        ("k bigint, v text GENERATED ALWAYS AS ('x') STORED", "column 'v' of the table is generated"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_the_start(
    postgres: PostgresServer, columns: str, words: str
) -> None:
    table = OutTable.make(postgres, columns)
    with pytest.raises(OutputError, match=re.escape(words)):
        table.sink().check(SCHEMA)


@pytest.mark.parametrize(
    "columns",
    [
        "k bigint, v text",
        "k numeric, v varchar(10)",
        "k numeric(30, 5), v json",
        "v text, other text, k bigint, at timestamptz NOT NULL DEFAULT now(), id int GENERATED ALWAYS AS IDENTITY",
    ],
)
def test_a_table_that_fits_is_not_refused(postgres: PostgresServer, columns: str) -> None:
    OutTable.make(postgres, columns).sink().check(SCHEMA)


def test_a_domain_is_of_the_type_that_it_is_made_from(postgres: PostgresServer) -> None:
    table = OutTable.make(postgres, "")
    postgres.execute(f'CREATE DOMAIN "{table.schema}".id AS numeric(25, 2)')
    postgres.execute(f'CREATE TABLE {table.sql} (k "{table.schema}".id, v text)')
    table.sink().check(SCHEMA)
    postgres.execute(f'ALTER DOMAIN "{table.schema}".id SET DEFAULT 3')
    postgres.execute(f'CREATE DOMAIN "{table.schema}".few AS numeric(5, 2)')
    postgres.execute(f'ALTER TABLE {table.sql} ALTER k TYPE "{table.schema}".few')
    with pytest.raises(OutputError, match="column 'k' is"):
        table.sink().check(SCHEMA)


def test_all_problems_are_named_at_once(postgres: PostgresServer) -> None:
    table = OutTable.make(postgres, "k int, w text NOT NULL")
    with pytest.raises(OutputError) as caught:
        table.upsert().check(SCHEMA)
    for words in (
        "column 'k' is integer",
        "no column 'v'",
        "column 'w' of the table",
        "no primary key or unique index on (k)",
        "'k' of the table takes nulls",
    ):
        assert words in str(caught.value)


def test_a_table_that_is_missing_is_named_with_the_statement_that_makes_it(
    table: OutTable, store: str
) -> None:
    server = table.server
    server.execute(f"DROP TABLE {table.sql}")
    with pytest.raises(OutputError) as caught:
        table.upsert().check(SCHEMA)
    statement = f'CREATE TABLE IF NOT EXISTS "{table.schema}"."out" ("k" bigint, "v" text, PRIMARY KEY ("k"))'
    assert statement in str(caught.value)
    with pytest.raises(OutputError, match="create it"):
        SinkPipeline(table.sink(), store).recover()
    server.execute(statement)
    table.upsert().check(SCHEMA)


def test_a_table_that_goes_while_the_sink_publishes_is_an_error_of_the_output(
    table: OutTable, store: str
) -> None:
    pipeline = SinkPipeline(table.sink(), store)
    committer = pipeline.recover()
    table.server.execute(f"DROP TABLE {table.sql}")
    with pytest.raises(OutputError, match="does not exist"):
        committer.commit(pipeline.epoch(1, [(1, "a")]))


@pytest.mark.parametrize(
    ("columns", "is_enough"),
    [
        ("k bigint PRIMARY KEY, v text", True),
        ("k bigint NOT NULL UNIQUE, v text", True),
        ("k bigint NOT NULL, v text, UNIQUE (k, v)", False),
        ("k bigint NOT NULL, v text, UNIQUE (k) DEFERRABLE", False),
        ("k bigint UNIQUE, v text", False),
    ],
)
def test_an_upsert_needs_a_unique_key(postgres: PostgresServer, columns: str, is_enough: bool) -> None:
    sink = OutTable.make(postgres, columns).upsert()
    with contextlib.nullcontext() if is_enough else pytest.raises(OutputError, match="key"):
        sink.check(SCHEMA)


def test_an_index_over_part_of_the_rows_is_no_unique_key(postgres: PostgresServer) -> None:
    table = OutTable.make(postgres)
    postgres.execute(f"CREATE UNIQUE INDEX ON {table.sql} (k) WHERE v IS NULL")
    with pytest.raises(OutputError, match="no primary key or unique index"):
        table.upsert().check(SCHEMA)


def test_a_view_is_refused(table: OutTable) -> None:
    table.server.execute(f'CREATE VIEW "{table.schema}".v AS SELECT * FROM {table.sql}')
    with pytest.raises(OutputError, match="is a view and not a table"):
        attrs.evolve(table.sink(), table=f"{table.schema}.v").check(SCHEMA)


@pytest.mark.parametrize(
    ("mode", "grants", "words"),
    [
        ("append", "", "permission denied for schema"),
        ("append", "USAGE, CREATE ON SCHEMA {0}", "no right to INSERT column 'k'"),
        ("append", "USAGE ON SCHEMA {0}; INSERT ON {0}.out", "may not CREATE the table chandy_positions"),
        ("append", "USAGE, CREATE ON SCHEMA {0}; INSERT ON {0}.out", None),
        ("append", "USAGE, CREATE ON SCHEMA {0}; INSERT (k, v) ON {0}.out", None),
        (
            "upsert",
            "USAGE, CREATE ON SCHEMA {0}; INSERT ON {0}.out",
            "no right to UPDATE and SELECT column 'v'",
        ),
        ("upsert", "USAGE, CREATE ON SCHEMA {0}; INSERT, SELECT, UPDATE ON {0}.out", "no right to DELETE"),
        ("upsert", "USAGE, CREATE ON SCHEMA {0}; INSERT, SELECT, UPDATE, DELETE ON {0}.out", None),
    ],
)
def test_missing_rights_are_named_and_given_ones_are_enough(
    postgres: PostgresServer, store: str, mode: str, grants: str, words: str | None
) -> None:
    table = OutTable.make(postgres, "k bigint PRIMARY KEY, v text")
    user = postgres.user_with(grants, table.schema)
    sink = table.upsert("gone") if mode == "upsert" else table.sink()
    sink = attrs.evolve(sink, conninfo=postgres.conninfo(user))
    rows = changes((1, "a", False))
    rows = rows if mode == "upsert" else rows.drop_columns("gone")
    if words:
        with pytest.raises(OutputError, match=words):
            sink.check(rows.schema)
    else:
        sink.check(rows.schema)
        publish(SinkPipeline(sink, store), rows)
        second = changes((1, "a", True)) if mode == "upsert" else pa.table({"k": [2], "v": ["b"]})
        publish(SinkPipeline(sink, store), second)
        assert sorted(table.rows()) == ([] if mode == "upsert" else [(1, "a"), (2, "b")])


def test_a_user_or_a_database_that_is_not_there_is_an_error_of_the_setup(table: OutTable, store: str) -> None:
    server = table.server
    for conninfo in (server.conninfo("nobody_here"), server.conninfo(database="nothing_here")):
        with pytest.raises(SetupError, match="does not exist"):
            attrs.evolve(table.sink(), conninfo=conninfo).check(SCHEMA)


def test_a_server_that_is_read_only_is_refused_before_the_start_and_unavailable_later(
    table: OutTable, store: str
) -> None:
    conninfo = f"{table.server.conninfo()} options='-c default_transaction_read_only=on'"
    sink = attrs.evolve(table.sink(), conninfo=conninfo)
    with pytest.raises(OutputError, match="read-only"):
        sink.check(SCHEMA)
    SinkPipeline(table.sink(), store).recover().close()
    with pytest.raises(TargetUnavailableError, match="read-only"):
        SinkPipeline(sink, store).recover()


def test_a_server_that_forgets_commits_is_told_not_to(table: OutTable, store: str) -> None:
    conninfo = f"{table.server.conninfo()} options='-c synchronous_commit=off'"
    committer = SinkPipeline(attrs.evolve(table.sink(), conninfo=conninfo), store).recover()
    assert isinstance(committer, PostgresCommitter)
    settings = ("synchronous_commit", "statement_timeout", "lock_timeout", "application_name")
    found = [committer._session.query(f"SHOW {name}")[0][0] for name in settings]
    assert found == ["on", "20s", "20s", "chandy flights/delays/out"]
    committer.close()
    committer.close()
