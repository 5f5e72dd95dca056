"""One Spark session for all integration tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chandy import Permit
from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart

from ..spark_settings import LOCAL
from .support import Events, Make


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two local threads; tests change its settings by ``settings`` only."""
    # Workers would otherwise run whatever python3 is first on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("chandy-tests")
        .config(map=LOCAL)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        # Snapshots of state are uploaded in the background: often, so that tests meet them.
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
        .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def settings(spark: SparkSession) -> Iterator[dict[str, str]]:
    """Settings of the session: ``settings[key] = value`` sets one, and the test's end takes it back."""
    changed = _Settings(spark)
    yield changed
    changed.undo()


class _Settings(dict[str, str]):
    def __init__(self, spark: SparkSession) -> None:
        super().__init__()
        self._spark = spark
        self._before: dict[str, str | None] = {}

    def __setitem__(self, key: str, value: str) -> None:
        self._before.setdefault(key, self._spark.conf.get(key, None))
        self._spark.conf.set(key, value)
        super().__setitem__(key, value)

    def undo(self) -> None:
        for key, value in self._before.items():
            if value is None:
                self._spark.conf.unset(key)
            else:
                self._spark.conf.set(key, value)


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Iterator[Make]:
    """Makes coordinators on one storage; stops those that a test leaves running."""
    made: list[CheckpointCoordinator] = []

    def new(
        pipeline: str = "p",
        *,
        storage: str = "store",
        restore: str | int = "latest",
        permit: Permit | None = None,
        **config: Any,
    ) -> CheckpointCoordinator:
        chosen = CheckpointConfig(**{"interval": None, "restart": NoRestart()} | config)
        made.append(
            CheckpointCoordinator(
                spark,
                pipeline=pipeline,
                storage=str(tmp_path / storage),
                config=chosen,
                restore=restore,
                permit=permit,
            )
        )
        return made[-1]

    yield new
    for coordinator in made:
        coordinator.stop(timeout="1 s", checkpoint=False)


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path / "in")
