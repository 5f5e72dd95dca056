"""What is kept of the last hour and day: nothing is lost in it, and it stays small."""

from __future__ import annotations

from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from chandy.coordinator.monitor.trend_keeper import TrendKeeper, read_trends
from chandy.coordinator.monitor.trends import DAY, Measured, Series, Trends
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.coordinator.recovery.pipeline_events import CheckpointMeasured, PipelineEnded
from chandy.storage.checkpoints.layout import trends_key
from chandy.storage.errors import StoreFailedError
from tests.builders import MemoryStore
from tests.effort import trying

from .known_pipeline import statistics

# Halves add up exactly, in any order.
halves = st.integers(0, 1000).map(lambda number: number / 2)
counts = st.integers(0, 1000)
measures = st.builds(
    Measured,
    batches=counts,
    rows_in=counts,
    rows_out=st.none() | counts,
    batch_seconds=halves,
    behind=st.none() | halves,
    checkpoints=counts,
    checkpoint_seconds=halves,
    phases=st.builds(PhaseSeconds, halves, halves, halves),
    size=st.none() | counts,
    new_bytes=counts,
)
moments = st.floats(0, 400, allow_nan=False)
happened = st.lists(st.tuples(moments, measures), max_size=30)


def of(known: list[tuple[float, Measured]], made: Series) -> Series:
    for at, measured in known:
        made = made.plus(at, measured)
    return made


@trying(40)
@given(happened, st.randoms())
def test_a_series_has_the_sum_of_each_of_its_latest_spans(
    known: list[tuple[float, Measured]], chance: object
) -> None:
    series = of(known, Series(10, 7))
    newest = max((int(at // 10) for at, _ in known), default=0)
    expected: dict[int, Measured] = {}
    for at, measured in known:
        if (span := int(at // 10)) > newest - 7:
            expected[span] = expected.get(span, Measured()) + measured
    assert dict(series.spans) == expected
    assert len(series.spans) <= 7
    chance.shuffle(known)  # type: ignore[attr-defined]
    assert of(known, Series(10, 7)) == series


@trying(40)
@given(happened, happened)
def test_the_series_of_two_drivers_are_one(
    one: list[tuple[float, Measured]], other: list[tuple[float, Measured]]
) -> None:
    assert of(one, Series(10, 7)).merged(of(other, Series(10, 7))) == of(one + other, Series(10, 7))


@trying(40)
@given(happened, moments)
def test_what_is_shown_ends_now_and_has_each_span_once(
    known: list[tuple[float, Measured]], now: float
) -> None:
    series = of(known, Series(10, 7))
    shown = series.until(now)
    assert len(shown) == 7
    starts = [series.begins(now) + 10 * at for at in range(7)]
    assert starts[-1] <= now < starts[-1] + 10
    assert [series.spans.get(int(at // 10)) for at in starts] == list(shown)
    assert all(after - before == 10 for before, after in pairwise(starts))


@trying(20)
@given(happened)
def test_trends_are_stored_and_read_as_they_are(known: list[tuple[float, Measured]]) -> None:
    trends = Trends()
    for at, measured in known:
        trends = trends.plus(at, measured)
    store = MemoryStore()
    keeper = TrendKeeper(store, 3, lambda: 400.0)
    keeper._own = trends
    keeper.take(PipelineEnded(at=401.0, error=None))
    assert read_trends(store) == trends
    assert Trends.of(trends.lines()) == trends


def ended() -> CheckpointMeasured:
    (known,) = (one for one in statistics().checkpoints if one.id == 1)
    return CheckpointMeasured(at=0.0, statistics=known)


def test_the_next_driver_goes_on_with_the_trends_of_the_one_before() -> None:
    store = MemoryStore()
    first = TrendKeeper(store, 1, lambda: 1000.0)
    first.add(Measured(batches=1, rows_in=10))
    first.take(ended())
    # Now and then, and not with each checkpoint.
    assert read_trends(store) == Trends()
    first.take(attrs.evolve(ended(), at=1301.0))
    assert [one.checkpoints for one in read_trends(store).day.spans.values()] == [2]
    second = TrendKeeper(store, 2, lambda: 1000.0)
    second.add(Measured(batches=1, rows_in=5))
    second.take(PipelineEnded(at=1001.0, error=None))
    (span,) = read_trends(store).day.spans.values()
    assert (span.batches, span.rows_in, span.checkpoints, span.size, span.phases.collecting) == (
        2,
        15,
        2,
        200,
        3.0,
    )
    # What the second has stored has the first one's in it.
    assert store.list("journal/") == [trends_key(2)]


def test_a_store_that_fails_takes_no_trends_away() -> None:
    class Away(MemoryStore):
        @override
        def read(self, key: str) -> bytes:
            raise StoreFailedError(self.uri, key, "read", "it is away")

        @override
        def list(self, prefix: str = "") -> list[str]:
            raise StoreFailedError(self.uri, prefix, "list", "it is away")

        @override
        def write(self, key: str, data: bytes) -> None:
            raise StoreFailedError(self.uri, key, "write", "it is away")

    keeper = TrendKeeper(Away(), 1, lambda: 1000.0)
    keeper.add(Measured(batches=1))
    keeper.take(PipelineEnded(at=1001.0, error=None))
    assert [one.batches for one in keeper.known().hour.spans.values()] == [1]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"seconds":61,"number":1,"measured":{}}'])
def test_a_damaged_line_is_left_out(line: bytes) -> None:
    store = MemoryStore()
    keeper = TrendKeeper(store, 1, lambda: 1000.0)
    keeper.add(Measured(batches=1))
    keeper.take(PipelineEnded(at=1001.0, error=None))
    store.write(trends_key(1), line + b"\n" + store.read(trends_key(1)))
    assert [one.batches for one in read_trends(store).day.spans.values()] == [1]


def test_a_driver_that_runs_for_weeks_keeps_as_much_as_one_that_runs_for_two_days() -> None:
    trends = Trends()
    for minute in range(0, 15 * 24 * 60):
        trends = trends.plus(60.0 * minute, Measured(batches=1))
    assert sum(one.batches for one in trends.day.spans.values()) == DAY[0] * DAY[1] / 60
    assert len(list(trends.lines())) == 60 + 96
