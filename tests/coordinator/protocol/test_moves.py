"""Shards that move while batches, checkpoints, losses and retries go on: each has one owner, and nothing is lost.

The model and the promises are those of ``test_interleavings``; here machines join, are drained, and come back, the
targets of moves fail or are late, and hosts that have lost a shard go on as if they had it.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from chandy.coordinator.protocol import shard_assignment
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine

from ...effort import always_kept, some, until_found
from ...world.protocol_bugs import (
    begin_a_batch_while_a_shard_is_handed_over,
    count_the_acknowledgement_of_a_zombie,
    forget_the_batch_before_the_move,
    have_two_owners_in_one_term,
    snapshot_shards_that_are_being_handed_over,
)
from .moving_machine import (
    WALKS,
    Bug,
    MovingMachine,
    assert_found,
    walks,
)


class FollowingMachine(MovingMachine):
    """Shards follow their tasks, and no machine is drained."""

    a_machine_is_drained = None

    @rule(place=st.integers(0, 2), rounds=st.integers(2, 5))
    def tasks_move(self, place: int, rounds: int) -> None:
        self.place = place
        self.busy("", rounds)


@pytest.fixture
def follows_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    right = CheckpointStateMachine.__attrs_post_init__

    def made(machine: CheckpointStateMachine) -> None:
        machine.follows_tasks = True
        right(machine)

    monkeypatch.setattr(CheckpointStateMachine, "__attrs_post_init__", made)
    monkeypatch.setattr(shard_assignment, "STAYS", 2)


def test_the_promises_are_kept_while_shards_move() -> None:
    run_state_machine_as_test(MovingMachine, settings=always_kept(6, steps=25))


@pytest.mark.usefixtures("follows_tasks")
def test_the_promises_are_kept_while_shards_follow_their_tasks() -> None:
    run_state_machine_as_test(FollowingMachine, settings=always_kept(6, steps=25))


def test_examples_move_shards() -> None:
    find_a_move(MovingMachine)


@pytest.mark.usefixtures("follows_tasks")
def test_examples_have_shards_follow_their_tasks() -> None:
    find_a_move(FollowingMachine)


def find_a_move(kind: type[MovingMachine]) -> None:
    class Stopping(kind):  # type: ignore[valid-type, misc]
        def teardown(self) -> None:
            assert not self.has_moved, "a shard has moved"
            super().teardown()

    with pytest.raises(AssertionError, match="a shard has moved"):
        run_state_machine_as_test(Stopping, settings=until_found(25))


def test_the_promises_are_kept_wherever_a_batch_and_a_checkpoint_meet_a_move() -> None:
    walks(some(WALKS, 20, "moves"))


# --- does it find anything? ---------------------------------------------------------------------------------


BUGS = [
    forget_the_batch_before_the_move,
    have_two_owners_in_one_term,
    snapshot_shards_that_are_being_handed_over,
    begin_a_batch_while_a_shard_is_handed_over,
    count_the_acknowledgement_of_a_zombie,
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_walk_finds(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_found(bug, monkeypatch, walks)
