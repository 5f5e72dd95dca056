"""Whatever happens to drivers, one at a time begins batches, and there is always one in the end."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Final

import attrs
import pytest

from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.leadership import leadership
from chandy.coordinator.leadership.election import Election
from chandy.coordinator.leadership.leadership import Leadership
from chandy.coordinator.leadership.lease import HeldLease
from chandy.storage.checkpoints.catalog import Catalog

from ..effort import examples
from ..mutation import mutate
from .leaders import run

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


@attrs.frozen
class LeadershipBug:
    """Other text in the product, and a seed whose run finds it."""

    name: str
    owner: type | ModuleType
    function: str
    right: str
    wrong: str
    seed: int


BUGS: Final = [
    LeadershipBug(
        "a lease is trusted for ever",
        HeldLease,
        "hold",
        "if self._has_run_out(self._clock()):\n        with",
        "if False:\n        with",
        47,
    ),
    LeadershipBug(
        "a renewal has the number of the one before",
        HeldLease,
        "_write",
        "self._lease.renewals + 1",
        "self._lease.renewals",
        8,
    ),
    LeadershipBug(
        "a leader that is silent is waited for, for ever",
        Election,
        "_may_take_over",
        "return lease is not None and silent >= lease.seconds",
        "return False",
        24,
    ),
    LeadershipBug(
        "a driver that has died between its claim and its record is waited for, for ever",
        Election,
        "_may_take_over",
        "return silent >= (self.patience if lease is None else lease.seconds)",
        "return False",
        8,
    ),
    LeadershipBug(
        "a standby undoes a stop",
        Election,
        "_may_take_over",
        "lease.stopped and self.has_waited",
        "False",
        18,
    ),
    LeadershipBug(
        "whoever came after a stop has waited, too",
        Election,
        "decide",
        "if seen.lease is None or not seen.lease.stopped:",
        "if True:",
        70,
    ),
    LeadershipBug(
        "the JVM of a frozen driver goes on",
        leadership,
        "_end_java",
        "if not java.kill():",
        "if False:",
        36,
    ),
    LeadershipBug(
        "a driver is dead although its JVM lives",
        leadership,
        "_sign",
        "python.lives or java.lives",
        "python.lives",
        3,
    ),
    LeadershipBug(
        "a look from before a gap in the lease counts",
        SuccessorWatch,
        "check",
        "self._looked_at < held_since or ",
        "",
        22,
    ),
    LeadershipBug(
        "a driver steps down before its queries have ended",
        Leadership,
        "step_down_after",
        "if ended(_END_SECONDS):",
        "if ended(_END_SECONDS) or True:",
        75,
    ),
    LeadershipBug(
        "a standby claims whatever has been claimed since",
        Catalog,
        "claim_after",
        "return None",
        "pass",
        3,
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_run_finds(bug: LeadershipBug, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutate(monkeypatch, bug.owner, bug.function, bug.right, bug.wrong)
    with pytest.raises(AssertionError):
        run(bug.seed, tmp_path)
