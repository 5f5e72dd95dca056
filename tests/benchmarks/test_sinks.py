"""The figures of the benchmark of sinks, and what its readers see; the contestants run with ``--quick`` alone."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import sinks
from benchmarks.report import Report
from benchmarks.sinks import figures, flink
from benchmarks.sinks.figures import Figures, Seen
from benchmarks.sinks.targets import NOTHING, DeltaTable, Files, IcebergTable, Topic
from benchmarks.sinks.watch import Watcher

pytestmark = [pytest.mark.processes, pytest.mark.examples]

S = figures.MICROSECONDS


def test_a_row_is_as_late_as_the_first_sight_of_it() -> None:
    # Rows at 10.0, 10.1, ... 11.9; a reader has seen those up to 10.95 at 12.0, and all at 13.5.
    seen = [Seen(12.0, int(10.95 * S)), Seen(13.5, 12 * S)]
    found = figures.latencies(seen, 10, 12, rows_per_second=10)
    assert len(found) == 20
    assert found[:10] == pytest.approx([2.0 - n / 10 for n in range(10)])
    assert found[10:] == pytest.approx([2.5 - n / 10 for n in range(10)])
    made = Figures(1, found)
    assert 1.5 < made.p50 < 2
    assert 2.4 < made.p99 <= 2.5


@pytest.mark.parametrize("seen", [[], [Seen(12.0, 11 * S)]])
def test_latencies_need_a_reader_that_has_seen_all(seen: list[Seen]) -> None:
    with pytest.raises(ValueError, match="seen all rows"):
        figures.latencies(seen, 10, 12, rows_per_second=10)


def test_rows_are_counted_between_two_moments_at_which_some_appeared() -> None:
    seen = [Seen(1, 10), Seen(4, 100), Seen(6, 300), Seen(9, 900)]
    assert figures.rows_per_second(seen, 3) == pytest.approx(800 / 5)
    with pytest.raises(ValueError, match="at least twice, found 1"):
        figures.rows_per_second(seen, 7)


def test_sinks_are_compared_with_those_of_spark_for_the_same_target() -> None:
    rows = [
        figures.row("Chandy KafkaSink", "1 s", "exactly once", [Figures(50, (1.0, 2.0))]),
        figures.row("Chandy DeltaSink, append", "1 s", "exactly once", [Figures(70, (1.0, 2.0))]),
        figures.row("Spark's Kafka sink", "each batch", "at least once", [Figures(100, (1.0,))]),
    ]
    assert figures.ratios(rows) == {"rows a second, Chandy KafkaSink, 1 s / Spark's Kafka sink": 0.5}
    assert rows[0]["p50_s"] == 1.5


def test_windows_have_at_least_two_intervals() -> None:
    timing = sinks.FULL.timing
    for seconds, window in ((0, 10), (1, 10), (10, 20)):
        contestant = sinks.Contestant("it", "then", "once", seconds, lambda *_: pytest.fail("it runs"))
        assert timing.window_of(contestant) == window


def test_sinks_are_compared_at_their_own_interval_with_peers_that_have_intervals() -> None:
    rows = [
        figures.row(sink, interval, "exactly once", [Figures(rate, (1.0,))])
        for sink, interval, rate in (
            ("Chandy KafkaSink", "1 s", 50),
            ("Chandy KafkaSink", "5 s", 90),
            (flink.NAME, "1 s", 100),
            (flink.NAME, "5 s", 60),
        )
    ]
    assert figures.ratios(rows) == {
        f"rows a second, Chandy KafkaSink, 1 s / {flink.NAME}": 0.5,
        f"rows a second, Chandy KafkaSink, 5 s / {flink.NAME}": 1.5,
    }


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_chart_is_drawn(tmp_path: Path, suffix: str) -> None:
    rows = [figures.row("Chandy KafkaSink", "1 s", "exactly once", [Figures(50, (1.0, 2.0))])]
    chart = tmp_path / f"sinks.{suffix}"
    sinks.draw(Report("sinks", rows, {}), chart)
    assert chart.stat().st_size > 1000


# --- Flink --------------------------------------------------------------------------------------------------


def parsed(text: str) -> list[tuple[int, int]]:
    found = [line.split(",") for line in text.splitlines()]
    return [(int(number), int(mark)) for number, mark in found]


def test_rows_for_flink_have_timestamps_at_equal_distances() -> None:
    rows = parsed(flink.lines(1000.5, 0, 4)) + parsed(flink.lines(1000.5, 1, 4))
    assert rows == [(number, int((1000.5 + number / 4) * S)) for number in range(8)]


def test_rows_for_flink_come_once_their_second_has_passed(tmp_path: Path) -> None:
    before = time.time()
    with flink.Feeder(tmp_path, 1000):
        second = tmp_path / "000001.csv"
        while not second.exists():
            assert time.time() < before + 60
    files = sorted(tmp_path.glob("[!.]*.csv"))
    rows = [parsed(path.read_text()) for path in files]
    assert [number for some in rows for number, _ in some] == list(range(1000 * len(files)))
    assert rows[0][0][1] >= int(before * S)
    for path, some in zip(files, rows, strict=True):
        # A file system's clock is behind by up to a tick of the kernel's.
        assert some[-1][1] < (path.stat().st_mtime + 0.01) * S


def test_what_flink_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink, "cache_folder", lambda name: tmp_path)
    monkeypatch.setenv("PATH", "")
    flink.installed.cache_clear()
    try:
        topic = Topic("127.0.0.1:1", "rows", 1, is_counted=True)
        with pytest.raises(RuntimeError, match="there is no mvn"), flink.running(topic, tmp_path, 1, None):
            pytest.fail("it runs")
    finally:
        flink.installed.cache_clear()


# --- readers ------------------------------------------------------------------------------------------------


def add_files(folder: Path, entry: str, *marks: list[int]) -> None:
    lines = ["v1"]
    for number, some in enumerate(marks):
        path = folder / f"a {entry} {number}.parquet"
        pq.write_table(pa.table({"k": some, "mark": some}), path)
        lines.append(json.dumps({"path": path.as_uri(), "action": "add"}))
    lines.append(json.dumps({"path": (folder / "_chandy").as_uri(), "isDir": True, "action": "add"}))
    (folder / "_spark_metadata").mkdir(exist_ok=True)
    # Whole at once, as Spark writes it: a reader looks at an entry once.
    hidden = folder / "_spark_metadata" / f".{entry}"
    hidden.write_text("\n".join(lines))
    hidden.rename(folder / "_spark_metadata" / entry)


def test_files_are_seen_once_the_log_has_them(tmp_path: Path) -> None:
    reader = Files(str(tmp_path)).reader()
    assert reader.newest() == NOTHING
    add_files(tmp_path, "0", [1, 5], [2])
    assert reader.newest() == 5
    pq.write_table(pa.table({"mark": [9]}), tmp_path / "no entry has it.parquet")
    assert reader.newest() == 5
    add_files(tmp_path, "9.compact", [7])
    assert reader.newest() == 7


def test_a_delta_table_is_seen_up_to_its_newest_version(tmp_path: Path) -> None:
    import deltalake

    path = str(tmp_path / "table")
    reader = DeltaTable(path).reader()
    assert reader.newest() == NOTHING
    for marks in ([3, 1], [4]):
        deltalake.write_deltalake(path, pa.table({"mark": marks}), mode="append")
        assert reader.newest() == max(marks)


def test_an_iceberg_table_is_seen_up_to_its_newest_snapshot(tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    target = IcebergTable(str(tmp_path))
    catalog = load_catalog("default", **target.catalog)
    catalog.create_namespace("benchmark")
    table = catalog.create_table(target.name, pa.schema([("mark", pa.int64())]))
    reader = target.reader()
    assert reader.newest() == NOTHING
    for marks in ([3, 1], [4]):
        table.append(pa.table({"mark": marks}))
        assert reader.newest() == max(marks)


def test_a_watcher_tells_what_has_appeared_and_when(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = time.time()
    with Watcher(Files(str(out)), tmp_path / "reader") as watcher:
        for entry, mark in (("0", 3), ("1", 8)):
            add_files(out, entry, [mark])
            watcher.wait(lambda mark=mark: bool(watcher.seen) and watcher.seen[-1].mark == mark, before + 60)  # type: ignore[misc]
        assert [one.mark for one in watcher.seen] == [3, 8]
        assert before < watcher.seen[0].at < watcher.seen[1].at < time.time()
        with pytest.raises(TimeoutError, match="did not appear"):
            watcher.wait(lambda: False, time.time() + 0.2)
    broken = tmp_path / "log"
    (broken / "_spark_metadata").mkdir(parents=True)
    (broken / "_spark_metadata" / "0").write_text("v1\nno entry")
    with (
        Watcher(Files(str(broken)), tmp_path / "other") as watcher,
        pytest.raises(RuntimeError, match="JSON"),
    ):
        watcher.wait(lambda: False, time.time() + 60)
