"""Sessions of event time against a model, over random rows, watermarks and restores."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from chandy.state.format import keyspace
from chandy.state.format.keys import KeyCodec
from chandy.state.testing import OperatorTester, SessionWindow, TimeWindow

from ...effort import trying

INPUT = StructType().add("t", "timestamp").add("k", "string").add("v", "long")
CODEC = KeyCodec(StructType().add("k", "string"))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
GAP = timedelta(seconds=3)
# Whole seconds, so that many a session ends where another begins, or at a watermark.
SECONDS = st.integers(0, 18)
ROWS = st.lists(st.tuples(SECONDS, st.sampled_from(["a", None]), st.integers(0, 9)), max_size=12)
BATCHES = st.lists(st.tuples(ROWS, st.integers(0, 9), st.booleans()), min_size=1, max_size=8)
Session = tuple[datetime, datetime, list[int]]


class SessionModel:
    """What sessions are to do: plain Python over lists."""

    def __init__(self) -> None:
        self.open: dict[str | None, list[Session]] = {}
        self.watermark = EPOCH

    def batch(self, rows: list[tuple[datetime, str | None, int]], watermark: datetime) -> Counter[Any]:
        for time, k, v in rows:
            if time + GAP > self.watermark:
                self.open.setdefault(k, []).append((time, time + GAP, [v]))
        closed = Counter[Any]()
        for k, sessions in self.open.items():
            merged = list[Session]()
            for start, end, values in sorted(sessions, key=lambda one: one[0]):
                if merged and start <= merged[-1][1]:
                    before = merged.pop()
                    merged.append((before[0], max(before[1], end), before[2] + values))
                else:
                    merged.append((start, end, values))
            closed.update(
                (start, end, k, len(values), sum(values)) for start, end, values in merged if end <= watermark
            )
            self.open[k] = [one for one in merged if one[1] > watermark]
        self.watermark = watermark
        return closed


@given(BATCHES)
@trying(20)
def test_sessions_are_output_and_removed_as_in_the_model(batches: list[Any]) -> None:
    tester = OperatorTester.of_aggregate(
        by=["k"],
        input=INPUT,
        window=SessionWindow("t", 3_000),
        output_mode="append",
        n=("*", "count"),
        total=("v", "sum"),
    )
    model, watermark = SessionModel(), EPOCH
    for given_rows, by, is_tried_before in batches:
        rows = [(watermark + timedelta(seconds=s - 6), k, v) for s, k, v in given_rows]
        watermark += timedelta(seconds=by)
        if is_tried_before:
            point = tester.checkpoint()
            tester.batch(rows, watermark=watermark)
            tester.restore(point)
        found = tester.batch(rows, watermark=watermark)
        output = Counter(
            (row.session_window["start"], row.session_window["end"], row.k, row.n, row.total) for row in found
        )
        assert output == model.batch(rows, watermark)
        check_stored(tester, model)


def check_stored(tester: OperatorTester, model: SessionModel) -> None:
    held = tester.checkpoint().shards.held
    due = [keyspace.split_timed(key) for _, key in held if key.startswith(keyspace.WINDOWS)]
    left = {CODEC.encode((k,)): sessions for k, sessions in model.open.items() if sessions}
    assert {key for _, key in due} == set(left)
    assert all(EPOCH + timedelta(milliseconds=ms) > model.watermark for ms, _ in due)
    for key, sessions in left.items():
        assert EPOCH + timedelta(milliseconds=min(ms for ms, of in due if of == key)) <= sessions[0][1]
        stored: Any = tester.state("sessions", *CODEC.decode(key))
        bounds = zip(stored.window_start, stored.window_end, strict=True)
        assert [tuple(one.astimezone(UTC) for one in pair) for pair in bounds] == [
            one[:2] for one in sessions
        ]
    assert len(held) == len(left) + len(due)


def test_the_first_and_last_of_a_session_are_those_that_came_first_and_last() -> None:
    tester = OperatorTester.of_aggregate(
        by=["k"],
        input=INPUT,
        window=SessionWindow("t", 3_000),
        output_mode="append",
        first=("v", "first"),
        last=("v", "last"),
        kinds=("v", "approx_distinct"),
        mean=("v", "mean"),
    )
    at = [EPOCH + timedelta(seconds=second) for second in (100, 102, 98, 110)]
    assert tester.batch([(at[1], "a", 1)], watermark=50_000) == []
    assert tester.batch([(at[0], "a", 2)], watermark=60_000) == []
    assert tester.batch([(at[2], "a", 3), (at[3], "a", 4)], watermark=60_000) == []
    (row,) = tester.batch(watermark=105_000)
    assert (row.session_window, row.first, row.last, row.kinds, row.mean) == (
        {"start": at[2], "end": at[1] + GAP},
        1,
        3,
        3,
        2.0,
    )
    (row,) = tester.batch(watermark=113_000)
    assert (row.session_window["start"], row.first) == (at[3], 4)
    assert tester.checkpoint().shards.held == {}


@pytest.mark.parametrize("window", [SessionWindow("t", 3_000), TimeWindow("t", 1_000_000)])
def test_windows_that_are_open_take_up_aggregates_that_are_new(window: SessionWindow | TimeWindow) -> None:
    def tester(**columns: tuple[str, str]) -> OperatorTester:
        return OperatorTester.of_aggregate(
            by=["k"], input=INPUT, window=window, output_mode="append", **columns
        )

    before = tester(n=("*", "count"))
    before.batch([(EPOCH + timedelta(seconds=100), "a", 1)], watermark=50_000)
    after = tester(n=("*", "count"), total=("v", "sum"), counted=("v", "count"))
    for rows, expected in (
        ([], (1, None, 0)),
        ([(EPOCH + timedelta(seconds=102), "a", 2)], (2, 2, 1)),
    ):
        after.restore(before.checkpoint())
        assert after.batch(rows, watermark=60_000) == []
        (row,) = after.batch(watermark=2_000_000)
        assert (row.n, row.total, row.counted) == expected
