"""Whatever happens to drivers, one at a time begins batches, and there is always one in the end."""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from ..effort import rounds, some
from .leaders import run, switch

SEEDS: Final = rounds(20, full=1000)
HOWS: Final = ("is killed", "freezes", "is cut off")


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
        switch(0, tmp_path / f"well{back}", "nobody", 0, "", standby=standby, back=back)
    cases = list(product(("leader", "shadow"), range(1, 41), HOWS, (True, False)))
    for victim, call, how, back in some(cases, 6):
        folder = tmp_path / f"{victim}{call}{how}{back}"
        try:
            switch(call, folder, victim, call, how, standby=standby, back=back)
        except AssertionError as error:
            raise AssertionError(f"{victim} {how} at call {call}, {back=}: {error}") from error
