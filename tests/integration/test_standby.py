"""Drivers that stand by take over from one that is killed, frozen or told to hand over: every row counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog

from ..waiting import eventually
from .driver_runs import InputFeed, KilledDriver, rows
from .driver_runs import runtime as runtime
from .drivers import HAND_OVER, answer_of_batches, batches_in
from .whole_output import check_whole

pytestmark = [pytest.mark.spark, pytest.mark.kills]

STANDING_BY = "standing by"
TAKES_OVER = "a standby takes over"


@pytest.fixture
def drivers(tmp_path: Path, runtime: Path, request: pytest.FixtureRequest) -> Iterator[list[KilledDriver]]:
    """Three drivers of one program. The first leads, and the others stand by for it.

    The parameter is the interval of their checkpoints.
    """
    made: list[KilledDriver] = []
    try:
        made.extend(
            KilledDriver(tmp_path, runtime, standby=True, interval=getattr(request, "param", "400 ms"))
            for _ in range(3)
        )
        yield made
    finally:
        for driver in made:
            driver.kill()


def begin(drivers: list[KilledDriver], feed: InputFeed) -> None:
    """Let the first driver stream, and the others stand by."""
    leader, *others = drivers
    leader.wait("warm")
    leader.tell()
    leader.wait("sank", 2, feed.taken)
    for standby in others:
        standby.wait("warm")
        standby.tell()
        eventually(lambda standby=standby: STANDING_BY in standby.log, "it stands by")  # type: ignore[misc]


def the_one_that(found: str, drivers: list[KilledDriver]) -> KilledDriver:
    """Return the only driver whose log says something, once one does."""
    eventually(lambda: any(found in one.log for one in drivers), found)
    (one,) = [one for one in drivers if found in one.log]
    return one


@pytest.mark.full(
    "cluster/test_drivers.py::test_a_standby_on_another_machine_goes_on_when_the_driver_is_killed_and_when_its_machine_is_frozen"
)
def test_one_of_two_standbys_goes_on_and_the_other_when_that_is_killed_as_it_takes_over(
    spark: SparkSession, tmp_path: Path, drivers: list[KilledDriver]
) -> None:
    feed = InputFeed(tmp_path / "in")
    begin(drivers, feed)
    leader, *others = drivers
    leader.kill()
    winner = the_one_that(TAKES_OVER, others)
    winner.kill()
    (last,) = [one for one in others if one is not winner]
    last.wait("restored")
    feed.add(4)
    last.wait_for_files(feed.files)
    last.tell()
    last.wait("stopped")
    found = rows(spark, tmp_path / "out")
    # A query that is killed while it plans may take two files as one batch.
    assert found == answer_of_batches(batches_in(found, feed.files))


@pytest.mark.parametrize("drivers", [None], indirect=True, ids=["no checkpoints"])
@pytest.mark.full(
    "cluster/test_drivers.py::test_a_standby_on_another_machine_goes_on_when_the_driver_is_killed_and_when_its_machine_is_frozen"
)
def test_a_standby_resumes_what_the_leader_has_left_on_the_machine(
    spark: SparkSession, tmp_path: Path, drivers: list[KilledDriver]
) -> None:
    feed = InputFeed(tmp_path / "in")
    begin(drivers, feed)
    leader, *others = drivers
    # Between a batch in the log of its sink and the commit, it would leave nothing that can be resumed.
    while max(leader.all("committed"), default=0) < feed.files:
        leader.wait("committed")
    leader.kill()
    winner = the_one_that(TAKES_OVER, others)
    winner.wait("begins")
    # There is no checkpoint: all comes from what the leader has left.
    assert winner.all("resumes") == [0]
    assert winner.all("begins") == [feed.files]
    feed.add(2)
    winner.wait_for_files(feed.files)
    winner.tell()
    winner.wait("stopped")
    found = rows(spark, tmp_path / "out")
    assert found == answer_of_batches(batches_in(found, feed.files))


@pytest.mark.full(
    "coordinator/leadership/test_waiting_driver.py::test_a_stop_on_purpose_lasts_until_the_next_driver"
)
def test_a_stop_on_purpose_is_no_reason_to_take_over_and_a_hand_over_is(
    spark: SparkSession, tmp_path: Path, runtime: Path, drivers: list[KilledDriver]
) -> None:
    feed = InputFeed(tmp_path / "in")
    third = drivers.pop()
    begin(drivers, feed)
    leader, standby = drivers
    drivers.append(third)
    leader.tell()
    leader.wait("stopped")
    eventually(lambda: "was stopped on purpose" in standby.log, "the standby knows that it was stopped")
    generation = Catalog(LocalStore(tmp_path / "store" / "killed")).newest_generation
    stopped = generation()
    # Who is started again leads.
    third.wait("warm")
    third.tell()
    third.wait("restored")
    assert (stopped, generation()) == (1, 2)
    assert not standby.all("restored")
    feed.add(2)
    third.wait_for_files(feed.files)
    third.tell(HAND_OVER)
    standby.wait("restored")
    third.wait("stopped")
    feed.add(2)
    standby.wait_for_files(feed.files)
    assert generation() == 3
    check_whole(spark, tmp_path / "out", feed.files)
