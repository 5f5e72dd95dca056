"""Drivers that take a pipeline over in any order, die and stop: never two of them write into its sinks.

Each step of a driver is one request to the store or a decision; between any two steps the others may do theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from chandy.coordinator.errors import PredecessorRunsError
from chandy.coordinator.leadership import leadership
from chandy.coordinator.leadership.leadership import Sign, Verdict, await_predecessors
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim, DriverRecord
from chandy.storage.errors import FencedError

from ...builders import MemoryStore
from ...effort import examples, sampled, until_found


@attrs.define(eq=False)
class Life:
    """One driver, step by step."""

    catalog: Catalog
    claim: Claim | None = None
    lives: bool = True
    writes: bool = False
    """Whether it may touch the sinks."""
    has_stepped_down: bool = False

    def steps(self) -> Iterator[None]:
        self.claim = self.catalog.claim("driver", 1.0)
        yield
        self.catalog.take_leadership(self.driver)
        yield
        try:
            while True:
                try:
                    await_predecessors(self.catalog, self.claim, 0.0)
                    break
                except PredecessorRunsError:
                    yield
            yield
            self.catalog.start(self.claim)
            self.writes = True
            while True:
                yield
                self.catalog.check_not_fenced(self.claim.generation)
        except FencedError:
            yield
            self.writes = False
            yield
            self.catalog.step_down(self.claim.generation)
            self.has_stepped_down = True

    @property
    def driver(self) -> DriverRecord:
        assert self.claim is not None
        return DriverRecord(self.claim.generation, "here", "this machine", self.claim.generation, 1, 1, 1)


class Drivers(RuleBasedStateMachine):
    """All drivers that a pipeline ever had."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog(MemoryStore())
        self.lives: list[tuple[Life, Iterator[None]]] = []
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(leadership, "_sign", self.sign)

    def sign(self, catalog: Catalog, driver: DriverRecord) -> Sign:
        found = [life for life, _ in self.lives if life.claim and life.driver == driver]
        return Sign.LIVES if any(life.lives and not life.has_stepped_down for life in found) else Sign.DEAD

    @rule()
    def a_driver_comes(self) -> None:
        life = Life(self.catalog)
        self.lives.append((life, life.steps()))

    @rule(which=st.integers(0, 3), steps=st.integers(1, 6))
    def a_driver_goes_on(self, which: int, steps: int) -> None:
        running = [one for one in self.lives if one[0].lives]
        if running:
            _, going = running[-1 - which % len(running)]
            for _ in itertools.islice(going, steps):
                self.one_writes()

    @rule(which=st.integers(0, 3))
    def a_driver_is_killed(self, which: int) -> None:
        running = [life for life, _ in self.lives if life.lives]
        if running:
            life = running[-1 - which % len(running)]
            life.lives = life.writes = False

    @invariant()
    def one_writes(self) -> None:
        assert sum(life.writes for life, _ in self.lives) <= 1, "two drivers write into the sinks"

    def teardown(self) -> None:
        try:
            # Whatever has happened, who comes last gets the pipeline once the others have done their steps.
            self.a_driver_comes()
            last, going = self.lives[-1]
            next(going)
            for _ in range(12 + 2 * len(self.lives)):
                for life, steps in self.lives:
                    if life.lives and life.claim is not None:
                        next(steps, None)
                        self.one_writes()
            assert last.writes, "the last driver waits for ever"
        finally:
            self.patch.undo()


STEPS = 20
Drivers.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=STEPS, deadline=None)
TestDrivers = Drivers.TestCase


# --- does it find anything? ---------------------------------------------------------------------------------


def wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leadership, "judge", lambda *_: Verdict.TAKE_FOR_DEAD)


def wait_for_the_one_before_alone(patch: pytest.MonkeyPatch) -> None:
    def before(catalog: Catalog, generation: int) -> Iterator[DriverRecord]:
        if (driver := catalog.leader(generation - 1)) is not None:
            yield driver

    patch.setattr(Catalog, "leaders_before", before)


def start_without_a_last_look(patch: pytest.MonkeyPatch) -> None:
    right = Catalog.start

    def start(catalog: Catalog, claim: Claim, first_id: int = 1) -> object:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(Catalog, "check_not_fenced", lambda *_: None)
            return right(catalog, claim, first_id)

    patch.setattr(Catalog, "start", start)


def never_notice_a_successor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Catalog, "check_not_fenced", lambda *_: None)


@pytest.mark.parametrize(
    "bug",
    sampled(
        [wait_for_nobody, wait_for_the_one_before_alone, start_without_a_last_look, never_notice_a_successor],
        2,
    ),
    ids=lambda bug: bug.__name__,
)
def test_the_machine_of_drivers_finds(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Drivers, settings=until_found(STEPS))
