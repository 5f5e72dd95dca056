"""Transactional sinks whose driver or state hosts are killed: every row is published once, whatever they were doing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointedQuery
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from tests.coordinator.sinks.two_phase import sqlite_sink
from tests.effort import chance, rounds, sampled
from tests.waiting import DEADLINE, eventually

from .driver_process import Driver, driver
from .driver_runs import coordinate, hosts
from .driver_runs import local as local
from .driver_runs import runtime as runtime
from .drivers import INPUT, ROWS, add_file, chained
from .outputs_driver import sinks
from .support import GOES_BACK, RESUMES
from .whole_output import check_rows, wait_for_all_rows

pytestmark = [pytest.mark.spark, pytest.mark.kills]

KILLS = rounds(1, full=20)
FILES = 12
"""Input files of each life."""

# A worker of Spark cannot import test code.
cloudpickle.register_pickle_by_value(sqlite_sink)


def check_lives(one: Driver) -> None:
    assert one.process.poll() is None, f"the driver has ended after {one.events[-5:]}"


def has_told(one: Driver, events: int) -> bool:
    """Whether a driver has told of so many batches and checkpoints since it began."""
    check_lives(one)
    return sum(event.startswith("event") for event in one.events) >= events


def wait_for_events(one: Driver, events: int) -> None:
    """Wait until a driver has told of so many batches and checkpoints, for as long as it goes on to tell anything."""
    while not has_told(one, events):
        told = len(one.events)
        eventually(
            lambda told=told: has_told(one, events) or len(one.events) > told, f"more than {told} events"
        )  # type: ignore[misc]


@pytest.mark.parametrize("changelog", sampled([RESUMES, GOES_BACK], 1))
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


@pytest.mark.parametrize("changelog", sampled([GOES_BACK, RESUMES], 1))
@pytest.mark.full(
    "integration/test_exactly_once.py::test_state_hosts_killed_at_random_batches_take_nothing_with_them"
)
def test_every_row_is_published_once_whenever_a_state_host_is_killed(
    spark: SparkSession, tmp_path: Path, local: Path, changelog: bool
) -> None:
    (tmp_path / "in").mkdir()
    numbers = chance("hosts", changelog)
    chain, ids = sinks(tmp_path)
    files = 0
    queries: list[CheckpointedQuery] = []

    def check() -> None:
        for query in queries:
            assert query.exception() is None, query.exception()

    def is_there(rows: int) -> bool:
        check()
        return ids.count() >= rows and bool(hosts(local))

    with coordinate(
        spark, tmp_path, interval="300 ms", attempts=9 * KILLS, changelog=changelog
    ) as coordinator:
        rows = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        state = chained(coordinator, spark, tmp_path / "in")
        queries.append(coordinator.start(state.writeStream, sink=chain, name="chained"))
        queries.append(coordinator.start(rows.writeStream, sink=ids, name="ids"))
        # A host that is killed before it has state is missed by nobody: then it takes one more.
        for kill in range(3 * KILLS):
            if kill >= KILLS and len(coordinator.recoveries) > KILLS // 2:
                break
            for _ in range(FILES // 3):
                add_file(tmp_path / "in", files)
                files += 1
            wanted = numbers.randrange((files - FILES // 3) * ROWS, files * ROWS)
            eventually(lambda wanted=wanted: is_there(wanted), f"{wanted} rows and a host")  # type: ignore[misc]
            # Not at the moment of an epoch alone.
            time.sleep(numbers.uniform(0, 0.3))
            for host in hosts(local):
                os.kill(host, signal.SIGKILL)
            check_rows(tmp_path, files)
        wait_for_all_rows(tmp_path, files, check)
        assert len(coordinator.recoveries) > KILLS // 2
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
