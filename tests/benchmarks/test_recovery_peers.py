"""What the peers of the recovery benchmark compute of what they have been told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recovery.flink import MARKS, Marks, marked, parse_marks, parts, recovered
from benchmarks.recovery.scenario import Failure
from benchmarks.recovery.spark import newest_snapshot, split

MOMENTS = {"CREATED": 101.0, "DEPLOYING": 102.0, "INITIALIZING": 103.0, "RUNNING": 105.0}
_TIMES = st.floats(0, 1000, allow_nan=False)


def test_marks_are_read_from_among_the_logs() -> None:
    assert parse_marks(
        "INFO told:9> no\ntold:1> +I[3, -49, 3]\ntold:2> +U[4, -50, 3]\ntold:2> +I[12, -1, 3]\n"
    ) == [3, 12]


def test_a_file_ends_with_its_marks_which_no_other_file_has() -> None:
    table = pa.table({"k": pa.array([7, 8], pa.int64()), "v": ["a", "b"]})
    first, second = marked(table, 1), marked(table, 2)
    assert first.slice(0, 2).drop_columns("mark") == table
    assert first.column("mark").to_pylist() == [0, 0] + [1] * MARKS
    keys = [*first.column("k").to_pylist()[2:], *second.column("k").to_pylist()[2:]]
    assert len(set(keys)) == 2 * MARKS
    assert max(keys) < 0


def test_a_file_is_finished_with_the_last_of_its_marks(tmp_path: Path) -> None:
    printed = tmp_path / "TM.log"
    printed.write_text("told:1> +I[3, -1, 3]\n")
    marks = Marks(printed)
    with printed.open("a") as log:
        log.write("told:1> +I[3, -49, 3]\n" * (MARKS - 1) + "told:2> +I[3")
    marks.look(10.0)
    assert marks.finished == []
    with printed.open("a") as log:
        log.write(", -50, 3]\n")
    marks.look(11.0)
    assert marks.finished == [(3, 11.0)]


def test_the_parts_of_a_killed_task_manager_follow_on_each_other() -> None:
    # 90 is a failure before this one, 100.9 an attempt that was too early.
    found = recovered(Failure.HOST, 100.0, [100.9, 100.5, 90.0], MOMENTS, [(7, 106.0), (8, 106.5)], new=8)
    assert found.seconds == 6.5
    assert dict(found.parts) == {
        "detect": 0.5,
        "process": 1.5,
        "deploy": 1.0,
        "restore": 2.0,
        "replay": 1.0,
        "new batch": 0.5,
    }


def test_a_recovery_ends_when_what_was_taken_again_is_out_too() -> None:
    found = recovered(Failure.DRIVER, 100.0, [], MOMENTS, [(8, 105.5), (7, 106.0)], new=8)
    assert found.seconds == 6.0
    assert found.parts["new batch"] == 0.0
    assert "detect" not in found.parts


@given(_TIMES, st.lists(_TIMES, min_size=1, max_size=6))
def test_parts_are_never_negative_and_add_up_to_the_latest_end(begin: float, ends: list[float]) -> None:
    found = parts(begin, [(str(number), end) for number, end in enumerate(ends)])
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) == pytest.approx(max(begin, *ends) - begin)


@pytest.mark.parametrize(("noticed", "first"), [("failed", "detect"), ("session", "process")])
def test_the_parts_of_sparks_way_back_are_all_of_it(noticed: str, first: str) -> None:
    found = split(1_700_000_000.0, 1_700_000_009.0, noticed, 1_700_000_002.0, "2023-11-14T22:13:25.000Z")
    assert found == {first: 2.0, "start query": 3.0, "first batch": 4.0}


def test_the_newest_snapshot_is_the_one_with_the_highest_version() -> None:
    names = ["9.zip", "10.zip", "11.changelog", ".12.zip.crc", "SSTs", "_metadata"]
    assert newest_snapshot(names) == 10
    assert newest_snapshot(["3.changelog"]) == 0
