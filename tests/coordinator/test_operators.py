"""The records of a pipeline's operators. ``tests/integration`` runs operators."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from chandy.coordinator.aggregating import Lifetime, Windows, _tell_of_new_aggregates, with_aggregates
from chandy.coordinator.errors import PipelineNameError, RestoreError
from chandy.coordinator.operator_arguments import KeyedStream
from chandy.coordinator.operators import DefinedOperator, Operators
from chandy.coordinator.processing import Processing, with_arrow_processor, with_processor
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.restore.restore_point import RestorePoint
from chandy.coordinator.spark.ticks import Ticks
from chandy.state.aggregation.aggregate_operator import STATE as AGGREGATES
from chandy.state.errors import DefinitionError
from chandy.state.operators.arrow_expiry import TimeToLive
from chandy.state.operators.time_mode import with_watermark
from chandy.state.rpc.messages import Endpoint
from chandy.storage import InvalidNameError
from chandy.storage.checkpoints.manifest import OperatorRecord, StateRecord

from ..builders import make_manifest

PROCESSING = Processing(
    style=None,  # type: ignore[arg-type]
    processor=None,  # type: ignore[arg-type]
    output="n long",
    time_mode="None",
    output_mode="append",
    initial_state=None,
    event_time_column=None,
)

NO_WINDOWS: dict[str, Any] = {"combine": "auto", "lifetime": Lifetime(), "windows": Windows()}


def record(uid: str, query: str = "") -> OperatorRecord:
    return OperatorRecord(uid, query, "{}", {}, (None,))


def operators(tmp_path: Path, *known: OperatorRecord, restored: tuple[OperatorRecord, ...] = ()) -> Operators:
    """Operators of which some are in place."""
    manifest = make_manifest(queries=(), operators=restored)
    made = Operators(
        Endpoint("grpc://127.0.0.1:1", "token", "p", 1 << 20, str(tmp_path), str(tmp_path)),
        RestorePoint(manifest, str(tmp_path)) if restored else None,
        QueryDirectories(tmp_path, "p"),
        Ticks(tmp_path, 1000),
    )
    made._made.update(
        {
            one.uid: DefinedOperator(one, 1, None)  # type: ignore[arg-type]
            for one in known
        }
    )
    return made


def stream(**arguments: Any) -> KeyedStream:
    """A stream for calls that fail before they look at its DataFrame."""
    return KeyedStream(**{"df": None, "key": ["k"], "uid": "new", "shards": 4, "parallelism": 1} | arguments)


@attrs.frozen
class Frame:
    """Stands for a DataFrame of which only the schema is looked at."""

    schema: StructType


WINDOW = StructType().add("start", TimestampType()).add("end", TimestampType())
FRAMES: dict[str, Any] = {
    "untimed": Frame(StructType().add("t", TimestampType())),
    "timed": Frame(with_watermark(StructType().add("t", TimestampType()), "t")),
    "windowed": Frame(with_watermark(StructType().add("t", WINDOW), "t")),
}


def test_an_operator_is_part_of_no_query_until_one_that_has_it_has_started(tmp_path: Path) -> None:
    pipeline = operators(tmp_path, record("a"), record("b"))
    found = pipeline.of_query("q", ["b"])
    assert found == (record("b", "q"),)
    assert pipeline.record("b").query == ""
    # The start has failed: another query may have it.
    assert pipeline.of_query("other", ["b"]) == (record("b", "other"),)
    pipeline.started(found)
    assert pipeline.record("b") == record("b", "q")
    assert pipeline.record("a") == record("a")
    with pytest.raises(PipelineNameError, match="operator uid 'b' is taken"):
        pipeline.of_query("other", ["a", "b"])


def test_aggregates_that_restored_keys_have_nothing_of_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def totals(*names: str) -> OperatorRecord:
        schema = StructType([StructField(name, LongType()) for name in names])
        return attrs.evolve(record("totals"), states={AGGREGATES: StateRecord((schema.json(),))})

    restored = (totals("count(*)", "sum(delay)"),)
    _tell_of_new_aggregates(operators(tmp_path, *restored, restored=restored), "totals")
    assert caplog.text == ""
    changed = totals("count(*)", "max(delay)")
    _tell_of_new_aggregates(operators(tmp_path, changed, restored=restored), "totals")
    assert "max(delay)" in caplog.text
    assert "count(*)" not in caplog.text


def test_an_operator_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    pipeline = operators(tmp_path, record("b"), record("a"))
    with pytest.raises(PipelineNameError, match=r"no operator 'c': .*\(a, b\)"):
        pipeline.record("c")
    with pytest.raises(PipelineNameError, match=r"does not know.*'c'"):
        pipeline.of_query("q", ["c"])


def test_an_operator_stays_in_the_query_that_the_restored_checkpoint_has_it_in(tmp_path: Path) -> None:
    pipeline = operators(tmp_path, record("a"), record("b"), restored=(record("a", "q"),))
    with pytest.raises(RestoreError, match=r"'q'.*'other'"):
        pipeline.of_query("other", ["a"])
    assert pipeline.of_query("q", ["a", "b"]) == (record("a", "q"), record("b", "q"))


def test_a_uid_is_a_name_and_is_taken_once(tmp_path: Path) -> None:
    pipeline = operators(tmp_path, record("a"))
    calls: list[Any] = [
        lambda uid: with_aggregates(pipeline, stream(uid=uid), columns={}, **NO_WINDOWS),
        lambda uid: with_arrow_processor(pipeline, stream(uid=uid), None, ""),  # type: ignore[arg-type]
        lambda uid: with_processor(pipeline, stream(uid=uid), PROCESSING),
    ]
    for call in calls:
        with pytest.raises(PipelineNameError, match="operator uid 'a' is taken"):
            call("a")
        for wrong in ("", "../up", 7):
            with pytest.raises(InvalidNameError):
                call(wrong)


def test_an_input_that_is_no_dataframe_is_refused(tmp_path: Path) -> None:
    pipeline, given = operators(tmp_path), stream(df="rows")
    calls: list[Any] = [
        lambda: with_aggregates(
            pipeline,
            given,
            columns={"n": ("*", "count")},
            combine="auto",
            lifetime=Lifetime(),
            windows=Windows(),
        ),
        lambda: with_arrow_processor(pipeline, given, None, "n long"),  # type: ignore[arg-type]
        lambda: with_processor(pipeline, given, PROCESSING),
    ]
    for call in calls:
        with pytest.raises(
            DefinitionError, match=r"argument df: expected a streaming DataFrame, found 'rows' \(str\)"
        ):
            call()


@pytest.mark.parametrize(
    "name",
    ["uid", "shards", "parallelism", "combine", "ttl", "ttl_since", "ttl_time", "window", "output_mode"],
)
def test_an_aggregate_that_is_called_as_an_argument_is_told_how_to_get_that_name(
    tmp_path: Path, name: str
) -> None:
    given: dict[str, Any] = {name: ("v", "sum")}
    combine = given.pop("combine", "auto")
    lifetime = Lifetime(
        given.pop("ttl", None), given.pop("ttl_since", "last"), given.pop("ttl_time", "processing")
    )
    windows = Windows(given.pop("window", None), given.pop("output_mode", "update"))
    with pytest.raises(DefinitionError, match=rf"withColumnRenamed\('other', '{name}'\).*\('v', 'sum'\)"):
        with_aggregates(
            operators(tmp_path),
            stream(**given),
            columns={},
            combine=combine,
            lifetime=lifetime,
            windows=windows,
        )


@pytest.mark.parametrize(
    ("ttl", "since", "expected"),
    [
        ("soon", "last", "argument ttl: expected a duration with its unit"),
        (5, "last", "argument ttl: expected a duration with its unit"),
        ("0 s", "last", "argument ttl: expected a millisecond or more"),
        ("200 years", "last", "argument ttl: expected a duration"),
        ("1 day", "update", "argument ttl_since: expected 'last' or 'first', found 'update'"),
    ],
)
def test_a_time_to_live_that_is_none_is_refused(ttl: Any, since: Any, expected: str) -> None:
    with pytest.raises(DefinitionError, match=expected):
        Lifetime(ttl, since).checked(FRAMES["untimed"])


@pytest.mark.parametrize(
    ("df", "time", "expected"),
    [
        ("untimed", "EventTime", "argument ttl_time: expected 'processing' or 'event', found 'EventTime'"),
        ("untimed", "event", "argument ttl_time: expected a timestamp column .* found none"),
        ("windowed", "event", "argument ttl_time: expected a timestamp column .* found a window"),
    ],
)
def test_a_time_that_a_stream_does_not_have_is_refused(df: str, time: Any, expected: str) -> None:
    with pytest.raises(DefinitionError, match=expected):
        Lifetime("1 day", time=time).checked(FRAMES[df])


def test_a_time_to_live_is_in_milliseconds() -> None:
    assert Lifetime().checked(FRAMES["untimed"]) is None
    assert Lifetime("1 hour 30 minutes", "first").checked(FRAMES["untimed"]) == TimeToLive(5_400_000, "first")
    assert Lifetime(timedelta(milliseconds=1)).checked(FRAMES["untimed"]) == TimeToLive(1, "last")
    assert Lifetime("1 s", time="event").checked(FRAMES["timed"]) == TimeToLive(1000, "last", "t")


def test_without_a_number_of_tasks_there_are_as_many_as_spark_runs_at_once_but_no_more_than_shards() -> None:
    @attrs.frozen
    class Spark:
        defaultParallelism: int  # noqa: N815

        @property
        def sparkSession(self) -> Spark:  # noqa: N802
            return self

        @property
        def sparkContext(self) -> Spark:  # noqa: N802
            return self

    assert stream(df=Spark(3), shards=4, parallelism=None).tasks == 3
    assert stream(df=Spark(8), shards=4, parallelism=None).tasks == 4
    assert stream(df=Spark(8), shards=4, parallelism=2).tasks == 2
    with pytest.raises(DefinitionError, match="shards"):
        _ = stream(df=Spark(8), shards="4", parallelism=None).tasks
