"""The charts of a pipeline: what they read, and that nothing is drawn outside of them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.monitor.page.charts import HEIGHT, Chart, Charts, charts
from chandy.coordinator.monitor.trends import Measured, Trends
from chandy.coordinator.protocol.totals import PhaseSeconds
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.storage.checkpoints.journal import JournalEntry
from tests.effort import trying

NOW = 7_200.0 + 30.0
"""Half a minute of a span of the last hour has passed."""


def of(made: Charts, name: str) -> Chart:
    (found,) = (one for one in made.charts if one.name == name)
    return found


def test_each_span_can_be_read() -> None:
    phases = PhaseSeconds(0.2, 3.0, 0.8)
    taken = Measured(checkpoints=2, checkpoint_seconds=4.0, phases=phases, size=1000, new_bytes=500)
    trends = (
        Trends()
        .plus(3_700.0, Measured(batches=3, rows_in=600, rows_out=60, batch_seconds=4.5, behind=7.0) + taken)
        .plus(7_201.0, Measured(batches=1, rows_in=600, batch_seconds=2.0))
    )
    made = charts(trends, "hour", NOW, (), ())
    assert (made.span, made.begins, made.ends) == ("hour", 3_660.0, 7_260.0)
    rows = of(made, "rows a second")
    # Of the present minute half has passed.
    assert [(one.at, one.says) for one in rows.readings] == [(3_660.0, "10 in, 1 out"), (7_200.0, "20 in")]
    assert (rows.latest, rows.top) == ("20", "20")
    assert [one.says for one in of(made, "behind the sources").readings] == ["7 offsets"]
    assert [one.says for one in of(made, "batch").readings] == ["1.5 s, 3 batches", "2.0 s, 1 batch"]
    checkpoint = of(made, "checkpoint")
    assert [one.says for one in checkpoint.readings] == [
        "2.0 s: planning 100 ms, collecting 1.5 s, finalizing 400 ms; 2 checkpoints"
    ]
    assert [area.look for area in checkpoint.areas] == ["drives", "stores", "drives lighter"]
    assert of(made, "size").latest == "1.0 kB"
    assert of(made, "new bytes").latest == "250 bytes"
    day = charts(trends, "day", NOW, (), ())
    assert (day.span, [one.says for one in of(day, "batch").readings]) == (
        "day",
        ["1.5 s, 3 batches", "2.0 s, 1 batch"],
    )
    assert charts(trends, "<b>", NOW, (), ()).span == "hour"


def test_a_checkpoint_whose_phases_are_not_stored_is_one_bar() -> None:
    trends = Trends().plus(7_100.0, Measured(checkpoints=1, checkpoint_seconds=4.0))
    chart = of(charts(trends, "hour", NOW, (), ()), "checkpoint")
    assert [area.look for area in chart.areas] == ["plain"]
    assert [one.says for one in chart.readings] == ["4.0 s; 1 checkpoint"]


def test_failures_and_recoveries_are_marked_on_all_charts() -> None:
    history = (
        JournalEntry(at=10.0, what="goes back", says="long ago"),
        JournalEntry(at=4_000.0, what="goes back", says="boom\nmore", times=3, until=5_460.0),
        JournalEntry(at=5_500.0, what="has recovered", says="query q, in 1.5 s"),
    )
    started = (RecoveryMetrics("start", None, False, 3_700.0), RecoveryMetrics("boom", 1, True, 5_461.0))
    marks = charts(Trends(), "hour", NOW, history, started).marks
    assert [(one.name, one.x) for one in marks] == [
        ("recovery", 1.11),
        ("failure", 50.0),
        ("recovery", 51.11),
    ]
    assert marks[1].says.endswith("UTC: boom")


@trying(40)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 8_000),
            st.builds(
                Measured,
                batches=st.integers(0, 9),
                rows_in=st.integers(0, 10**9),
                rows_out=st.none() | st.integers(0, 10**9),
                batch_seconds=st.floats(0, 1e6),
                behind=st.none() | st.floats(0, 1e12),
                checkpoints=st.integers(0, 9),
                checkpoint_seconds=st.floats(0, 1e6),
                phases=st.builds(PhaseSeconds, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)),
                size=st.none() | st.integers(0, 1 << 50),
                new_bytes=st.integers(0, 1 << 50),
            ),
        ),
        max_size=20,
    ),
    st.floats(0, 8_000),
    st.sampled_from(["hour", "day"]),
)
def test_nothing_is_drawn_outside_of_a_chart(
    known: list[tuple[float, Measured]], now: float, span: str
) -> None:
    trends = Trends()
    for at, measured in known:
        trends = trends.plus(at, measured)
    for chart in charts(trends, span, now, (), ()).charts:
        for area in chart.areas:
            points = [tuple(map(float, one)) for one in re.findall(r"([\d.e+-]+),([\d.e+-]+)", area.path)]
            assert points
            assert all(-0.01 <= x <= 100.01 and -0.01 <= y <= HEIGHT + 0.01 for x, y in points)
        assert all(0 <= one.x <= one.x + one.width <= 100.1 for one in chart.readings)
        assert len(chart.readings) <= 96
