"""When a standby takes over, and when it waits: by what it has seen, never by another machine's clock."""

from __future__ import annotations

import attrs
import pytest

from chandy.coordinator.leadership.election import Decision, Election, Leader, Sighting, Silence
from chandy.storage.checkpoints.fencing import LeaseRecord

LEASE = 10.0
TAKE_OVER, WAIT = Decision.TAKE_OVER, Decision.WAIT


def lease(renewals: int = 1, *, stopped: bool = False) -> LeaseRecord:
    return LeaseRecord(1, LEASE, renewals, stopped)


@attrs.define
class Standby:
    """A standby that looks at moments of its own clock."""

    election: Election = attrs.field(factory=lambda: Election(LEASE))

    def sees(
        self,
        at: float,
        leader: Leader = Leader.THERE,
        *,
        lease: LeaseRecord | None = None,
        generation: int = 1,
        has_started: bool = True,
        took: float = 0.0,
    ) -> Decision:
        return self.election.decide(Sighting(generation, leader, has_started, lease, at, at + took))

    def watches(self, seconds: range, renewed: LeaseRecord | None) -> set[Decision]:
        return {self.sees(float(second), lease=renewed) for second in seconds}


@pytest.fixture
def standby() -> Standby:
    return Standby()


def test_who_finds_nobody_leads_at_once() -> None:
    assert Standby().sees(0.0, Leader.NONE, generation=0, has_started=False) is TAKE_OVER


def test_a_leader_whose_processes_have_ended_is_not_waited_for() -> None:
    assert Standby().sees(0.0, Leader.DEAD, lease=lease()) is TAKE_OVER


def test_a_leader_that_renews_its_lease_is_waited_for(standby: Standby) -> None:
    assert {standby.sees(float(second), lease=lease(second // 4)) for second in range(100)} == {WAIT}


def test_a_leader_that_renews_nothing_for_the_time_of_its_lease_is_replaced(standby: Standby) -> None:
    assert standby.watches(range(10), lease(7)) == {WAIT}
    assert standby.sees(10.0, lease=lease(7)) is TAKE_OVER
    assert standby.election.silence == Silence(1, lease(7), 0.0)


def test_the_time_of_a_lease_is_the_leaders_and_not_the_standbys() -> None:
    standby = Standby(Election(patience=1.0))
    assert standby.watches(range(10), lease()) == {WAIT}
    assert standby.sees(10.0, lease=lease()) is TAKE_OVER


def test_a_look_that_takes_long_shortens_no_lease(standby: Standby) -> None:
    assert standby.sees(0.0, lease=lease(), took=4.0) is WAIT
    assert [standby.sees(at, lease=lease()) for at in (8.0, 12.0, 13.9)] == [WAIT] * 3
    assert standby.sees(14.0, lease=lease()) is TAKE_OVER


def test_a_storage_that_was_away_gives_the_leader_its_time_again(standby: Standby) -> None:
    assert standby.watches(range(9), lease()) == {WAIT}
    standby.election.lost_sight()
    assert standby.watches(range(9, 19), lease()) == {WAIT}
    assert standby.sees(19.0, lease=lease()) is TAKE_OVER


def test_a_standby_that_was_frozen_itself_gives_the_leader_its_time_again(standby: Standby) -> None:
    assert standby.sees(0.0, lease=lease()) is WAIT
    assert standby.sees(1000.0, lease=lease()) is WAIT


def test_a_leader_without_a_lease_is_never_taken_for_dead(standby: Standby) -> None:
    assert {standby.sees(float(second), lease=None) for second in range(0, 10_000, 4)} == {WAIT}


@pytest.mark.parametrize("leader", [Leader.NONE, Leader.DEAD])
def test_a_pipeline_that_was_stopped_on_purpose_stays_stopped(standby: Standby, leader: Leader) -> None:
    assert standby.sees(0.0, lease=lease()) is WAIT
    assert {standby.sees(float(at), leader, lease=lease(2, stopped=True)) for at in range(1, 100)} == {WAIT}


@pytest.mark.parametrize("leader", [Leader.NONE, Leader.DEAD])
def test_who_is_started_after_a_stop_leads(leader: Leader) -> None:
    assert Standby().sees(0.0, leader, lease=lease(2, stopped=True)) is TAKE_OVER


def test_who_is_started_while_the_leader_stops_waits_for_it() -> None:
    assert Standby().sees(0.0, Leader.THERE, lease=lease(2, stopped=True)) is WAIT


def test_a_leader_that_has_failed_or_handed_over_is_replaced_at_once(standby: Standby) -> None:
    assert standby.sees(0.0, lease=lease()) is WAIT
    assert standby.sees(0.1, Leader.NONE, lease=lease()) is TAKE_OVER
    assert standby.election.silence is None


def test_a_stop_of_a_leader_without_a_lease_counts_as_one_on_purpose(standby: Standby) -> None:
    assert standby.sees(0.0) is WAIT
    assert standby.sees(1.0, Leader.NONE) is WAIT
    assert Standby().sees(1.0, Leader.NONE) is TAKE_OVER


@pytest.mark.parametrize("held", [None, lease()])
def test_a_driver_that_died_between_its_claim_and_its_record_is_replaced_in_the_end(
    standby: Standby,
    held: LeaseRecord | None,
) -> None:
    looks = [standby.sees(float(at), Leader.NONE, lease=held, has_started=False) for at in range(11)]
    assert looks == [WAIT] * 10 + [TAKE_OVER]


def test_who_loses_the_election_waits_for_the_winner(standby: Standby) -> None:
    assert standby.sees(0.0, Leader.NONE, generation=0, has_started=False) is TAKE_OVER
    standby.election.has_lost()
    assert standby.sees(0.1, generation=1, lease=lease()) is WAIT
    assert standby.sees(5.0, Leader.NONE, generation=1, lease=lease(2, stopped=True)) is WAIT


def test_who_loses_the_election_does_not_undo_a_stop_of_the_winner(standby: Standby) -> None:
    assert standby.sees(0.0, Leader.NONE, generation=0, has_started=False) is TAKE_OVER
    standby.election.has_lost()
    assert standby.sees(5.0, Leader.NONE, generation=1, lease=lease(2, stopped=True)) is WAIT


def test_a_new_leader_gets_the_whole_time(standby: Standby) -> None:
    assert standby.watches(range(9), lease()) == {WAIT}
    later = LeaseRecord(2, LEASE, 1)
    looks = [standby.sees(float(at), lease=later, generation=2) for at in range(9, 20)]
    assert looks == [WAIT] * 10 + [TAKE_OVER]
