"""Streams of several contestants over the same batches, in turns: milliseconds a batch, and ratios of rows a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from .chart import bars
from .keyed import Workload
from .report import Report, console, paired_ratio
from .stage import Stream, balanced

BatchMs = Callable[[Stream], float]
"""Returns the milliseconds of a batch of a stream."""


@attrs.frozen
class Turns:
    """The streams of one workload."""

    workload: Workload
    streams: dict[str, list[Stream]]
    """By contestant, one for each turn."""
    batch_ms: BatchMs

    @classmethod
    def run(
        cls,
        workload: Workload,
        contestants: Sequence[str],
        repetitions: int,
        stream: Callable[[str], Stream],
        batch_ms: BatchMs,
    ) -> Turns:
        """Run a stream of each contestant so many times."""
        found: dict[str, list[Stream]] = {name: [] for name in contestants}
        for turn in range(repetitions):
            for name in balanced(contestants, turn):
                found[name].append(stream(name))
                console().print(f"{workload.name}: {name}: {batch_ms(found[name][-1]):,.0f} ms a batch")
        return cls(workload, found, batch_ms)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of the report for each contestant."""
        return [
            {
                "workload": self.workload.name,
                "stream": name,
                "ms_per_batch": median(map(self.batch_ms, streams)),
                "rows_per_second": self.workload.rows / median(map(self.batch_ms, streams)) * 1000,
                "turns": len(streams),
            }
            for name, streams in self.streams.items()
        ]

    def ratios(self, pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
        """Return for pairs of contestants how many rows a second the first one takes, as a multiple of the second."""
        return {
            # The times are divided the other way round.
            f"{self.workload.name}: {name} / {peer}": paired_ratio(
                self.streams[peer], self.streams[name], self.batch_ms
            )
            for name, peer in pairs
        }


def draw_first(report: Report, path: Path, what: str) -> None:
    """Draw the figures of the first workload.

    Args:
        report: its rows are those of ``Turns``.
        path: of the chart.
        what: is measured, for its title.
    """
    first = report.rows[0]["workload"]
    rounds = {row["stream"]: [row["ms_per_batch"]] for row in report.rows if row["workload"] == first}
    bars(path, title=f"{what}, {first} a batch, two cores", axis="milliseconds a batch", rounds=rounds)
