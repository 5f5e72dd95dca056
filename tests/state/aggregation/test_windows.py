"""Windows of event time against a model, over random rows, watermarks and restores."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from chandy.state.format import keyspace
from chandy.state.testing import OperatorTester, TimeWindow

from ...effort import trying
from .moments import EPOCH, at

INPUT = StructType().add("t", "timestamp").add("k", "string").add("v", "long")
WINDOWS = [
    TimeWindow("t", 10_000),
    TimeWindow("t", 10_000, 4_000),
    TimeWindow("t", 10_000, 10_000, 3_000),
]
Key = tuple[datetime, datetime, str | None]
ROWS = st.lists(
    st.tuples(st.integers(0, 60_000), st.sampled_from(["a", "b", None]), st.integers(0, 9)), max_size=12
)
# Whole seconds, so that many a watermark is the end of a window.
STEPS = st.integers(0, 15).map(lambda seconds: 1000 * seconds)
BATCHES = st.lists(st.tuples(ROWS, STEPS, st.booleans()), min_size=1, max_size=8)


class WindowModel:
    """What windows are to do: plain Python over dicts."""

    def __init__(self, window: TimeWindow, only_closed: bool) -> None:
        self.window = window
        self.only_closed = only_closed
        self.open: dict[Key, tuple[int, int]] = {}
        self.watermark = 0

    def batch(self, rows: list[tuple[datetime, str | None, int]], watermark: int) -> Counter[Any]:
        changed = set()
        for time, k, v in rows:
            for start, end in self.window.of(time):
                if end > at(self.watermark):
                    n, total = self.open.get((start, end, k), (0, 0))
                    self.open[start, end, k] = n + 1, total + v
                    changed.add((start, end, k))
        closed = {key for key in self.open if key[1] <= at(watermark)}
        output = Counter((*key, *self.open[key]) for key in (closed if self.only_closed else changed))
        self.open = {key: values for key, values in self.open.items() if key not in closed}
        self.watermark = watermark
        return output


@given(st.sampled_from(WINDOWS), st.sampled_from(["update", "append"]), BATCHES)
@trying(20)
def test_windows_are_output_and_removed_as_in_the_model(
    window: TimeWindow, mode: str, batches: list[Any]
) -> None:
    tester = OperatorTester.of_aggregate(
        by=["k"], input=INPUT, window=window, output_mode=mode, n=("*", "count"), total=("v", "sum")
    )
    model, watermark = WindowModel(window, mode == "append"), 0
    for given_rows, by, is_tried_before in batches:
        rows = [(at(ms + watermark - 20_000), k, v) for ms, k, v in given_rows]
        watermark += by
        if is_tried_before:
            point = tester.checkpoint()
            tester.batch(rows, watermark=watermark)
            tester.restore(point)
        found = tester.batch(rows, watermark=watermark)
        output = Counter((row.window["start"], row.window["end"], row.k, row.n, row.total) for row in found)
        assert output == model.batch(rows, watermark)
        held = tester.checkpoint().shards.held
        entries = [key for _, key in held if key.startswith(keyspace.WINDOWS)]
        ends = Counter(keyspace.split_timed(key)[0] for key in entries)
        assert ends == Counter(round((end - EPOCH) / timedelta(milliseconds=1)) for _, end, _ in model.open)
        assert len(held) == 2 * len(model.open)
        for key, (n, total) in model.open.items():
            assert tester.state("aggregates", *key) is not None, (n, total)
