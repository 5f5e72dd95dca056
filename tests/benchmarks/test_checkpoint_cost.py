"""What the benchmark of checkpoints computes of what it has measured."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.checkpoint_cost import disk
from benchmarks.checkpoint_cost.contestants import commits_of, have_ended
from benchmarks.checkpoint_cost.disk import Used
from benchmarks.checkpoint_cost.figures import (
    Batches,
    Commits,
    Turn,
    batches_of,
    figures,
    first_tick,
    in_window,
    rows_of,
    window_start,
)
from chandy.coordinator.protocol.statistics import CheckpointStatistics, Status
from chandy.storage.checkpoints.manifest import CheckpointKind

BEGIN = 1_700_000_000.0
INTERVALS = st.sampled_from([0.5, 1.0, 2.0, 10.0, 60.0])


def report(began: float, milliseconds: int, rows: int = 100, commit: int = 7) -> dict[str, Any]:
    moment = datetime.datetime.fromtimestamp(BEGIN + began, datetime.UTC)
    return {
        "timestamp": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "numInputRows": rows,
        "durationMs": {"triggerExecution": milliseconds},
        "stateOperators": [{"commitTimeMs": commit, "numRowsUpdated": rows // 2}],
    }


def turn(rows: int = 1000, seconds: float = 2.0, stored: int = 0, changed: int = 100) -> Turn:
    return Turn(Batches(rows, seconds, (0.5, 1.5)), Commits((0.1, 0.3) if stored else (), stored), changed)


def checkpoint(triggered: float, **changes: Any) -> CheckpointStatistics:
    facts: dict[str, Any] = {
        "id": 1,
        "kind": CheckpointKind.PERIODIC,
        "triggered_at": BEGIN + triggered,
        "status": Status.COMPLETED,
        "completed_at": BEGIN + triggered + 0.25,
        "new_bytes": 50,
    }
    return CheckpointStatistics(**(facts | changes))


@given(interval=INTERVALS, warm_up=st.floats(0, 100), windows=st.integers(1, 20))
def test_a_window_of_whole_intervals_has_one_checkpoint_for_each_half_an_interval_from_its_edges(
    interval: float, warm_up: float, windows: int
) -> None:
    first = first_tick(interval, warm_up)
    assert 0 <= first < interval
    ticks = [first + number * interval for number in range(int(warm_up / interval) + windows + 3)]
    inside = [tick - warm_up for tick in ticks if warm_up <= tick < warm_up + windows * interval]
    assert inside == pytest.approx([interval * (number + 0.5) for number in range(windows)], abs=1e-6)


@given(interval=INTERVALS, late=st.floats(0, 1000))
def test_a_window_that_would_begin_late_moves_by_whole_intervals(interval: float, late: float) -> None:
    begin = window_start(now=120 + late, start=100, interval=interval, warm_up=20)
    assert 0 <= begin - (120 + late) <= interval
    assert (begin - 120) / interval == pytest.approx(round((begin - 120) / interval))


def test_batches_count_that_began_in_the_window() -> None:
    progress = [report(-0.1, 500), report(0, 900), report(1, 400, rows=0), report(9.9, 800), report(10, 1)]
    assert in_window(progress, BEGIN, BEGIN + 10) == [progress[1], progress[3]]


def test_throughput_goes_from_the_first_batchs_start_to_the_last_ones_end() -> None:
    found = batches_of([report(1, 900), report(2, 1000, rows=300)])
    assert found == Batches(400, pytest.approx(2.0), (0.9, 1.0))  # type: ignore[arg-type]


def test_checkpoints_count_that_the_schedule_triggered_in_the_window() -> None:
    found = commits_of(
        (
            checkpoint(-0.1, new_bytes=1000),
            checkpoint(0),
            checkpoint(9.9, completed_at=BEGIN + 11.9),
            checkpoint(10, new_bytes=1000),
            checkpoint(10, status=Status.FAILED, new_bytes=1000),
            checkpoint(5, kind=CheckpointKind.MANUAL, new_bytes=1000),
        ),
        BEGIN,
        BEGIN + 10,
    )
    assert found == Commits((pytest.approx(0.25), pytest.approx(2.0)), 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [Status.FAILED, Status.IN_PROGRESS])
def test_a_window_with_a_checkpoint_that_did_not_complete_is_no_figure(status: Status) -> None:
    with pytest.raises(RuntimeError, match=f"checkpoint 7 is {status}"):
        commits_of((checkpoint(0), checkpoint(5, id=7, status=status)), BEGIN, BEGIN + 10)


def test_a_window_is_over_when_all_that_was_triggered_before_its_end_has_ended() -> None:
    running = {"status": Status.IN_PROGRESS, "completed_at": None}
    assert have_ended(
        (checkpoint(3), checkpoint(4, status=Status.FAILED), checkpoint(10, **running)), BEGIN + 10
    )
    assert not have_ended((checkpoint(3), checkpoint(9.9, **running)), BEGIN + 10)


def test_figures_of_a_turn() -> None:
    found = figures(
        Turn(
            Batches(1000, 2.0, (0.5, 1.5)), Commits((0.1, 0.3), 4_000_000), 2_000_000, Used(6_000_000, 0.5), 3
        )
    )
    assert found == {
        "rows a second": 500,
        "ms of a batch, p50": 500,
        "ms of a batch, p99": 1500,
        "batches": 2,
        "commits": 2,
        "MB changed a second": 1,
        "ms of a commit, p50": 100,
        "ms of a commit, p99": 300,
        "MB stored a commit": 2,
        "bytes stored / changed": 2,
        "bytes the host wrote / changed": 3,
        "us of the host's processor a row": 500,
        "compactions": 3,
    }


def test_rows_have_the_median_and_the_spread_of_the_turns() -> None:
    rows = rows_of("keys", "Chandy", [turn(rows=1000), turn(rows=3000), turn(rows=1200)])
    assert rows[0] == {
        "workload": "keys",
        "contestant": "Chandy",
        "figure": "rows a second",
        "median": 600,
        "least": 500,
        "greatest": 1500,
        "turns": 3,
    }
    assert {tuple(row) for row in rows} == {tuple(rows[0])}


def test_what_was_used_is_added_up_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_PROC", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "io").write_text(
            "rchar: 9\nwchar: 8\nwrite_bytes: 4096\ncancelled_write_bytes: 1\n"
        )
        (tmp_path / name / "stat").write_text(
            f"{name} (a (strange) name) S 1 2 3 4 5 6 7 8 9 10 {2 * ticks} {ticks} 99 99 20\n"
        )
    assert disk.used_by([1, 2]) == Used(8192, 6.0)
    assert disk.used_by([1, 3]) is None
    assert disk.used_by([]) is None


def test_hosts_are_those_that_have_files_of_this_run_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_PROC", tmp_path)
    host = b"python\0-m\0chandy.state.host.process\0"
    for name, command, opened in (
        ("1", host, "/run/a/cache/hosts/x/LOCK"),
        ("2", host, "/run/ab/cache/LOCK"),
        ("3", b"python\0", "/run/a/cache/LOCK"),
    ):
        (tmp_path / name / "fd").mkdir(parents=True)
        (tmp_path / name / "cmdline").write_bytes(command)
        (tmp_path / name / "fd" / "0").symlink_to("/dev/null")
        (tmp_path / name / "fd" / "7").symlink_to(opened)
    assert disk.host_processes(Path("/run/a")) == [1]


def test_compactions_are_those_in_the_logs_of_all_shards(tmp_path: Path) -> None:
    event = '"event": "compaction_finished", "compaction_time_micros": 5'
    for shard, count in (("0", 2), ("1", 1)):
        folder = tmp_path / "hosts" / "h" / "shards" / shard
        folder.mkdir(parents=True)
        (folder / "LOG").write_text(f"EVENT_LOG_v1 {{{event}}}\n" * count + '{"event": "flush_finished"}\n')
    assert disk.compactions(tmp_path) == 3
