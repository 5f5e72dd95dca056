"""Hosts that are lost while shards have standbys: no batch that may have committed is lost, and no query goes back.

The model and the promises are those of ``test_interleavings``, with the moves of ``test_moves``. Here hosts are lost in
the middle of batches; some of them live on without knowing it, and connections break.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import attrs
import pytest
from hypothesis.stateful import run_state_machine_as_test

from chandy.coordinator.protocol.copies import CopyPhase
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine

from ...effort import always_kept, sampled, some, until_found
from ...world.protocol_bugs import (
    apply_what_has_not_committed,
    count_the_acknowledgement_of_a_zombie,
    forget_what_is_staged,
    go_on_without_asking,
    promote_a_standby_that_has_missed_something,
    promote_while_the_former_owner_may_acknowledge,
    tell_the_task_before_the_standby_has_it,
)
from .lives import Life
from .losing_machine import LosingMachine, begun, finish, lose, zombie_attempts
from .moving_machine import Bug, assert_found


@pytest.fixture(autouse=True)
def standbys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every shard have a standby."""
    right = CheckpointStateMachine.__attrs_post_init__

    def made(machine: CheckpointStateMachine) -> None:
        machine.limits = attrs.evolve(machine.limits, standbys=1)
        right(machine)

    monkeypatch.setattr(CheckpointStateMachine, "__attrs_post_init__", made)


def test_the_promises_are_kept_while_standbys_take_the_place_of_lost_shards() -> None:
    run_state_machine_as_test(LosingMachine, settings=always_kept(6, steps=25))


def test_examples_promote_standbys() -> None:
    class Stopping(LosingMachine):
        def look(self) -> None:
            standbys = self.world.life.machine.placement.standbys.under_way.values()
            assert all(one.phase is not CopyPhase.HANDING_OVER for one in standbys), "one is promoted"

    with pytest.raises(AssertionError, match="one is promoted"):
        run_state_machine_as_test(Stopping, settings=until_found(25))


def in_sync(life: Life) -> bool:
    """Whether every owned shard has a standby that is in sync."""
    machine = life.machine
    return all(
        machine.placement.standbys.in_sync(query.name, shard, machine.members.hosts)
        for query in machine.queries.values()
        for shard in query.assignment._owners
    )


def walk(upto: int, lives_on: bool, cut: str, notices: str) -> None:
    """Lose a host in the middle of a batch, as far as it has got; what the host still does comes before or after.

    Args:
        upto: how far the batch gets before; 5: it has committed.
        lives_on: whether the host goes on without knowing that it is lost.
        cut: what breaks before, for a batch: the way to the standbys, or to the coordinator, too.
        notices: whether tasks of the lost host go on before or after the standbys are told.
    """
    machine = LosingMachine()
    machine.start()
    life = machine.world.life
    life.join("c")
    machine.busy("", 6)
    assert in_sync(life), "the walk must begin with standbys"
    runs = [run.query_id for run in life.runs.values()]
    committed = {query: run.committed for query, run in life.runs.items()}
    (gone,) = [name for name in life.hosts if name[0] == "a"]
    if cut:
        life.cut |= {(gone, name) for name in life.hosts}
    if "coordinator" in cut:
        life.cut.add((gone, "coordinator"))
    life.batch("orders", 3, 0, upto)
    attempts = begun(life, "orders", gone)
    dropped = not in_sync(life)
    assert dropped == (cut == "standbys" and upto > 0), (
        "a standby that is behind was not dropped, or one that is not"
    )
    lose(life, "a", lives_on)
    if not dropped:
        # What was known of it is right, and nothing goes back.
        assert life.machine.placement.standbys.holds("orders")
    for when in ("before", "after"):
        if when == "after":
            life.quiet("works manifests")
        if lives_on and notices == when:
            for attempt in [*attempts, *zombie_attempts(life, gone, "orders")]:
                life.apply(attempt)
            finish(life, "orders")
    life.cut.clear()
    for query in ("orders", "totals"):
        life.batch(query, 3, 0)
    machine.busy("", 2)
    machine.the_promises_are_kept()
    if not dropped:
        assert [run.query_id for run in life.runs.values()] == runs, "a query has gone back"
        assert all(life.runs[query].committed > batch for query, batch in committed.items())
        owners = {host for query in life.machine.queries.values() for host in query.assignment.owners()}
        assert gone not in owners
    machine.a_zombie_acknowledges(upto, checkpoint=True)
    machine.busy("", 1)
    # Before retention gives it up.
    machine.the_promises_are_kept()
    machine.busy("", 1)
    assert not life.lost
    assert in_sync(life), "no other standby was made"
    machine.teardown()


WALKS = list(
    product(
        (0, 1, 2, 3, 4, 5), (False, True), ("", "standbys", "standbys and coordinator"), ("before", "after")
    )
)


def walks(cases: Iterable[tuple[Any, ...]] = WALKS) -> None:
    for case in cases:
        walk(*case)


def test_the_promises_are_kept_wherever_a_batch_meets_the_loss_of_a_host() -> None:
    walks(some(WALKS, 16, "standbys"))


@pytest.mark.parametrize("upto", [0, 2, 5])
@pytest.mark.parametrize("held", ["orders moves", "moves", ""])
@pytest.mark.parametrize("zombie", [False, True])
def test_the_promises_are_kept_when_the_driver_is_lost_in_a_promotion(
    upto: int, held: str, zombie: bool
) -> None:
    """The standby has not heard of it, has heard and done nothing, or is the shard; the driver is killed or frozen."""
    machine = LosingMachine()
    machine.start()
    life = machine.world.life
    life.join("c")
    machine.busy("", 6)
    life.batch("orders", 3, 0, upto)
    lose(life, "a", lives_on=True)
    assert life.machine.placement.standbys.holds("orders")
    life.quiet(held)
    assert life.machine.placement.standbys.holds("orders") == bool(held)
    machine.another_coordinator_takes_over(zombie, 1, savepoint=False, hold="", asks=True)
    machine.the_promises_are_kept()
    machine.busy("", 2)
    machine.the_promises_are_kept()
    if zombie:
        life.quiet("")
        machine.the_promises_are_kept()
    machine.teardown()


# --- does it find anything? ---------------------------------------------------------------------------------


BUGS = [
    promote_a_standby_that_has_missed_something,
    tell_the_task_before_the_standby_has_it,
    go_on_without_asking,
    promote_while_the_former_owner_may_acknowledge,
    forget_what_is_staged,
    apply_what_has_not_committed,
    count_the_acknowledgement_of_a_zombie,
]


@pytest.mark.parametrize("bug", sampled(BUGS, 3), ids=lambda bug: bug.__name__)
def test_a_walk_finds(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_found(bug, monkeypatch, walks)
