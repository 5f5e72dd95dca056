"""That the output of drivers which take over from each other is whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.sinks.file_sink_log import LOG
from chandy.coordinator.spark.logs.compact_log import entry_number
from tests.waiting import eventually

from .driver_runs import local as local
from .driver_runs import rows
from .driver_runs import runtime as runtime
from .drivers import ROWS, answer, linked, records
from .outputs_driver import sinks


def check_whole(spark: SparkSession, out: Path, files: int) -> None:
    """Every row once, and a log without a gap."""
    numbers = [number for path in (out / LOG).iterdir() if (number := entry_number(path.name)) is not None]
    assert len(set(numbers)) == len(numbers)
    # It refuses a log with a gap.
    file_sink_log.files_at(out, max(numbers))
    assert rows(spark, out) == answer(range(files))


Row = tuple[object, ...]


def given(files: int) -> list[tuple[int, str, int]]:
    return [row for file in range(files) for row in records(file)]


def states(files: int) -> dict[str, list[Row]]:
    """What the operator may give out for each key, in order; the last one is given out for sure."""
    found: dict[str, list[Row]] = {}
    for number, key, value in given(files):
        _, n, total, link = found[key][-1] if key in found else (key, 0, 0, 0)
        found.setdefault(key, []).append((key, n + 1, total + value, linked(link, number)))
    return found


def check_rows(folder: Path, files: int) -> None:
    """Check what readers see: right rows, and none twice."""
    chain, ids = sinks(folder)
    assert not Counter(ids.rows()) - Counter(given(files)), "rows that were not given, or came twice"
    totals = Counter(chain.rows())
    assert set(totals) <= {row for rows in states(files).values() for row in rows}
    assert set(totals.values()) <= {1}, "rows that came twice"


def wait_for_all_rows(folder: Path, files: int, check: Callable[[], None]) -> None:
    """Wait for what is missing as long as more comes, and check what there is then."""
    chain, ids = sinks(folder)
    last = {rows[-1] for rows in states(files).values()}
    there = ids.count(), chain.count()
    while ids.count() < files * ROWS or not last <= {*chain.rows()}:

        def has_more(there: tuple[int, int] = there) -> bool:
            check()
            return (ids.count(), chain.count()) != there

        eventually(has_more, f"more than {there} rows")
        there = ids.count(), chain.count()
    check_rows(folder, files)
