"""Transactional sinks whose driver or state hosts are killed: every row is published once, whatever they were doing."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from tests.coordinator.sinks.two_phase import sqlite_sink
from tests.effort import chance, rounds
from tests.waiting import DEADLINE, eventually

from .driver_process import DriverProcess, driver
from .driver_runs import local as local
from .driver_runs import runtime as runtime
from .drivers import add_file
from .support import GOES_BACK, RESUMES
from .whole_output import check_rows, wait_for_all_rows

pytestmark = [pytest.mark.spark, pytest.mark.kills]

KILLS = rounds(1, full=20)
FILES = 12
"""Input files of each life."""

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(sqlite_sink)


def check_lives(one: DriverProcess) -> None:
    assert one.process.poll() is None, f"the driver has ended after {one.events[-5:]}"


def has_told(one: DriverProcess, events: int) -> bool:
    """Whether a driver has told of so many batches and checkpoints since it began."""
    check_lives(one)
    return sum(event.startswith("event") for event in one.events) >= events


def wait_for_events(one: DriverProcess, events: int) -> None:
    """Wait until a driver has told of so many batches and checkpoints, for as long as it goes on to tell anything."""
    while not has_told(one, events):
        told = len(one.events)
        eventually(
            lambda told=told: has_told(one, events) or len(one.events) > told, f"more than {told} events"
        )  # type: ignore[misc]


@pytest.mark.parametrize("changelog", [RESUMES, GOES_BACK])
@pytest.mark.full(
    "integration/test_frozen_drivers.py::test_drivers_that_are_frozen_and_wake_leave_their_successors_output_alone"
)
def test_every_row_is_published_once_whenever_the_driver_is_killed(
    tmp_path: Path, runtime: Path, changelog: bool
) -> None:
    (tmp_path / "in").mkdir()
    options = {"folder": tmp_path, "interval": "300 ms", "changelog": changelog}
    numbers = chance("driver", changelog)
    files = 0
    for _ in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        with driver("outputs_driver", tmp_path, runtime, options) as alive:
            wait_for_events(alive, numbers.randrange(1, 3 * FILES))
            # Not at the moment of an event alone.
            time.sleep(numbers.uniform(0, 0.3))
        check_rows(tmp_path, files)
    with driver("outputs_driver", tmp_path, runtime, options) as last:
        eventually(lambda: last.told("resumes") or last.told("replays"), "the last driver")
        wait_for_all_rows(tmp_path, files, lambda: check_lives(last))
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.told("stopped"), "the last driver to stop")
    check_rows(tmp_path, files)


@pytest.mark.full(
    "coordinator/test_supervised_run.py::test_a_signal_stops_the_pipeline_with_a_last_checkpoint"
)
def test_a_program_under_a_scheduler_ends_well_at_a_signal_and_the_next_goes_on(
    tmp_path: Path, runtime: Path
) -> None:
    (tmp_path / "in").mkdir()
    options = {"folder": tmp_path, "interval": "300 ms", "changelog": True}
    numbers, files = chance("signals"), 0
    for _ in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        with driver("outputs_driver", tmp_path, runtime, {**options, "supervised": True}) as alive:
            wait_for_events(alive, numbers.randrange(1, 2 * FILES))
            # Python alone, as a scheduler does it: systemd with KillMode=mixed, and Kubernetes.
            alive.process.send_signal(signal.SIGTERM)
            assert alive.process.wait(DEADLINE) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        check_rows(tmp_path, files)
        latest = Catalog(LocalStore(tmp_path / "store" / "killed")).latest()
        assert latest is not None, "it has taken a last checkpoint"
    with driver("outputs_driver", tmp_path, runtime, options) as last:
        eventually(lambda: last.told("restored"), "the last driver")
        assert last.events[1] == f"restored {latest.id}"
        wait_for_all_rows(tmp_path, files, lambda: check_lives(last))
