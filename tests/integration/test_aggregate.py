"""Running aggregates and Arrow processors in real pipelines: as Spark's own groupBy, through restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructType

from chandy.coordinator import CheckpointCoordinator
from chandy.state.aggregation.aggregate_operator import aggregation
from chandy.state.operators.arrow_processor import ArrowInput, ArrowProcessor, ArrowResult
from chandy.state.operators.dataframe import SHARD, keyed
from chandy.state.operators.hashing import can_hash, xxhash64

from ..effort import sampled
from ..waiting import DEADLINE
from .support import Events, Make
from .typed_columns import SPARK, TYPES, functions_of, same

pytestmark = pytest.mark.spark

# Workers do not have the tests' modules: what the tests define travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def finish(coordinator: CheckpointCoordinator, df: DataFrame, found: dict[Any, Row], *key: str) -> None:
    """Run a stream to its end; keep the last row of each key."""

    def keep(rows: DataFrame, batch: int) -> None:
        found.update({tuple(row[name] for name in key): row for row in rows.collect()})

    query = coordinator.start(df.writeStream.foreachBatch(keep).trigger(availableNow=True), name="q")
    query.awaitTermination()


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Three files, a batch each; half of the rows have one key, some a key of null."""
    ids = spark.range(1500).selectExpr(
        "id",
        "if(id % 2 = 0, 'hot', if(id % 25 = 1, null, concat('k', id % 40))) k",
        "cast(if(id % 3 = 0, -0.0, 0.0) as double) z",
        *(f"{text} {name}" for name, text in TYPES.items()),
    )
    for part in range(3):
        path = str(tmp_path / "rows")
        ids.where(f"id % 3 = {part} or id < 9").coalesce(1).write.mode("append").parquet(path)
    return spark.read.parquet(str(tmp_path / "rows"))


@pytest.mark.parametrize("combine", sampled(["auto", False], 1))
def test_all_functions_give_what_sparks_batch_group_by_gives(
    spark: SparkSession, make: Make, rows: DataFrame, tmp_path: Path, settings: dict[str, str], combine: Any
) -> None:
    settings["spark.sql.session.timeZone"] = "America/New_York"
    columns = {f"{c}_{f}": (c, f) for c in TYPES for f in functions_of(c)} | {"n": ("*", "count")}
    expected = rows.groupBy("k", "z").agg(
        *(SPARK[f](F.col(c)).alias(name) for name, (c, f) in columns.items() if c != "*"),
        F.count("*").alias("n"),
        *(F.array_distinct(F.collect_list(c)).alias(f"all_{c}") for c in ("s", "day", "at", "wide")),
        *(F.size(F.collect_set(c)).alias(f"distinct_{c}") for c in TYPES),
    )
    more = {f"{c}_{f}": (c, f) for c in ("s", "day", "at", "wide") for f in ("first", "last")}
    more |= {f"{c}_approx_distinct": (c, "approx_distinct") for c in TYPES}
    coordinator = make()
    stream = (
        spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "rows"))
    )
    running = coordinator.aggregate(stream, by=["k", "z"], uid="all", combine=combine, **columns, **more)
    wanted = {field.name: field.dataType for field in expected.schema.fields}
    assert {name: running.schema[name].dataType for name in columns} == {
        name: wanted[name] for name in columns
    }
    found: dict[Any, Row] = {}
    finish(coordinator, running, found, "k", "z")
    rows_of_spark = {(row["k"], row["z"]): row for row in expected.collect()}
    assert found.keys() == rows_of_spark.keys()
    assert len(found) > 20
    for key, row in found.items():
        its = rows_of_spark[key]
        wrong = {name: (row[name], its[name]) for name in columns if not same(row[name], its[name])}
        assert not wrong, key
        for c in ("s", "day", "at", "wide"):
            for value in (row[f"{c}_first"], row[f"{c}_last"]):
                assert value is None or value in its[f"all_{c}"]
        for c in TYPES:
            # Float columns: Spark counts every NaN as one value, and so does its hash.
            assert abs(row[f"{c}_approx_distinct"] - its[f"distinct_{c}"]) <= 0.1 * its[f"distinct_{c}"]


def test_a_row_has_the_same_shard_in_python_as_in_spark(spark: SparkSession) -> None:
    schema = spark.range(1).selectExpr(*(f"{text} {name}" for name, text in TYPES.items())).schema
    names = [field.name for field in schema.fields if can_hash(StructType([field]))]
    assert set(TYPES) - set(names) == {"wide"}
    texts = {
        "s": "repeat(concat('ä', id), cast(id % 23 as int))",
        "f": "if(id % 7 = 0, -0.0f, cast(id / 3 as float))",
    }
    columns = [f"{(TYPES | texts)[name]} {name}" for name in names]
    rows = (
        spark.range(500)
        .selectExpr(*columns)
        .selectExpr(
            "*",
            *(f"xxhash64({name}) as hash_{name}" for name in names),
            f"xxhash64({', '.join(names)}) as hash",
        )
    )
    table = rows.toArrow().combine_chunks()
    column = {name: table.column(name).combine_chunks() for name in names}
    for name in names:
        assert xxhash64([column[name]]).tolist() == table.column(f"hash_{name}").to_pylist(), name
    assert xxhash64(list(column.values())).tolist() == table.column("hash").to_pylist()


def test_what_is_sent_of_a_column_is_the_same_without_spark(spark: SparkSession) -> None:
    df = spark.range(500).selectExpr("id % 3 k", *(f"{text} {name}" for name, text in TYPES.items()))
    hashed = [name for name in TYPES if can_hash(StructType([df.schema[name]]))]
    columns = {f"{name}_n": (name, "count") for name in TYPES} | {
        f"{name}_max": (name, "max") for name in hashed
    }
    columns |= {f"{name}_d": (name, "approx_distinct") for name in hashed}
    made = aggregation(df.schema, ["k"], columns, uid="op")
    rows = df.toArrow()
    shards = pa.array([0] * len(rows), pa.int32())
    found = made.arrow_rows(rows.append_column(SHARD, shards)).drop_columns([SHARD])
    by_spark = made.rows(df).toArrow()
    assert found.column_names == by_spark.column_names
    for name in found.column_names:
        assert same_values(found[name].to_pylist(), by_spark[name].to_pylist()), (name, made.inputs.get(name))


def same_values(found: list[Any], expected: list[Any]) -> bool:
    return all(same(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.compat
def test_totals_survive_a_restore(spark: SparkSession, make: Make, events: Events) -> None:
    found: dict[Any, Row] = {}
    for _ in range(2):
        events.add(3)
        coordinator = make()
        running = coordinator.aggregate(
            events.stream(spark), by=["k"], uid="totals", n=("*", "count"), total=("v", "sum")
        )
        finish(coordinator, running, found, "k")
        coordinator.checkpoint().result(timeout=DEADLINE)
        coordinator.stop()
    assert {key[0]: (row.n, row.total) for key, row in found.items()} == events.totals(spark)


@pytest.mark.full(
    "state/aggregation/test_event_ttl.py::test_a_key_lives_until_the_time_that_its_row_gave_it_whatever_is_declared_later"
)
def test_keys_that_live_by_event_time_begin_anew_once_the_watermark_has_passed_them(
    spark: SparkSession, make: Make, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    stream = spark.readStream.schema("k string, t timestamp").option("maxFilesPerTrigger", 1)
    timed = stream.json(str(tmp_path / "in")).withWatermark("t", "1 second")
    counts: dict[str, dict[tuple[str, int], int]] = {"stream": {}, "batches": {}}
    files = iter(range(100))

    def into(name: str) -> Callable[[DataFrame, int], None]:
        return lambda rows, batch: counts[name].update({(row.k, batch): row.n for row in rows.collect()})

    def run(ttl: str | None, *batches: list[tuple[str, int]]) -> None:
        for rows in batches:
            lines = "".join(
                f'{{"k": "{k}", "t": "2026-01-01 00:{t // 60:02}:{t % 60:02}"}}\n' for k, t in rows
            )
            hidden = tmp_path / "hidden"
            hidden.write_text(lines)
            number = next(files)
            # Spark takes the oldest file first.
            os.utime(hidden, (1_700_000_000 + number,) * 2)
            hidden.rename(tmp_path / "in" / f"{number}.json")
        coordinator = make()
        lives: dict[str, Any] = {"ttl": ttl, "ttl_time": "event"}
        started = {
            "stream": coordinator.aggregate(timed, by=["k"], uid="stream", n=("*", "count"), **lives),
            "batches": coordinator.aggregate_batches(
                timed, by=["k"], uid="batches", combine="sql", n=("*", "count"), **lives
            ),
        }
        for name, output in started.items():
            writer = output.writeStream.foreachBatch(into(name)).trigger(availableNow=True)
            coordinator.start(writer, name=name).awaitTermination(DEADLINE)
        coordinator.checkpoint().result(timeout=DEADLINE)
        coordinator.stop()

    # A key that comes without a time to live has none until it comes again.
    run(None, [("a", 0), ("old", 0)])
    # The watermark of a batch is that of the rows before it: at the end of batch 3, it is 99 s.
    run("10 seconds", [("a", 5), ("b", 100)], [("a", 6)], [("c", 101)])
    run("10 seconds", [("a", 102), ("b", 103)], [("old", 104)])
    expected = {
        ("a", 0): 1, ("old", 0): 1, ("a", 1): 2, ("b", 1): 1, ("a", 2): 3, ("c", 3): 1, ("a", 4): 1, ("b", 4): 2,
        ("old", 5): 2,
    }  # fmt: skip
    assert counts == {"stream": expected, "batches": expected}


class ArrowCounts(ArrowProcessor):
    """Counts the rows of a key."""

    states = {"count": "n long"}

    def process(self, given: ArrowInput) -> ArrowResult:
        before = pc.fill_null(pc.struct_field(given.states["count"], [0]), 0)
        n = pc.add(before, pa.array(given.bounds[1:] - given.bounds[:-1]))
        output = given.keys.append_column("n", n)
        return ArrowResult(output, {"count": pa.StructArray.from_arrays([n], ["n"])})


@pytest.mark.compat
def test_an_arrow_processor_runs_in_a_pipeline(spark: SparkSession, make: Make, events: Events) -> None:
    events.add(3)
    coordinator = make()
    running = coordinator.transform_with_arrow(
        events.stream(spark), key=["k"], processor=ArrowCounts(), output="k string, n long", uid="counts"
    )
    found: dict[Any, Row] = {}
    finish(coordinator, running, found, "k")
    assert {key[0]: row.n for key, row in found.items()} == {
        key: n for key, (n, _) in events.totals(spark).items()
    }


def test_a_hot_key_makes_no_hot_task(spark: SparkSession) -> None:
    df = spark.range(0, 200_000, numPartitions=4).selectExpr("if(id % 100 = 0, id, -1) k", "id v")

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        rows = sum(map(len, batches))
        yield pa.RecordBatch.from_pydict({"p": pa.array([context.partitionId()]), "n": pa.array([rows])})

    for combine, most in (("auto", 1_500), (False, 190_000)):
        plan = aggregation(df.schema, ["k"], {"total": ("v", "sum")}, uid="hot", combine=combine)
        output = spark.createDataFrame([], "p long, n long").schema
        counted = keyed(plan.rows(df), ["k"], 16, 2, sizes, output, "sizes", plan.combiner).collect()
        assert (max(row.n for row in counted) <= most) == (combine == "auto")
        assert sum(row.n for row in counted) == (2_004 if combine == "auto" else 200_000)
