"""Transactional sinks whose driver is killed: every row is published once, whatever it was doing."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.waiting import eventually

from .drivers import EVENT, ROWS, add_file, linked, records
from .outputs_driver import sinks

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("CHANDY_ROUNDS", "4"))
FILES = 12
"""Input files of each life."""


@attrs.define
class Driver:
    """A driver's process, and the events that it has told so far."""

    process: subprocess.Popen[str]
    events: list[str] = attrs.field(factory=list)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(EVENT):
                self.events.append(line[len(EVENT) :].strip())

    def told(self, event: str) -> bool:
        """Whether an event has come; fails if it cannot come any more."""
        found = any(one.startswith(event) for one in self.events)
        assert found or self.process.poll() is None, f"the driver has ended after {self.events[-5:]}"
        return found


@contextlib.contextmanager
def driver(folder: Path, classes: Path, interval: str, *, changelog: bool) -> Iterator[Driver]:
    options = {"folder": str(folder), "classes": str(classes), "interval": interval, "changelog": changelog}
    environment = {**os.environ, "CHANDY_RUNTIME_DIR": str(folder / "run")}
    with (folder / "driver.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.outputs_driver", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            process_group=0,
        )
    made = Driver(process)
    listener = threading.Thread(target=made.listen)
    listener.start()
    try:
        yield made
    finally:
        # With its JVM and its Python workers.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listener.join(30)


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
    tmp_path: Path, classes: Path, changelog: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "run").mkdir(mode=0o700)
    chance = random.Random()
    files = 0
    for _ in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        with driver(tmp_path, classes, "300 ms", changelog=changelog) as alive:
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
    with driver(tmp_path, classes, "300 ms", changelog=changelog) as last:
        eventually(lambda: last.told("resumes") or last.told("replays"), "the last driver")
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.told("stopped"), "the last driver to stop")
    assert files * ROWS == len(sinks(tmp_path)[1].rows())
    check_rows(tmp_path, files, all_of_them=True)
