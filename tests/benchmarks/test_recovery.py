"""What the recovery benchmark computes of what it has seen: parts, rows, ratios, what charts show."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recovery import figures
from benchmarks.recovery.chandy import split
from benchmarks.recovery.figures import LOCAL, OWN, Turn
from benchmarks.recovery.scenario import Failure, Recovered

SPARK = "Spark RocksDB"
NEW_DRIVER = {"session": 104.0, "coordinator": 105.0}


def told(**facts: Any) -> dict[str, Any]:
    """What a coordinator tells of a recovery."""
    return {
        "begun_at": 105.5,
        "in_place": False,
        "waiting": 0.0,
        "stopping": 0.0,
        "restoring": 0.25,
        "starting": 0.5,
        "files": 1.0,
        "opening": 0.5,
        "first_batch": 2.5,
        **facts,
    }


def turn(
    contestant: str,
    seconds: float,
    failure: Failure = Failure.DRIVER,
    size: int = 10,
    store: str = LOCAL,
    **parts: float,
) -> Turn:
    return Turn(contestant, store, size, Recovered(failure, seconds, parts))


# --- Chandy's parts -----------------------------------------------------------------------------------------


def test_the_parts_of_a_new_driver_begin_with_its_process() -> None:
    parts = split(100.0, 110.0, NEW_DRIVER, told())
    assert parts == {
        "process": 4.0,
        "coordinator": 1.5,
        "stop": 0.0,
        "start query": 0.5,
        "restore": 1.25,
        "open": 0.5,
        "first batch": 1.0,
        "replay": 1.25,
    }


def test_the_parts_of_a_driver_that_lives_begin_with_its_notice_of_the_failure() -> None:
    parts = split(100.0, 110.0, {}, told(begun_at=103.0, waiting=2.0, stopping=0.75))
    assert list(parts.items())[:3] == [("detect", 1.0), ("wait", 2.0), ("stop", 0.75)]


seconds = st.floats(0, 100)


@given(
    st.booleans(),
    st.booleans(),
    st.fixed_dictionaries(dict.fromkeys(("waiting", "stopping", "first_batch"), seconds)),
)
def test_the_parts_of_a_recovery_are_all_of_it(new: bool, in_place: bool, facts: dict[str, float]) -> None:
    parts = split(100.0, 500.0, NEW_DRIVER if new else {}, told(in_place=in_place, **facts))
    assert sum(parts.values()) == pytest.approx(400.0)


# --- rows ---------------------------------------------------------------------------------------------------


def test_a_row_has_the_median_of_its_turns_and_their_spread() -> None:
    (row,) = figures.rows(
        [turn(OWN, 4.0, detect=1.0), turn(OWN, 1.0, detect=0.5), turn(OWN, 2.0, detect=0.25)]
    )
    assert (row["seconds"], row["least"], row["greatest"], row["turns"]) == (2.0, 1.0, 4.0, 3)
    assert row["detect"] == 0.5


def test_a_contestant_has_a_row_for_each_failure_size_and_store() -> None:
    turns = [
        turn(OWN, 1.0),
        turn(OWN, 1.0, Failure.HOST),
        turn(OWN, 1.0, size=20),
        turn(OWN, 1.0, store="S3"),
        turn(OWN, 1.0),
    ]
    assert [row["turns"] for row in figures.rows(turns)] == [2, 1, 1, 1]


# --- ratios -------------------------------------------------------------------------------------------------


def test_a_peer_stands_over_chandy_in_the_same_failure_with_the_same_size() -> None:
    turns = [turn(OWN, 2.0), turn(SPARK, 5.0), turn(SPARK, 99.0, size=20), turn(SPARK, 99.0, Failure.HOST)]
    assert figures.ratios(turns) == {f"killed driver, 10 MB: {SPARK} / {OWN}": 2.5}


def test_a_ratio_is_one_of_medians() -> None:
    turns = [turn(OWN, seconds) for seconds in (1.0, 2.0, 9.0)] + [turn(SPARK, 4.0)]
    assert list(figures.ratios(turns).values()) == [2.0]


def test_peers_are_not_compared_with_chandy_on_another_store() -> None:
    assert figures.ratios([turn(OWN, 2.0, store="S3"), turn(SPARK, 5.0)]) == {}


def test_until_the_first_commit_what_runs_again_behind_it_does_not_count() -> None:
    own = turn(OWN, 12.0, process=8.0, replay=4.0)
    peer = turn(SPARK, 10.0, process=10.0)
    assert (own.recovered.first_commit, peer.recovered.first_commit) == (8.0, 10.0)
    found = figures.first_commit_ratios([own, peer, turn("Flink", 9.0), turn(SPARK, 1.0, Failure.HOST)])
    assert found == {f"killed driver, 10 MB, first commit: {SPARK} / {OWN}": 1.25}


# --- what charts show ---------------------------------------------------------------------------------------
