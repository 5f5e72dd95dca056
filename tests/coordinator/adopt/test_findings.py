"""What a query takes over from a checkpoint of plain Spark, and what is in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from chandy.coordinator.adopt.findings import AdoptableState, Target, examine, matched
from chandy.coordinator.spark.plain_checkpoint import PlainCheckpoint, StateOperator, StateVariable
from chandy.state.format.schema import to_json
from chandy.storage.checkpoints.manifest import OperatorRecord, StateKind, StateRecord

KEY = StructType([StructField("k", StringType())])
LONG = StructType([StructField("n", LongType())])
TEXT = StructType([StructField("n", StringType())])
FILE = '{"logOffset":4}'
PYTHON = "transformWithStateInPySparkExec"


def checkpoint(**changed: Any) -> PlainCheckpoint:
    found = PlainCheckpoint(Path("/old"), "id", committed=7, planned=7, offsets=(FILE,))
    return attrs.evolve(found, **changed)


def target(**changed: Any) -> Target:
    return attrs.evolve(Target("q", ("json",), native_state=False, operators=(), modes={}), **changed)


def declared(uid: str = "totals", key: StructType = KEY, **states: StateRecord) -> OperatorRecord:
    return OperatorRecord(uid, "", to_json(key), states or {"total": value()}, (None,) * 4)


def value(schema: StructType = LONG, **facts: Any) -> StateRecord:
    return StateRecord((to_json(schema),), **facts)


def keyed(number: int = 0, *names: str, mode: str = "None") -> StateOperator:
    variables = tuple(StateVariable(name, "value", expires=False) for name in names or ("total",))
    return StateOperator(number, PYTHON, mode, variables)


def has(**variables: StateRecord) -> AdoptableState:
    return AdoptableState(KEY, variables or {"total": value()})


def obstacles(found: PlainCheckpoint, query: Target, stored: dict[int, AdoptableState] | None = None) -> str:
    return " ".join(examine(found, query, stored).obstacles)


# --- progress -----------------------------------------------------------------------------------------------


def test_a_checkpoint_that_fits_is_possible_and_told_in_sentences() -> None:
    found = examine(checkpoint(watermark_ms=1_700_000_000_000), target())
    assert found.is_possible
    assert str(found).splitlines() == [
        "The checkpoint in /old can be adopted.",
        "What is taken over:",
        "* Progress: batches up to 7 have committed, the next one is 8.",
        "* Where 1 source stood.",
        "* The watermark: 2023-11-14T22:13:20.000+00:00.",
        "To know:",
        "* Nobody can see from here whether another application runs the query. Stop it first, for good.",
    ]


@pytest.mark.parametrize(
    ("committed", "planned", "said"),
    [
        (7, 8, "Batch 8 was planned and has not committed: it runs again with the same offsets."),
        (-1, 0, "No batch has committed yet: batch 0 runs again with the same offsets."),
        (-1, -1, "The query has not planned a batch yet: it begins with batch 0."),
    ],
)
def test_an_interrupted_batch_is_told(committed: int, planned: int, said: str) -> None:
    offsets = (FILE,) if planned >= 0 else ()
    found = examine(checkpoint(committed=committed, planned=planned, offsets=offsets), target())
    assert said in found.takes
    assert found.is_possible


def test_a_query_that_another_one_has_adopted_is_in_the_way() -> None:
    found = examine(checkpoint(), target(), rival="query 'q' has adopted it: go on with that one.")
    assert found.obstacles == ("Query 'q' has adopted it: go on with that one.",)


def test_a_query_that_runs_here_is_in_the_way() -> None:
    found = examine(checkpoint(), target(), runs_here=True)
    assert found.obstacles == ("A query of this application is running in it: stop it first.",)
    assert not found.notes


# --- sources and output -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        (("json",), ""),
        (("com.example.Own",), ""),
        (("json", "json"), "has offsets of 1 source, and the query reads 2 (json, json)"),
        (("kafka",), "Source 0 is 'kafka', and the checkpoint has the offset of a source of files"),
    ],
)
def test_sources_are_compared_by_number_and_kind(sources: tuple[str, ...], why: str) -> None:
    found = obstacles(checkpoint(), target(sources=sources))
    assert why in found if why else found == ""


def test_offsets_of_another_kind_do_not_go_to_files() -> None:
    assert "a source of another kind" in obstacles(checkpoint(offsets=('{"t":{"0":3}}',)), target())
    assert obstacles(checkpoint(offsets=("-",)), target()) == ""


@pytest.mark.parametrize(
    ("committed", "planned", "output", "why"),
    [
        (7, 7, 7, ""),
        (7, 8, 8, ""),
        (7, 8, 7, ""),
        (-1, -1, -1, ""),
        (7, 7, 8, "another query has written it, or the checkpoint is an old copy"),
        (-1, 0, 0, "another query has written it"),
        (7, 7, 6, "has batches up to 6, and the checkpoint up to 7"),
        (7, 7, -1, "has no log of batches"),
    ],
)
def test_an_output_fits_if_it_stands_where_the_checkpoint_does(
    committed: int, planned: int, output: int, why: str
) -> None:
    found = checkpoint(committed=committed, planned=planned, offsets=(FILE,) if planned >= 0 else ())
    said = obstacles(found, target(output="/out", output_batch=output))
    assert why in said if why else said == ""


# --- state --------------------------------------------------------------------------------------------------


COUNT = StateOperator(0, "stateStoreSave")


@pytest.mark.parametrize(
    ("operators", "query", "why"),
    [
        ((COUNT,), target(native_state=True), ""),
        ((keyed(),), target(native_state=True), ""),
        ((), target(native_state=True), "needs state of Spark's own, and the checkpoint has none"),
        ((COUNT,), target(), "has state of stateStoreSave, which the query does not have"),
        ((COUNT,), target(drops_state=True), ""),
        ((COUNT, keyed(1)), target(operators=(declared(),)), "stateStoreSave"),
        ((COUNT, keyed(1)), target(operators=(declared(),), native_state=True), "would get other numbers"),
        ((COUNT,), target(operators=(declared(),), native_state=True), ""),
        ((keyed(),), target(), "No operator of the query declares the state of operator 0"),
        ((keyed(),), target(drops_state=True), ""),
        ((), target(operators=(declared(),)), ""),
    ],
)
def test_state_goes_where_it_came_from(operators: tuple[StateOperator, ...], query: Target, why: str) -> None:
    said = obstacles(checkpoint(operators=operators), query, {1: has(), 0: has()})
    assert why in said if why else said == ""


def test_without_a_committed_batch_there_is_no_state() -> None:
    found = checkpoint(committed=-1, planned=0, operators=(COUNT,))
    assert examine(found, target()).is_possible


def test_an_operator_that_takes_over_nothing_begins_empty() -> None:
    found = examine(checkpoint(), target(operators=(declared(),)))
    assert "Operator 'totals' begins empty." in found.notes


LIST, MAP = StateKind.LIST, StateKind.MAP


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        (value(), value(), ""),
        (value(ttl_ms=0), value(ttl_ms=5000), ""),
        (value(), value(TEXT), "State 'total' of operator 'totals' is declared as (n string)"),
        (value(), value(kind=LIST), "is declared as list, and the checkpoint has a value"),
        (value(ttl_ms=0), value(), "the same time to live: the checkpoint has one"),
        (value(), value(ttl_ms=1), "the same time to live: the checkpoint has none"),
        (value(kind=MAP, map_key=to_json(LONG)), value(kind=MAP, map_key=to_json(LONG)), ""),
        (
            value(kind=MAP, map_key=to_json(LONG)),
            value(kind=MAP, map_key=to_json(TEXT)),
            "with the keys (n string)",
        ),
    ],
)
def test_a_variable_is_taken_over_as_what_it_was(was: StateRecord, now: StateRecord, why: str) -> None:
    query = target(operators=(declared(total=now),))
    said = obstacles(checkpoint(operators=(keyed(),)), query, {0: has(total=was)})
    assert why in said if why else said == ""


def test_a_variable_that_is_not_declared_may_be_left_behind_if_the_user_says_so() -> None:
    query = target(operators=(declared(),))
    stored = {0: has(total=value(), other=value())}
    found = checkpoint(operators=(keyed(0, "total", "other"),))
    assert "State 'other' of operator 'totals' is not declared" in obstacles(found, query, stored)
    assert obstacles(found, attrs.evolve(query, drops_state=True), stored) == ""


def test_another_key_is_in_the_way() -> None:
    query = target(operators=(declared(key=LONG),))
    said = obstacles(checkpoint(operators=(keyed(),)), query, {0: has()})
    assert "has the key (n bigint), and the state has (k string)" in said


@pytest.mark.parametrize(("now", "fits"), [("eventtime", True), ("EventTime", True), ("None", False)])
def test_timers_need_the_time_mode_that_they_had(now: str, fits: bool) -> None:
    query = target(operators=(declared(),), modes={"totals": now})
    said = obstacles(checkpoint(operators=(keyed(mode="EventTime"),)), query, {0: has()})
    assert (said == "") is fits


def test_a_processor_of_scala_is_in_the_way() -> None:
    scala = attrs.evolve(keyed(), name="transformWithStateExec")
    said = obstacles(checkpoint(operators=(scala,)), target(operators=(declared(),)))
    assert "has a processor of Scala or Java" in said


def test_several_operators_are_matched_by_the_names_of_their_variables() -> None:
    found = checkpoint(operators=(keyed(0, "a"), keyed(1, "b", "c"), keyed(2, "d")))
    both = declared("late", b=value(), c=value()), declared("early", a=value())
    assert {uid: one.id for uid, one in matched(found, {}, both).items()} == {"late": 1, "early": 0}
    assert "declares the state of operator 2" in obstacles(found, target(operators=both))


def test_operators_with_the_same_names_are_not_matched() -> None:
    found = checkpoint(operators=(keyed(0, "a"), keyed(1, "a")))
    assert matched(found, {}, (declared("one", a=value()), declared("two", a=value()))) == {}
