"""Drivers that are frozen at any moment, and wake while another one has taken over: every row counts once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.savepoint import read_savepoint
from chandy.storage.checkpoints.verification import verify
from tests.coordinator.connectors.postgres_server import PostgresServer
from tests.coordinator.connectors.postgres_server import postgres as postgres

from ..effort import chance, rounds
from ..waiting import eventually
from . import driver_process
from .driver_process import DriverProcess
from .driver_runs import rows
from .driver_runs import runtime as runtime
from .drivers import add_file, answer_of_batches, batches_in, records

pytestmark = [pytest.mark.spark, pytest.mark.server]

ROUNDS = rounds(1, full=100)
TABLE = "frozen_ids"


def processes(driver: DriverProcess, which: str) -> Callable[[int], None]:
    """Return what sends a signal to a driver's Python alone, as under a debugger; to its JVM alone; or to all of it."""
    pid = driver.process.pid
    if which == "all":
        return partial(os.killpg, pid)
    if which == "java":
        pid = next(int(event.split()[1]) for event in driver.events if event.startswith("java "))
    return partial(os.kill, pid)


def tell(driver: DriverProcess, line: str = "") -> None:
    assert driver.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        driver.process.stdin.write(f"{line}\n")
        driver.process.stdin.flush()


def saved(drivers: list[DriverProcess]) -> list[str]:
    """The savepoints that some driver has acknowledged."""
    return [event.split()[1] for one in drivers for event in one.events if event.startswith("saved ")]


def was_stopped(folder: Path) -> bool:
    """Whether the newest driver has recorded that it was stopped on purpose."""
    catalog = Catalog(LocalStore(folder / "store" / "frozen"))
    lease = catalog.lease(catalog.newest_generation())
    return lease is not None and lease.stopped


def check(
    spark: SparkSession, folder: Path, postgres: PostgresServer, files: int, drivers: list[DriverProcess]
) -> None:
    """Every row once in each target, and every acknowledged savepoint whole."""
    expected = Counter(record for file in range(files) for record in records(file))
    table = postgres.execute(f"SELECT id, k, v FROM {TABLE}")
    assert Counter(tuple(row) for row in table) == expected
    published = spark.read.schema("id long, k string, v long").parquet(str(folder / "files")).collect()
    assert Counter(tuple(row) for row in published) == expected
    found = rows(spark, folder / "out")
    # A query that is killed while it plans may take two files as one batch.
    assert found == answer_of_batches(batches_in(found, files))
    for name in saved(drivers):
        store = open_store(str(folder / "savepoints" / name))
        assert verify(store, read_savepoint(store)).ok, name


def test_drivers_that_are_frozen_and_wake_leave_their_successors_output_alone(
    spark: SparkSession, tmp_path: Path, runtime: Path, postgres: PostgresServer
) -> None:
    postgres.execute(f"DROP TABLE IF EXISTS chandy_positions, {TABLE}")
    postgres.execute(f"CREATE TABLE {TABLE} (id bigint, k text, v bigint)")
    (tmp_path / "in").mkdir()
    options = {
        "folder": tmp_path,
        "conninfo": postgres.conninfo(),
        "table": TABLE,
        "takeover_timeout": "2 s",
    }
    files, at = 3, chance("frozen drivers")
    for file in range(files):
        add_file(tmp_path / "in", file)
    with contextlib.ExitStack() as ends:

        def begun() -> DriverProcess:
            return ends.enter_context(driver_process.driver("frozen_driver", tmp_path, runtime, options))

        def stands_by(driver: DriverProcess) -> None:
            eventually(lambda: driver.told("warm"))
            tell(driver)

        made = [begun()]
        stands_by(made[0])
        for number in range(ROUNDS):
            leader = made[-1]
            made.append(begun())
            stands_by(made[-1])
            eventually(lambda: made[-2].told("restored"))
            # From here on at any moment of a restore, a start, a batch, a checkpoint, a savepoint, or a stop.
            time.sleep(at.uniform(0, 6))
            for _ in range(at.randint(0, 2)):
                add_file(tmp_path / "in", files)
                files += 1
            match at.choice(["goes on", "saves", "stops"]):
                case "saves":
                    tell(leader, f"round-{number}")
                case "stops" if not leader.told("started"):
                    pass
                case "stops":
                    tell(leader)
            time.sleep(at.uniform(0, 1.5))
            send = processes(leader, at.choice(["python", "java", "all"]))
            with contextlib.suppress(ProcessLookupError):
                send(signal.SIGSTOP)
            time.sleep(at.uniform(0, 5))
            if at.random() < 0.5:
                eventually(lambda: made[-1].told("restored") or was_stopped(tmp_path))
                time.sleep(at.uniform(0, 4))
            with contextlib.suppress(ProcessLookupError):
                send(signal.SIGCONT)
            # It may have stopped on purpose, or have been frozen for too short a time: then somebody ends it.
            time.sleep(at.uniform(0, 1))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader.process.pid, signal.SIGKILL)
            eventually(lambda: made[-1].told("restored") or was_stopped(tmp_path))
            if not made[-1].told("restored"):
                # Nobody takes over what was stopped on purpose: a driver is started.
                os.killpg(made[-1].process.pid, signal.SIGKILL)
                made.append(begun())
                stands_by(made[-1])
                eventually(lambda: made[-1].told("restored"))
        eventually(lambda: made[-1].told("started"))
        tell(made[-1])
        eventually(lambda: made[-1].told("stopped"))
        check(spark, tmp_path, postgres, files, made)
