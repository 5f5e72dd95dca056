"""When a shadow asks for its pipeline, and when it claims it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from chandy.coordinator.errors import NotSwitchedError
from chandy.coordinator.leadership.heir import Inheritance
from chandy.coordinator.switch_orders import (
    SwitchOutcome,
    await_switch,
    order_switch,
    read_answer,
    read_order,
)
from chandy.coordinator.upgrade.follower import Passed
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.coordinator.upgrade.switching import Ask, Refuse, Switching, decide
from chandy.coordinator.verdict import Finding, Kind, Phase, ShadowVerdict
from chandy.coordinator.verdicts import ShadowStore
from chandy.storage import runtime
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import DriverRecord
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.offers import Offer, asked, offer, withdraw
from chandy.storage.errors import OutcomeUnknownError

from ...builders import MemoryStore, make_manifest

EQUAL = ShadowVerdict(shadow="shadow", pipeline="p", batches=7, equal=7, states=2)
FINDING = Finding(kind=Kind.OUTPUT, query="q", batch=6, checkpoint=3, what="sink 'out'", says="other rows")
DIFFERENT = attrs.evolve(EQUAL, equal=0, differing=1, findings=(FINDING,))


@pytest.mark.parametrize(
    ("verdict", "is_told", "although", "after", "expected"),
    [
        (EQUAL, False, False, None, None),
        (EQUAL, False, False, 8, None),
        (EQUAL, False, False, 7, Ask()),
        (attrs.evolve(EQUAL, state_is_equal=False, differing=1), False, False, 7, None),
        (EQUAL, True, False, None, Ask()),
        (DIFFERENT, True, False, None, Refuse),
        (DIFFERENT, True, True, None, Ask(True)),
        (attrs.evolve(EQUAL, states=0, unrecorded=7), True, False, None, Refuse),
    ],
)
def test_a_shadow_leads_if_somebody_wants_it_and_nothing_differs(
    verdict: ShadowVerdict, is_told: bool, although: bool, after: int | None, expected: object
) -> None:
    world = World()
    order = world.order(although_different=although) if is_told else None
    found = decide(verdict, order, after)
    assert isinstance(found, Refuse) if expected is Refuse else found == expected


class World:
    """A pipeline whose leader does what the test says, and its shadow."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.catalog = Catalog(self.store)
        ShadowStore(self.store, "shadow").write(EQUAL)
        self.generation = self.catalog.take_over("leader", 0.0).generation
        self.catalog.take_leadership(DriverRecord(self.generation, "m", "m", 1, 1, 1, 1))
        self.inherited: list[Inheritance] = []
        self.looks = self.preparations = 0
        self.switching = Switching(
            self.catalog,
            Shadow(),
            "life",
            self.look,
            self.prepare,
            self.inherited.append,
            lambda: 0.0,
        )

    def look(self) -> None:
        self.looks += 1

    def prepare(self) -> None:
        self.preparations += 1

    def order(self, **more: Any) -> object:
        name, nonce = order_switch(self.store, None, **more)
        self.switching._looked_at = float("-inf")
        order = self.switching._ordered()
        assert (name, order and order.nonce) == ("shadow", nonce)
        return order

    def passed(self, checkpoint: int, verdict: ShadowVerdict = EQUAL) -> bool:
        own = Located(make_manifest(checkpoint + 100), self.store)
        return self.switching.passed(Passed(checkpoint, own, verdict))

    def offers(self, checkpoint: int) -> None:
        request = asked(self.store, self.generation)
        assert request is not None
        offer(self.store, Offer(self.generation, request.nonce, checkpoint))

    @property
    def outcome(self) -> SwitchOutcome | None:
        found = read_answer(self.store, "shadow")
        return None if found is None else found.outcome


@pytest.mark.parametrize("completed_since", [0, 1])
def test_a_shadow_claims_at_the_cut_that_it_is_offered_and_not_before(completed_since: int) -> None:
    world = World()
    assert not world.passed(2) and asked(world.store, world.generation) is None
    world.order(keep_old="1 min")
    assert not world.passed(2) and not world.passed(2)
    request = asked(world.store, world.generation)
    assert request is not None and (request.name, request.keep_old) == ("shadow", 60.0)
    assert world.switching.is_under_way and world.preparations == 1
    assert world.looks == 1, "what the leader does meanwhile need not be done while it waits"
    world.offers(3)
    assert not world.passed(2), "the leader has batches that it has not run"
    assert world.looks == 2 and world.catalog.newest_generation() == world.generation
    # What somebody has asked for while the leader stands still completes there, too.
    assert world.passed(3 + completed_since)
    (inherited,) = world.inherited
    assert inherited.claim.generation == world.generation + 1
    assert inherited.state.id == 103 + completed_since
    assert inherited.claim.nonce == request.nonce, "so that the leader knows who it is"
    assert world.outcome is SwitchOutcome.LEADS


def test_a_claim_whose_outcome_is_not_known_is_repeated_and_is_the_same_one() -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    world.offers(2)
    create = world.store.create

    def made_and_not_answered(key: str, data: bytes) -> None:
        create(key, data)
        raise OutcomeUnknownError(world.store.uri, key, "create", "no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "create", made_and_not_answered)
        assert not world.passed(2)
    # The time is up, and the leader, which does not know yet that it is fenced, withdraws.
    withdraw(world.store, world.generation)
    assert world.passed(2)
    (inherited,) = world.inherited
    assert world.catalog.newest_generation() == inherited.claim.generation == world.generation + 1


def test_what_differs_in_the_last_batches_ends_the_switch_and_the_leader_goes_on() -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    world.offers(3)
    assert not world.passed(3, DIFFERENT)
    assert asked(world.store, world.generation) is None, "the leader need not wait"
    assert not world.inherited and world.outcome is SwitchOutcome.REFUSED
    assert not world.passed(3) and not world.switching.is_under_way, "the order is answered"


@pytest.mark.parametrize(
    "ends",
    [
        lambda world: withdraw(world.store, world.generation),
        lambda world: world.catalog.step_down(world.generation),
        lambda world: world.catalog.claim("a standby", 0.0),
    ],
    ids=["refuses", "stops", "is fenced"],
)
def test_a_leader_that_will_not_hand_over_is_not_waited_for(ends: Callable[[World], object]) -> None:
    world = World()
    world.order()
    assert not world.passed(2) and not world.passed(2)
    assert world.outcome is None
    ends(world)
    assert not world.passed(2)
    assert world.outcome is SwitchOutcome.REFUSED and not world.inherited


def test_a_claim_that_somebody_else_has_made_ends_the_switch() -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    world.offers(2)
    world.catalog.claim("a standby", 0.0)
    assert not world.passed(2)
    assert not world.inherited and world.outcome is SwitchOutcome.REFUSED


def test_a_shadow_that_has_ended_is_not_waited_for() -> None:
    world = World()
    ShadowStore(world.store, "shadow").write(attrs.evolve(EQUAL, phase=Phase.FAILED))
    for name in (None, "shadow", "another"):
        with pytest.raises(NotSwitchedError, match="shadow, which has ended"):
            order_switch(world.store, name)


def test_an_order_that_nobody_waits_for_any_more_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "sleep", interrupted)
    world = World()
    for error, patience in ((KeyboardInterrupt, 60.0), (NotSwitchedError, 0.0)):
        name, nonce = order_switch(world.store, None)
        with pytest.raises(error):
            await_switch(world.store, name, nonce, patience)
        assert read_order(world.store, name) is None
