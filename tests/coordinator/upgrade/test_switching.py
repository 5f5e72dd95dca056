"""When a shadow asks for its pipeline, and when it claims it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.coordinator.errors import NotSwitchedError
from chandy.coordinator.leadership.heir import Inheritance
from chandy.coordinator.switch_orders import (
    SwitchOutcome,
    await_switch,
    order_switch,
    read_answer,
    read_order,
)
from chandy.coordinator.upgrade.follower import Follower, Passed
from chandy.coordinator.upgrade.requested import shadowing
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.coordinator.upgrade.shadow_rerun import ShadowRerun
from chandy.coordinator.upgrade.switching import Ask, Refuse, Switching, decide
from chandy.coordinator.verdict import Finding, Kind, Phase, ShadowVerdict
from chandy.coordinator.verdicts import ShadowStore
from chandy.state.local.machine import machine_id
from chandy.state.local.processes import started_at
from chandy.storage import runtime
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import DriverRecord
from chandy.storage.checkpoints.layout import asked_key, generation_key, offer_key
from chandy.storage.checkpoints.locate import Located
from chandy.storage.checkpoints.offers import Offer, asked, offer, withdraw
from chandy.storage.errors import FencedError, OutcomeUnknownError
from chandy.storage.ids import CheckpointId
from chandy.storage.store import Store

from ...builders import MemoryStore, make_manifest
from ...effort import trying

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
        self.switching = self.life("life")

    def life(self, life: str, name: str = "shadow") -> Switching:
        return Switching(
            self.catalog,
            Shadow(name=name),
            life,
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

    def withdraws(self) -> None:
        request = asked(self.store, self.generation)
        assert request is not None
        withdraw(self.store, request)

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
    world.withdraws()
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
        lambda world: world.withdraws(),
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


# --- what comes at the same time, or is left from before ----------------------------------------------------


def test_whoever_orders_the_same_switch_learns_that_the_shadow_leads() -> None:
    world = World()
    world.order()
    assert not world.passed(2), "the leader has been asked because of the first order"
    orders = [read_order(world.store, "shadow"), None]
    order_switch(world.store, None)
    orders[1] = read_order(world.store, "shadow")
    world.offers(2)
    assert world.passed(2)
    for order in orders:
        assert order is not None
        await_switch(world.store, "shadow", order.nonce, 0.0)


def test_who_waits_for_a_shadow_that_has_ended_learns_that() -> None:
    world = World()
    name, nonce = order_switch(world.store, None)
    ShadowStore(world.store, "shadow").write(attrs.evolve(EQUAL, phase=Phase.FAILED, because="out of luck"))
    with pytest.raises(NotSwitchedError, match="found that it has failed out of luck"):
        await_switch(world.store, name, nonce, 60.0)
    assert read_order(world.store, name) is None


@pytest.mark.parametrize("is_answered", [False, True])
def test_an_order_to_a_life_before_is_not_carried_out(is_answered: bool) -> None:
    world = World()
    world.order()
    if is_answered:
        assert not world.passed(2)
        world.offers(2)
        assert world.passed(2)
    (again := world.life("another"))._looked_at = float("-inf")
    world.switching = again
    assert not world.passed(3) and not again.is_under_way
    assert world.outcome is (SwitchOutcome.LEADS if is_answered else SwitchOutcome.REFUSED)
    world.order()
    world.catalog.take_leadership(DriverRecord(world.catalog.newest_generation(), "m", "m", 1, 1, 1, 1))
    assert not world.passed(3) and again.is_under_way, "a new one is"


def test_of_two_shadows_that_want_to_lead_one_asks_and_the_other_is_refused_until_it_has_done() -> None:
    world = World()
    world.order()
    ShadowStore(world.store, "other").write(attrs.evolve(EQUAL, shadow="other"))
    other = world.life("another", "other")
    own = Passed(CheckpointId(2), Located(make_manifest(102), world.store), EQUAL)
    assert not world.passed(2) and world.switching.is_under_way
    first = asked(world.store, world.generation)
    _, nonce = order_switch(world.store, "other")
    assert not other.passed(own) and not other.is_under_way
    with pytest.raises(NotSwitchedError, match="another shadow is about to take the pipeline over"):
        await_switch(world.store, "other", nonce, 0.0)
    assert asked(world.store, world.generation) == first
    other.give_up("it has ended")
    assert asked(world.store, world.generation) == first, "it has nothing to give up"
    # It asks once no other shadow does. A request that nobody can read does not count.
    world.switching.give_up("it was stopped")
    assert asked(world.store, world.generation) is None and not world.switching.is_under_way
    world.store.write(asked_key(world.generation), b"{")
    order_switch(world.store, "other")
    other._looked_at = float("-inf")
    assert not other.passed(own) and other.is_under_way


def test_a_shadow_that_begins_anew_asks_in_place_of_its_former_life() -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    first, former = asked(world.store, world.generation), world.switching
    world.switching = world.life("another")
    world.order()
    assert not world.passed(2) and world.switching.is_under_way
    now = asked(world.store, world.generation)
    assert now is not None and now != first
    world.offers(2)
    former.give_up("it has been replaced")
    assert asked(world.store, world.generation) == now and world.passed(2)


def test_a_shadow_that_ends_gives_up_what_it_has_asked_so_that_the_leader_goes_on() -> None:
    world = World()
    _, nonce = order_switch(world.store, None)
    assert not world.passed(2) and world.switching.is_under_way
    world.offers(3)
    world.switching.give_up("the shadow has ended")
    assert asked(world.store, world.generation) is None
    with pytest.raises(NotSwitchedError, match="the shadow has ended"):
        await_switch(world.store, "shadow", nonce, 0.0)


def test_the_end_of_a_shadow_is_the_end_of_what_it_has_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog(store := open_store(str(tmp_path / "p")))
    catalog.commit(make_manifest(1))
    generation = catalog.take_over("leader", 0.0).generation
    catalog.take_leadership(DriverRecord(generation, "m", "m", 1, 1, 1, 1))
    ShadowStore(store, "shadow").write(EQUAL)
    rerun = shadowing(Shadow(), "p", str(tmp_path))
    assert isinstance(rerun, ShadowRerun)

    def conduct(follower: Follower, _: object) -> None:
        order_switch(store, "shadow")
        assert not follower.on_passed(
            Passed(CheckpointId(1), Located(make_manifest(2), MemoryStore()), EQUAL)
        )
        assert asked(store, generation) is not None
        raise ValueError("it is stopped")

    monkeypatch.setattr(Follower, "conduct", conduct)
    with pytest.raises(ValueError, match="it is stopped"):
        rerun._follow(rerun)
    assert asked(store, generation) is None


# --- a byte that is another one ------------------------------------------------------------------------------


def flip(store: Store, key: str, place: int) -> None:
    data = bytearray(store.read(key))
    data[place % len(data)] ^= 1
    store.write(key, bytes(data))


@given(place=st.integers(0, 1000))
@trying(30)
def test_an_offer_that_cannot_be_read_ends_the_switch_at_once_and_the_leader_goes_on(place: int) -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    world.offers(2)
    flip(world.store, offer_key(world.generation), place)
    if world.passed(2):
        # The byte does not belong to what it says.
        assert world.outcome is SwitchOutcome.LEADS
        return
    assert world.outcome is SwitchOutcome.REFUSED and not world.switching.is_under_way
    assert asked(world.store, world.generation) is None and not world.inherited
    assert world.catalog.newest_generation() == world.generation


@given(place=st.integers(0, 1000))
@trying(30)
def test_a_request_that_cannot_be_read_ends_the_switch_and_the_leader_goes_on(place: int) -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    before = asked(world.store, world.generation)
    flip(world.store, asked_key(world.generation), place)
    if asked(world.store, world.generation) == before:
        return
    assert not world.passed(2)
    assert world.outcome is SwitchOutcome.REFUSED and not world.inherited


@given(place=st.integers(0, 1000))
@trying(30)
def test_a_claim_that_cannot_be_read_fences_all_the_same(place: int) -> None:
    world = World()
    world.order()
    assert not world.passed(2)
    world.offers(2)
    assert world.passed(2)
    flip(world.store, generation_key(world.generation + 1), place)
    with pytest.raises(FencedError):
        world.catalog.check_not_fenced(world.generation)
    (inherited,) = world.inherited
    # Who has claimed goes on by what it knows; the driver before cannot tell who it was, and ends.
    assert world.catalog.start(inherited.claim).generation == world.generation + 1
    assert world.catalog.claimed(world.generation + 1) in (None, inherited.claim)


# --- a program that is started again --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claimed_by", "driver", "leads"),
    [
        ("shadow", None, True),
        ("shadow", "ended", True),
        ("shadow", "on this machine before it started again", True),
        ("shadow", "runs", False),
        ("shadow", "elsewhere", False),
        ("before-shadow", None, False),
        ("", None, False),
        ("nobody can tell", None, False),
    ],
)
def test_the_program_of_a_shadow_leads_if_that_has_taken_the_lead_and_its_driver_has_ended(
    claimed_by: str, driver: str | None, leads: bool, tmp_path: Path
) -> None:
    catalog = Catalog(store := open_store(str(tmp_path / "p")))
    claim = catalog.claim("a driver", 0.0, claimed_by)
    catalog.commit(make_manifest(1))
    own = DriverRecord(claim.generation, gethostname(), machine_id(), 2**30, 1, 2**30, 1)
    records = {
        "ended": own,
        "on this machine before it started again": attrs.evolve(own, machine="another start"),
        "runs": attrs.evolve(own, pid=os.getppid(), started=started_at(os.getppid())),
        "elsewhere": attrs.evolve(own, host="another", machine="another"),
    }
    if driver is not None:
        catalog.take_leadership(records[driver])
    if claimed_by == "nobody can tell":
        flip(store, generation_key(claim.generation), 0)
    rerun = shadowing(Shadow(), "p", str(tmp_path))
    assert (rerun is None) is leads
    assert shadowing(None, "p", str(tmp_path)) is None


def test_a_claim_says_for_all_later_lives_whose_program_leads() -> None:
    catalog = Catalog(MemoryStore())
    assert [catalog.claim("driver", 0.0, "next").shadow, catalog.claim("driver", 0.0).shadow] == ["next", ""]
    for generation, shadow in ((1, "next"), (2, "")):
        claim = catalog.claimed(generation)
        assert claim is not None and claim.shadow == shadow
