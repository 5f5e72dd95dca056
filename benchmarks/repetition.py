"""Rows a second of running aggregates, by how often keys repeat within a batch, beside Spark's own count.

A per-key counter on two cores, measured after a warm-up, as in ``throughput``. All batches have as many rows, on more
or fewer keys. ``coordinator.aggregate`` gives every row to Python. ``coordinator.aggregate_batches`` has each batch
combined where the one before says that it is faster: in Python, or by Spark's SQL. It writes by a function of
``foreachBatch``, the others into Spark's noop sink. Spark's count keeps its state in RocksDB with changelog
checkpointing, and runs twice: with Spark's defaults, and with the file manager that Chandy chooses. Contestants take
turns in one session, and ratios are medians over the turns.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from statistics import median
from typing import Any, Final

from . import keyed
from .chart import lines
from .keyed import Workload
from .report import Options, Report, console, paired_ratio
from .stage import Stream, balanced, stage
from .throughput import AGGREGATE, BATCHES, COUNT, COUNT_TUNED, Contest, Turns

CONTESTANTS: Final = (AGGREGATE, BATCHES, COUNT, COUNT_TUNED)
PEERS: Final = {AGGREGATE: (COUNT, COUNT_TUNED), BATCHES: (AGGREGATE, COUNT, COUNT_TUNED)}
"""The contestants with which each one is compared."""
ROWS: Final = 2_000_000
"""Rows of a batch."""
REPETITIONS: Final = (1, 10, 100, 5_000)
"""Rows of a key in a batch, on average."""
_QUICK_ROWS: Final = 100_000
_TURNS: Final = Turns(warm_up=4, batches=10)
_QUICK: Final = Turns(warm_up=3, batches=3)


def run(options: Options) -> Report:
    """Measure; see the module."""
    size = _QUICK_ROWS if options.quick else ROWS
    turns = _QUICK if options.quick else _TURNS
    repetitions = options.repetitions or (1 if options.quick else 3)
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    with stage() as (spark, folder):
        for each in REPETITIONS:
            workload = Workload(f"{each:,} rows a key", size, size // each)
            files = keyed.write(workload, turns.warm_up + turns.batches, folder / "files")
            contest = Contest(spark, workload, folder / "streams")
            found: dict[str, list[Stream]] = {name: [] for name in CONTESTANTS}
            for turn in range(repetitions):
                for name in balanced(CONTESTANTS, turn):
                    found[name].append(contest.run(name, files, turns))
                    console().print(f"{workload.name}: {name}: {found[name][-1].rate:,.0f} rows/s")
            shutil.rmtree(files)
            rows += [
                {
                    "rows_a_key": each,
                    "contestant": name,
                    "rows_per_second": median(one.rate for one in streams),
                    "least": min(one.rate for one in streams),
                    "greatest": max(one.rate for one in streams),
                    "turns": len(streams),
                }
                for name, streams in found.items()
            ]
            ratios |= {
                f"{workload.name}: {name} / {peer}": paired_ratio(
                    found[name], found[peer], lambda one: one.rate
                )
                for name, peers in PEERS.items()
                for peer in peers
            }
    return Report("repetition", rows, ratios, {"repetitions": repetitions, "rows_a_batch": size})


def draw(report: Report, path: Path) -> None:
    """Draw a line for each contestant."""
    series = {
        name: [
            (row["rows_a_key"], row["rows_per_second"]) for row in report.rows if row["contestant"] == name
        ]
        for name in CONTESTANTS
    }
    title = "A counter by key, two cores"
    lines(path, title=title, x="rows of a key in a batch", y="rows a second", series=series)
