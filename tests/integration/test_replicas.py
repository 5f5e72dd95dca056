"""Replicas of a state: whatever is killed, the target is the state at a checkpoint, and in the end the newest one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.pins import pinned
from tests.coordinator.connectors.directory_target import Directory
from tests.coordinator.connectors.postgres_server import PostgresServer
from tests.coordinator.connectors.postgres_server import postgres as postgres
from tests.effort import IS_FULL, chance, rounds
from tests.waiting import eventually

from .driver_process import DriverProcess, driver
from .driver_runs import runtime as runtime
from .replica_driver import PIPELINE, add_file, add_keys, check_table

pytestmark = [pytest.mark.spark, pytest.mark.kills]

KILLS = rounds(1, full=20)
FILES = 8
"""Input files of each life."""
COPY_KILLS = rounds(1, full=3)
KEYS_COPIED = 1_000_000 if IS_FULL else 100_000
BATCHES = 16
"""In which they are copied."""


def files_of(folder: Path) -> list[Path]:
    """The files of the log that readers see."""
    return [folder / key for key in Directory(str(folder)).files()] if folder.exists() else []


def check_log(folder: Path) -> int:
    """Apply the changes of each checkpoint to a table, check it after each, and return how many files it has."""
    rows = [row for path in files_of(folder) for row in pq.read_table(path).to_pylist()]
    table: dict[str, int] = {}
    files = 0
    for checkpoint in sorted({row["_checkpoint"] for row in rows}):
        for row in (row for row in rows if row["_checkpoint"] == checkpoint):
            assert (row["_change"] in ("insert", "read")) == (row["k"] not in table), row
            if row["_change"] == "delete":
                del table[row["k"]]
            else:
                table[row["k"]] = row["n"]
        files = check_table(table)
    return files


def has_told(one: DriverProcess, event: str, times: int) -> bool:
    assert one.process.poll() is None, f"the driver has ended after {one.events[-5:]}"
    assert not any(told.startswith("failed") for told in one.events), one.events[-5:]
    return sum(told.startswith(event) for told in one.events) >= times


def run_to_the_end(folder: Path, runtime: Path, options: Mapping[str, Any]) -> DriverProcess:
    """Run a driver until its replica has everything, and it has stopped."""
    with driver("replica_driver", folder, runtime, options) as last:
        eventually(lambda: has_told(last, "runs", 1), "the last driver")
        assert last.process.stdin is not None
        last.process.stdin.close()
        eventually(lambda: last.told("stopped"), "the last driver to stop")
    return last


@pytest.mark.full("integration/test_changes.py::test_a_replica_follows_a_pipeline_over_its_lives")
def test_a_log_of_changes_has_each_change_once_whenever_the_driver_is_killed(
    tmp_path: Path, runtime: Path
) -> None:
    (tmp_path / "in").mkdir()
    options = {"folder": tmp_path, "interval": "300 ms"}
    numbers = chance("replica")
    files = 0
    store = LocalStore(tmp_path / "store" / PIPELINE)
    for _ in range(KILLS):
        for _ in range(FILES):
            add_file(tmp_path / "in", files)
            files += 1
        # Also from a checkpoint behind the newest: the replica follows the pipeline back.
        ids = Catalog(store).list_ids() if store.list() else []
        restore = numbers.choice(ids[-2:]) if ids and numbers.random() < 0.5 else "latest"
        with driver("replica_driver", tmp_path, runtime, {**options, "restore": restore}) as alive:
            wanted = numbers.randrange(1, 5)
            eventually(lambda wanted=wanted: has_told(alive, "replicated", wanted), f"{wanted} steps")  # type: ignore[misc]
            # Not at the moment of an event alone.
            time.sleep(numbers.uniform(0, 0.3))
        assert check_log(tmp_path / "log") <= files
    run_to_the_end(tmp_path, runtime, options)
    assert check_log(tmp_path / "log") == files
    newest = Catalog(store).latest()
    assert newest is not None
    assert max(pinned(store)) <= newest.id


@pytest.mark.server
@pytest.mark.full("integration/test_changes.py::test_a_replica_follows_a_pipeline_over_its_lives")
def test_a_first_copy_that_is_killed_goes_on_in_the_middle(
    tmp_path: Path, runtime: Path, postgres: PostgresServer
) -> None:
    postgres.execute("DROP TABLE IF EXISTS chandy_positions, copy")
    (tmp_path / "in").mkdir()
    add_keys(tmp_path / "in", KEYS_COPIED, files=4)
    options = {"folder": tmp_path, "interval": "300 ms", "large": True, "conninfo": postgres.conninfo()}
    numbers = chance("first copy")
    each = BATCHES // (COPY_KILLS + 1)
    begun_at: list[int] = []

    def batches(one: DriverProcess) -> list[int]:
        return [int(told.split()[1]) for told in one.events if told.startswith("batch")]

    for kill in range(COPY_KILLS):
        wanted = each * kill + numbers.randrange(2, each)
        with driver("replica_driver", tmp_path, runtime, options) as alive:
            eventually(
                lambda wanted=wanted: has_told(alive, "batch", 1) and batches(alive)[-1] >= wanted,  # type: ignore[misc]
                f"batch {wanted} of the first copy",
            )
            assert not any(told.startswith("replicated") for told in alive.events), "the copy was whole"
        begun_at.append(batches(alive)[0])
    last = run_to_the_end(tmp_path, runtime, options)
    begun_at.append(batches(last)[0])
    # No life but the first one began to copy at the beginning.
    assert begun_at == sorted(set(begun_at)), begun_at
    assert begun_at[0] == 0, begun_at
    (found,) = postgres.execute(
        "SELECT count(*), count(DISTINCT k), min(k), max(k), min(n), max(n) FROM copy"
    )
    assert tuple(found) == (KEYS_COPIED, KEYS_COPIED, 0, KEYS_COPIED - 1, 1, 1)
