"""Transactional sinks whose driver is killed: every row is published once, whatever it was doing."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.waiting import eventually

from .driver_process import driver
from .drivers import ROWS, add_file, linked, records
from .outputs_driver import sinks
from .test_exactly_once import runtime as runtime

pytestmark = [pytest.mark.spark, pytest.mark.kills]

KILLS = int(os.environ.get("CHANDY_ROUNDS", "4"))
FILES = 12
"""Input files of each life."""


def check_rows(folder: Path, files: int, *, all_of_them: bool) -> None:
    """Check what readers see: right rows, none twice, and at the end all of them."""
    chain, ids = sinks(folder)
    given = [row for file in range(files) for row in records(file)]
    found = Counter(ids.rows())
    assert not found - Counter(given), "rows that were not given, or came twice"
    if all_of_them:
        assert found == Counter(given)
    right: set[tuple[object, ...]] = set()
    state: dict[str, tuple[int, int, int]] = {}
    for number, key, value in given:
        n, total, link = state.get(key, (0, 0, 0))
        state[key] = n + 1, total + value, linked(link, number)
        right.add((key, *state[key]))
    totals = Counter(chain.rows())
    assert set(totals) <= right
    assert set(totals.values()) <= {1}, "rows that came twice"
    if all_of_them:
        assert {(key, *last) for key, last in state.items()} <= set(totals)


@pytest.mark.parametrize("changelog", [True, False], ids=["resumes", "goes back"])
def test_every_row_is_published_once_whenever_the_driver_is_killed(
    tmp_path: Path, runtime: Path, classes: Path, changelog: bool
) -> None:
    (tmp_path / "in").mkdir()
    options = {"folder": tmp_path, "classes": classes, "interval": "300 ms", "changelog": changelog}
    chance = random.Random()
    files = 0
    for _ in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        with driver("outputs_driver", tmp_path, runtime, options) as alive:
            wanted = chance.randrange(1, 3 * FILES)
            eventually(
                lambda alive=alive, wanted=wanted: (  # type: ignore[misc]
                    sum(one.startswith("event") for one in alive.events) >= wanted
                    or not alive.told("restored")
                ),
                f"{wanted} events",
            )
            # Not at the moment of an event alone.
            time.sleep(chance.uniform(0, 0.3))
        check_rows(tmp_path, files, all_of_them=False)
    with driver("outputs_driver", tmp_path, runtime, options) as last:
        eventually(lambda: last.told("resumes") or last.told("replays"), "the last driver")
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.told("stopped"), "the last driver to stop")
    assert files * ROWS == len(sinks(tmp_path)[1].rows())
    check_rows(tmp_path, files, all_of_them=True)
