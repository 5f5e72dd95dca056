"""Standbys that watch, claim, freeze, wake and lose their storage in any order: never two that begin batches.

Each step of a driver is one request to the store or a decision; between any two steps the others may do theirs, and
time passes. Every driver has a clock of its own.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from typing_extensions import override

from chandy.coordinator.leadership import leadership
from chandy.coordinator.leadership.election import Decision, Election
from chandy.coordinator.leadership.leadership import Sign, await_predecessors, sight
from chandy.coordinator.leadership.lease import HeldLease
from chandy.storage import runtime
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim, DriverRecord
from chandy.storage.errors import FencedError, StoreFailedError

from ...builders import MemoryStore
from ...effort import examples

LEASE = 10.0


class MustWait(Exception):
    """A driver waits for its predecessor; others go on meanwhile."""


@attrs.define(eq=False)
class World:
    """The storage and the time, and whose turn it is."""

    now: float = 0.0
    current: Life | None = None
    lives: list[Life] = attrs.field(factory=list)

    def monotonic(self) -> float:
        assert self.current is not None
        return self.now + self.current.off

    def sleep(self, seconds: float) -> None:
        raise MustWait


class CutStore(MemoryStore):
    """A store that some drivers cannot write leases into."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    @override
    def write(self, key: str, data: bytes) -> None:
        current = self.world.current
        if current is not None and current.cut and key.endswith(".lease.json"):
            raise StoreFailedError(self.uri, key, "write", "no route")
        super().write(key, data)


@attrs.define(eq=False)
class Life:
    """One driver, step by step."""

    world: World
    catalog: Catalog
    off: float
    """Its clock differs from the others' by so many seconds."""
    is_near: bool
    """Whether the others are on its machine, and see its processes."""
    claim: Claim | None = None
    held: HeldLease | None = None
    lives: bool = True
    frozen: bool = False
    cut: bool = False
    began: int = 0
    """How many batches it has begun."""
    leads: bool = False

    def steps(self) -> Iterator[None]:
        election = Election(LEASE)
        while True:
            seen, _ = sight(self.catalog)
            decision = election.decide(seen)
            yield
            if decision is Decision.WAIT:
                continue
            self.claim = self.catalog.claim_after(seen.generation, "driver", self.world.monotonic())
            if self.claim is None:
                election.has_lost()
                continue
            yield
            with contextlib.suppress(FencedError, StoreFailedError):
                yield from self.lead(self.claim, election)
            self.leads, self.held = False, None
            yield
            self.catalog.step_down(self.claim.generation)
            # It is a new program.
            election = Election(LEASE)

    def lead(self, claim: Claim, election: Election) -> Iterator[None]:
        silence = election.silence
        held = HeldLease(self.catalog, claim.generation, LEASE, self.world.monotonic)
        held._renew()
        self.held = held
        yield
        self.catalog.take_leadership(self.driver)
        yield
        began = self.world.monotonic()
        while True:
            try:
                waited = self.world.monotonic() - began
                await_predecessors(self.catalog, claim, max(0.0, LEASE - waited), silence)
                break
            except MustWait:
                yield
        yield
        self.catalog.start(claim)
        self.leads = True
        looked_at = self.world.monotonic()
        while True:
            yield
            try:
                held_since = self.held.hold()
            except StoreFailedError:
                continue
            if looked_at < held_since:
                # Before the look, others may do anything.
                yield
            now = self.world.monotonic()
            if looked_at < held_since or now - looked_at > LEASE / 2:
                self.catalog.check_not_fenced(claim.generation)
                looked_at = now
            self.begin_batch(claim.generation)

    def begin_batch(self, generation: int) -> None:
        newer = [
            one for one in self.world.lives if one.leads and one.claim and one.claim.generation > generation
        ]
        assert not newer, "a driver begins a batch after its successor has begun to write"
        self.began += 1

    def keep(self) -> None:
        """What the thread does that keeps the lease."""
        if self.held is not None:
            with contextlib.suppress(StoreFailedError):
                self.held._renew()

    @property
    def driver(self) -> DriverRecord:
        assert self.claim is not None
        return DriverRecord(self.claim.generation, "here", "this machine", self.claim.generation, 1, 1, 1)


class Standbys(RuleBasedStateMachine):
    """All drivers that a pipeline ever had."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.catalog = Catalog(CutStore(self.world))
        self.going: list[tuple[Life, Iterator[None]]] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(leadership, "_sign", self.sign)
        self.patch.setattr(
            leadership,
            "runtime",
            SimpleNamespace(**vars(runtime) | {"monotonic": self.world.monotonic, "sleep": self.world.sleep}),
        )
        for off in (0.0, 3600.0):
            self.a_driver_comes(off, False)

    def sign(self, catalog: Catalog, driver: DriverRecord) -> Sign:
        (life,) = [one for one in self.world.lives if one.claim and one.driver == driver]
        if not life.is_near:
            return Sign.UNKNOWN
        return Sign.LIVES if life.lives else Sign.DEAD

    def go(self, which: int, steps: int) -> None:
        life, going = self.going[which % len(self.going)]
        if not life.lives or life.frozen:
            return
        self.world.current = life
        for _ in itertools.islice(going, steps):
            pass

    @rule(off=st.sampled_from([0.0, -3600.0, 3600.0]), is_near=st.booleans())
    def a_driver_comes(self, off: float, is_near: bool) -> None:
        if len(self.going) < 5:
            life = Life(self.world, self.catalog, off, is_near)
            self.world.lives.append(life)
            self.going.append((life, life.steps()))

    @rule(which=st.integers(0, 4), steps=st.integers(1, 8))
    def a_driver_goes_on(self, which: int, steps: int) -> None:
        self.go(which, steps)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        # Who runs renews its lease, looks at the others' and begins batches often enough.
        for _ in range(round(seconds * 2)):
            self.world.now += 0.5
            for life, _ in self.going:
                if life.lives and not life.frozen:
                    self.world.current = life
                    life.keep()
            for which in range(len(self.going)):
                self.go(which, 2)

    @rule(which=st.integers(0, 4))
    def a_driver_freezes_or_wakes(self, which: int) -> None:
        life, _ = self.going[which % len(self.going)]
        life.frozen = not life.frozen

    @rule(which=st.integers(0, 4))
    def a_driver_cannot_write_or_can_again(self, which: int) -> None:
        life, _ = self.going[which % len(self.going)]
        life.cut = not life.cut

    @rule(which=st.integers(0, 4))
    def a_driver_is_killed(self, which: int) -> None:
        life, _ = self.going[which % len(self.going)]
        life.lives = life.leads = False

    def teardown(self) -> None:
        try:
            # Whatever has happened, one that lives gets the pipeline.
            self.going = [one for one in self.going if one[0].lives][:4]
            for life, _ in self.going:
                life.frozen = life.cut = False
            self.a_driver_comes(0.0, False)
            running = [life for life, _ in self.going if life.lives]
            before = sum(life.began for life in running)
            for _ in range(25):
                self.time_passes(3.0)
                for which in range(len(self.going)):
                    self.go(which, 4)
                if sum(life.began for life in running) > before:
                    return
            assert sum(life.began for life in running) > before, "no driver begins a batch any more"
        finally:
            self.patch.undo()


STEPS = 30
Standbys.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=STEPS, deadline=None)
TestStandbys = Standbys.TestCase


# --- does it find anything? ---------------------------------------------------------------------------------
# Each bug has a schedule of its own: by chance, they take long to be met.


def led(standbys: Standbys) -> int:
    """Let one of the drivers lead, and return which."""
    standbys.time_passes(3.0)
    (which,) = [number for number, (life, _) in enumerate(standbys.going) if life.leads]
    return which


def a_leader_cannot_write(standbys: Standbys) -> None:
    standbys.a_driver_cannot_write_or_can_again(led(standbys))
    standbys.time_passes(11.0)
    standbys.time_passes(11.0)


def a_leader_dies(standbys: Standbys) -> None:
    standbys.a_driver_is_killed(led(standbys))


def trust_a_lease_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldLease, "hold", lambda self: self._held_since)


def wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Election, "decide", lambda self, seen: Decision.WAIT if seen.generation else Decision.TAKE_OVER
    )


@pytest.mark.parametrize(
    ("schedule", "bug", "tells"),
    [
        (a_leader_cannot_write, trust_a_lease_for_ever, "after its successor"),
        (a_leader_dies, wait_for_ever, "no driver begins"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_machine_of_standbys_finds(
    schedule: Callable[[Standbys], None],
    bug: Callable[[pytest.MonkeyPatch], None],
    tells: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> None:
        standbys = Standbys()
        try:
            schedule(standbys)
        finally:
            standbys.teardown()

    run()
    bug(monkeypatch)
    with pytest.raises(AssertionError, match=tells):
        run()
