"""A keyed operator in real Spark tasks: a processor gives the same as on Spark's own transformWithState."""
# The methods have PySpark's names.
# ruff: noqa: N802, N803

import contextlib
import fcntl
import pickle
import threading
from itertools import pairwise
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import IntegerType, LongType, StructType

from chandy.barrier.operator_name import function_name
from chandy.barrier.task import operator_task
from chandy.state.errors import DefinitionError
from chandy.state.format.arrow import BYTES
from chandy.state.format.keys import KeyCodec
from chandy.state.operators.dataframe import SHARD, check_input, keyed
from chandy.state.operators.grouping import group
from chandy.state.operators.shard_ranges import ranges
from chandy.state.processors.processor import processor_spec
from chandy.state.rpc.messages import BatchTimes, Endpoint
from chandy.state.rpc.metrics import OperatorMetrics

pytestmark = pytest.mark.spark

ENDPOINT = Endpoint("grpc://127.0.0.1:1", "secret", "flights", 1 << 20, "/nowhere", "/nowhere")


class FileClient:
    """Keeps state in a file, for the worker processes of one machine; one batch may be applied many times."""

    def __init__(self, root):
        self.root = Path(root)

    def __call__(self, endpoint):
        assert endpoint == ENDPOINT
        return self

    times = BatchTimes()
    fresh = frozenset()

    def begin(self, task):
        with self.opened() as held:
            held["begun"].append((task.batch, task.shards))
        self.batch = task.batch
        self.metrics = OperatorMetrics()
        return contextlib.nullcontext(self)

    def fetch(self, shards, keys):
        places = zip(shards.tolist(), keys.to_pylist(), strict=True)
        with self.opened() as held:
            return pa.array([self.before(held, place) for place in places], BYTES)

    def scan(self, start, stop):
        return iter(())

    def apply(self, changes):
        with self.opened() as held:
            for entries in changes:
                columns = (entries.shards, entries.keys, entries.values)
                for shard, key, value in zip(*(column.tolist() for column in columns), strict=True):
                    held["values"].setdefault((shard, key), {})[self.batch] = value

    def before(self, held, place):
        written = held["values"].get(place, {})
        batches = [batch for batch in written if batch < self.batch]
        return written[max(batches)] if batches else None

    def report(self, failure):
        with self.opened() as held:
            held["failures"].append(failure)

    @contextlib.contextmanager
    def opened(self):
        with (self.root / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self.root / "state"
            held = {"begun": [], "failures": [], "values": {}}
            if path.exists():
                held = pickle.loads(path.read_bytes())
            yield held
            path.write_bytes(pickle.dumps(held))


class ShownTotals(StatefulProcessor):
    """Counts and remembers, and shows what it was given."""

    def init(self, handle):
        self.count = handle.getValueState("count", "count long, total double")
        self.last = handle.getValueState(
            "last", "ts timestamp, day date, price decimal(10,2), parts array<int>, st struct<p:int,q:string>"
        )

    def handleInputRows(self, key, rows, timerValues):
        count, total = self.count.get() or (0, 0.0)
        before = self.last.get()
        for row in rows:
            count, total = count + 1, total + (row.x or 0.0)
            self.last.update((row.ts, row.day, row.price, row.parts, (row.st["p"], row.st["q"])))
        self.count.update((count, total))
        shown = repr((key, before, self.last.get(), row, timerValues.getCurrentWatermarkInMs()))
        yield Row(name=key[0], n=count, total=total, shown=shown, ts=row.ts, parts=row.parts, st=row.st)

    def close(self):
        pass


class FailingTotals(ShownTotals):
    def handleInputRows(self, key, rows, timerValues):
        raise ValueError("user's own")


SEEN = "shown string, ts timestamp, parts array<int>, st struct<p:int,q:string>"
OUTPUT = f"name string, n long, total double, {SEEN}"


@pytest.fixture
def source(spark, tmp_path):
    """A stream of two batches with one row a key in each, so that arrival order is no question."""
    folder = tmp_path / "source"
    for number in range(2):
        spark.range(20).selectExpr(
            "if(id = 0, null, concat('k', id)) name",
            f"timestamp_seconds(id * 100000 + {number}) ts",
            f"date_from_unix_date(cast(id + {number} as int)) day",
            f"cast(id + {number} as double) x",
            "cast(id as decimal(10,2)) price",
            "array(1, cast(id as int)) parts",
            f"named_struct('p', {number}, 'q', 'z') st",
            "map('k', id) m",
        ).coalesce(1).write.mode("append").parquet(str(folder))
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run(df, tmp_path, name):
    """Run a streaming query to its end; return its output rows in order, by batch."""
    found = []
    query = (
        df.writeStream.foreachBatch(lambda rows, batch: found.append(sorted(rows.collect(), key=repr)))
        .option("checkpointLocation", str(tmp_path / name))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return found


def operator(df, tmp_path, processor, parallelism=2, **arguments):
    given = {
        "uid": "delays",
        "key": ["name"],
        "output": OUTPUT,
        "shards": 16,
        "endpoint": ENDPOINT,
    } | arguments
    check_input(df, given["key"])
    output = given.pop("output")
    spec = processor_spec(
        df.schema,
        uid=given["uid"],
        key=given["key"],
        processor=given.pop("processor", processor),
        output=output,
    )
    task = operator_task(df, spec=spec, parallelism=given.pop("parallelism", parallelism), **given)
    return attrs.evolve(task, connect=FileClient(tmp_path))


def test_a_processor_gives_the_same_rows_as_on_sparks_own_transform_with_state(
    spark, source, tmp_path, settings
):
    settings["spark.sql.session.timeZone"] = "America/New_York"
    settings["spark.sql.streaming.stateStore.providerClass"] = (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
    own = source.groupBy("name").transformWithState(ShownTotals(), OUTPUT, "append", "none")
    expected = run(own, tmp_path, "spark")
    assert [len(rows) for rows in expected] == [20, 20]
    assert run(operator(source, tmp_path, ShownTotals()).over(source), tmp_path, "chandy") == expected


def test_every_task_begins_its_shards_in_every_batch_also_without_rows(source, tmp_path):
    one_key = source.where("name = 'k1'")
    assert [
        len(rows) for rows in run(operator(one_key, tmp_path, ShownTotals()).over(one_key), tmp_path, "query")
    ] == [1, 1]
    with FileClient(tmp_path).opened() as held:
        begun = held["begun"]
    expected = {(batch, tuple(part)) for batch in range(2) for part in ranges(16, 2)}
    assert set(begun) == expected
    assert len(begun) == len(expected)


def test_a_processor_that_raises_fails_the_query_with_its_traceback_once(source, tmp_path):
    with pytest.raises(Exception, match="user's own") as failed:
        run(operator(source, tmp_path, FailingTotals()).over(source), tmp_path, "query")
    assert str(failed.value).count('raise ValueError("user\'s own")') == 1
    with FileClient(tmp_path).opened() as held:
        assert held["values"] == {}
        assert all(failure.uid == "delays" for failure in held["failures"])
        assert held["failures"]


def test_an_operator_followed_by_a_union_is_refused_when_it_runs(source, tmp_path):
    output = operator(source, tmp_path, ShownTotals()).over(source)
    with pytest.raises(Exception, match="put a repartition between"):
        run(output.union(output), tmp_path, "query")


def test_an_operator_outside_of_a_streaming_query_is_refused_when_it_runs(spark, tmp_path):
    static = spark.range(3).selectExpr("cast(id as string) name", "id x")
    task = operator(static, tmp_path, ShownTotals(), output="name string")
    with pytest.raises(Exception, match=r"coordinator\.start"):
        task.over(static).collect()


def test_the_function_has_the_operators_name_in_the_plan(source, tmp_path, capsys):
    operator(source, tmp_path, ShownTotals()).over(source).explain(True)
    assert function_name("delays") in capsys.readouterr().out


def test_keys_are_equal_exactly_where_sparks_group_by_says_so(spark, tmp_path, settings):
    settings["spark.sql.session.timeZone"] = "Europe/Berlin"
    values = {
        "f": "cast(0.0 as float), cast(-0.0 as float), cast('NaN' as float), cast(1.1 as float), null",
        "d": "0.0d, -0.0d, cast('NaN' as double), 1.5d, null",
        "s": "'', 'a', 'A', 'a ', 'ä', null",
        "x": "x'', x'00', x'0000', null",
        "dec": "cast(1.50 as decimal(38,18)), cast(1.5 as decimal(38,18)), cast(0 as decimal(38,18)), null",
        "ts": "timestamp_seconds(1603585800), timestamp_seconds(1603589400), timestamp_micros(-1), null",
        "ntz": "timestamp_ntz'2020-10-25 02:30:00', timestamp_ntz'1900-01-01 00:00:00', null",
        "dt": "date'1500-01-01', date'9999-12-31', null",
        "st": "struct(0.0d as a), struct(-0.0d as a), struct(cast(null as double) as a), null",
        "arr": "array(), array(null), array(-0.0d), array(0.0d), array(cast('NaN' as double)), null",
        "b": "true, false, null",
        "l": "9223372036854775807, -9223372036854775808, 0, null",
        "iv": "interval '1' second, interval '-1' day, null",
    }
    for column, items in values.items():
        once = f"select explode(array({items})) k, 'x' other"
        df = spark.sql(f"{once} union all {once}")
        schema = StructType([df.schema["k"], df.schema["other"]])
        expected = sorted(row["count"] for row in df.groupBy("k", "other").count().collect())

        def count(batches, schema=schema):
            held = list(batches)
            if held:
                bounds = group(pa.Table.from_batches(held), KeyCodec(schema), SHARD).bounds
                sizes = [stop - start for start, stop in pairwise(bounds)]
                yield pa.RecordBatch.from_pydict({"rows": pa.array(sizes, pa.int64())})

        output = StructType().add("rows", LongType())
        rows = keyed(df, ["k", "other"], 16, 3, count, output, "count_rows").collect()
        assert sorted(row.rows for row in rows) == expected, column


def test_partitions_get_the_shards_of_their_ranges(spark):
    def shards(batches):
        here = TaskContext.get().partitionId()
        for batch in batches:
            found = batch.column(SHARD).to_pylist()
            yield pa.RecordBatch.from_pydict(
                {"p": pa.array([here] * len(found), pa.int32()), "s": batch.column(SHARD)}
            )

    output = StructType().add("p", IntegerType()).add("s", IntegerType())
    rows = keyed(spark.range(2000), ["id"], 50, 7, shards, output, "shards").collect()
    assert {row.s for row in rows} == set(range(50))
    assert all(row.s in ranges(50, 7)[row.p] for row in rows)


class Locked(ShownTotals):
    def __init__(self):
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"key": []}, DefinitionError, "at least one column name"),
        ({"key": "name"}, DefinitionError, "a list"),
        ({"key": ["nome"]}, DefinitionError, "among the columns name"),
        ({"key": ["name", "name"]}, DefinitionError, "no column name twice"),
        ({"key": ["m"]}, DefinitionError, "does not group by"),
        ({"shards": 0}, DefinitionError, "shards"),
        ({"parallelism": 17}, DefinitionError, "parallelism"),
        ({"uid": ""}, DefinitionError, "uid"),
        ({"output": "int"}, DefinitionError, "output"),
        ({"output": "not a schema"}, DefinitionError, "cannot read as DDL"),
        ({"output": "i interval year to month"}, DefinitionError, "cannot hold"),
        ({"processor": ShownTotals}, DefinitionError, "the class ShownTotals"),
        ({"processor": print}, DefinitionError, "builtin_function_or_method"),
        ({"processor": Locked()}, DefinitionError, "can be pickled"),
    ],
)
def test_what_cannot_run_is_refused_at_once(source, tmp_path, arguments, error, says):
    with pytest.raises(error, match=says):
        operator(source, tmp_path, **({"processor": ShownTotals()} | arguments))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ("NAME", "no column name twice"),
        (SHARD, "reserved '__chandy_shard'"),
        (SHARD.upper(), "reserved '__chandy_shard'"),
    ],
)
def test_columns_whose_names_clash_are_refused(spark, source, tmp_path, column, says):
    renamed = source.select("*", F.lit(1).alias(column))
    with pytest.raises(DefinitionError, match=says):
        operator(renamed, tmp_path, ShownTotals())
