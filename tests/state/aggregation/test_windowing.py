"""What fits together: windows, output modes, times to live, and state that aggregates of another kind have left."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from pyspark.sql.types import StructType

from chandy.state.aggregation.windowing import Scope, aggregation_in, has_ends, key_columns
from chandy.state.aggregation.windows import END, START, WindowColumn, closing
from chandy.state.errors import DefinitionError
from chandy.state.format.schema import to_json
from chandy.state.operators.arrow_expiry import TimeToLive
from chandy.state.testing import OperatorTester, SessionWindow, TimeWindow
from chandy.storage.checkpoints.manifest import OperatorRecord

INPUT = StructType().add("t", "timestamp").add("k", "string").add("v", "long")
ROWS = (
    StructType()
    .add(START, "timestamp")
    .add(END, "timestamp")
    .add("t", "timestamp")
    .add("k", "string")
    .add("v", "long")
)
WINDOWS: dict[Scope, WindowColumn | None] = {
    Scope.ALL_ROWS: None,
    Scope.WINDOWS: TimeWindow("t", 1_000).output,
    Scope.SESSIONS: SessionWindow("t", 1_000).output,
}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": TimeWindow("u", 1_000)}, "argument window: expected a column of the input: t, k, v"),
        ({"window": SessionWindow("u", 1_000)}, "argument window: expected a column of the input: t, k, v"),
        ({"window": SessionWindow("t", 1_000)}, "argument output_mode: expected 'append' for sessions"),
        ({"output_mode": "append"}, "argument output_mode: expected 'update' for aggregates without window="),
        ({"output_mode": "complete", "window": TimeWindow("t", 1_000)}, "argument output_mode"),
        ({"window": TimeWindow("t", 1_000), "ttl_ms": 5}, "argument ttl: expected None .* found 5 ms"),
    ],
)
def test_a_tester_refuses_what_an_operator_refuses(given: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        OperatorTester.of_aggregate(by=["k"], input=INPUT, n=("*", "count"), **given)


@pytest.mark.parametrize(
    ("scope", "ttl", "expected"),
    [
        (Scope.ALL_ROWS, None, False),
        (Scope.ALL_ROWS, TimeToLive(5), False),
        (Scope.ALL_ROWS, TimeToLive(5, "last", "t"), True),
        (Scope.ALL_ROWS, TimeToLive(5, "first", "t"), True),
        (Scope.WINDOWS, None, True),
        (Scope.SESSIONS, None, True),
    ],
)
def test_what_the_watermark_ends_is_known_by_its_record(
    scope: Scope, ttl: TimeToLive | None, expected: bool
) -> None:
    window = WINDOWS[scope]
    mode = "append" if window else "update"
    columns = {"n": ("*", "count")}
    made = aggregation_in(window, ROWS, ["k"], columns, uid="a", output_mode=mode, ttl=ttl)
    key = to_json(closing(StructType([ROWS[name] for name in key_columns(["k"], window)])))
    assert [has_ends(key, name, record) for name, record in made.spec.states.items()] == [expected]


@pytest.mark.parametrize(("before", "now"), product(Scope, Scope))
def test_state_is_taken_up_by_aggregates_of_the_same(before: Scope, now: Scope) -> None:
    window = WINDOWS[before]
    made = aggregation_in(
        window, ROWS, ["k"], {"n": ("*", "count")}, uid="a", output_mode="append" if window else "update"
    )
    key = StructType([ROWS[name] for name in key_columns(["k"], window)])
    stored = Scope.stored(OperatorRecord("a", "q", to_json(closing(key)), made.spec.states, ()))
    assert stored is before
    plain_keys = (Scope.WINDOWS, Scope.ALL_ROWS)
    assert now.takes_up(stored) == (before is now or (before, now) == plain_keys)
