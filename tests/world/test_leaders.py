"""Whatever happens to drivers, one at a time begins batches, and there is always one in the end."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.leadership import leadership
from chandy.coordinator.leadership.election import Election
from chandy.coordinator.leadership.leadership import Leadership
from chandy.coordinator.leadership.lease import HeldLease
from chandy.coordinator.leadership.offering import Offering
from chandy.storage.checkpoints.catalog import Catalog

from ..effort import examples, some
from .bugs import SeededBug
from .leaders import run, switch

SEEDS: Final = examples(50)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)


def test_one_driver_at_a_time_leads_and_one_does_in_the_end(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        try:
            run(seed, tmp_path / str(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("standby", [True, False])
def test_a_shadow_gets_the_pipeline_or_the_leader_goes_on_wherever_one_of_them_ends(
    tmp_path: Path, standby: bool
) -> None:
    for back in (True, False):
        switch(0, tmp_path / f"well{back}", "nobody", 0, kills=False, standby=standby, back=back)
    cases = list(product(("leader", "shadow"), range(1, 41), (True, False), (True, False)))
    for victim, call, kills, back in some(cases, 12):
        folder = tmp_path / f"{victim}{call}{kills}{back}"
        try:
            switch(call, folder, victim, call, kills=kills, standby=standby, back=back)
        except AssertionError as error:
            raise AssertionError(f"{victim}, call {call}, {kills=}, {back=}: {error}") from error


BUGS: Final = [
    SeededBug(
        "a lease is trusted for ever",
        47,
        HeldLease,
        "hold",
        "if self._has_run_out(self._clock()):\n        with",
        "if False:\n        with",
    ),
    SeededBug(
        "a renewal has the number of the one before",
        8,
        HeldLease,
        "_write",
        "self._lease.renewals + 1",
        "self._lease.renewals",
    ),
    SeededBug(
        "a leader that is silent is waited for, for ever",
        16,
        Election,
        "_may_take_over",
        "return lease is not None and silent >= lease.seconds",
        "return False",
    ),
    SeededBug(
        "a driver that has died between its claim and its record is waited for, for ever",
        8,
        Election,
        "_may_take_over",
        "return silent >= (self.patience if lease is None else lease.seconds)",
        "return False",
    ),
    SeededBug(
        "a standby undoes a stop",
        18,
        Election,
        "_may_take_over",
        "lease.stopped and self.has_waited",
        "False",
    ),
    SeededBug(
        "whoever came after a stop has waited, too",
        70,
        Election,
        "decide",
        "if seen.lease is None or not seen.lease.stopped:",
        "if True:",
    ),
    SeededBug(
        "the JVM of a frozen driver goes on",
        112,
        leadership,
        "_end_java",
        "if not java.kill():",
        "if False:",
    ),
    SeededBug(
        "a driver is dead although its JVM lives",
        4,
        leadership,
        "_sign",
        "python.lives or java.lives",
        "python.lives",
    ),
    SeededBug(
        "a look from before a gap in the lease counts",
        55,
        SuccessorWatch,
        "check",
        "self._looked_at < held_since or ",
        "",
    ),
    SeededBug(
        "a driver steps down before its queries have ended",
        206,
        Leadership,
        "step_down_after",
        "if ended(_END_SECONDS):",
        "if ended(_END_SECONDS) or True:",
    ),
    SeededBug(
        "a driver that has offered follows whoever claims",
        122,
        Offering,
        "_is_of",
        "self.catalog.claimed_with(request.nonce, request.generation + 1) is not None",
        "True",
    ),
    SeededBug(
        "a standby claims whatever has been claimed since",
        10,
        Catalog,
        "claim_after",
        "return None",
        "pass",
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_run_finds(bug: SeededBug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bug.put_in(monkeypatch)
    with pytest.raises(AssertionError):
        # Where it was last found, and then others: schedules change with the product.
        for seed in (bug.seed, *range(200)):
            run(seed, tmp_path / str(seed))
