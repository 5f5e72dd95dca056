"""One Spark session for all integration tests, and one archive of Java classes for the drivers that they start."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from chandy.coordinator import CheckpointConfig, CheckpointCoordinator, NoRestart
from chandy.state.local.locks import locked

from . import drivers
from .support import Events, Make


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two local threads; tests change its settings by ``settings`` only."""
    # Workers would otherwise run whatever python3 is first on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("chandy-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # On two cores, what Java's best code saves a test is less than what compiling it takes.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
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


@pytest.fixture(scope="session")
def classes(pytestconfig: pytest.Config) -> Path:
    """Java classes of a Spark session, archived: a driver starts in half the time. Later runs have it already."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("classes")
    jars = Path(pyspark.__file__).parent / "jars"
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else "java"
    version = subprocess.run([java, "-version"], check=True, capture_output=True).stderr
    # Java passes over an archive that it did not write, or that was written with other jars.
    made_with = f"{jars} {jars.stat().st_mtime_ns} {version!r}"
    path = folder / f"{hashlib.sha256(made_with.encode()).hexdigest()[:16]}.jsa"
    with locked(folder / "lock"):
        if not path.exists():
            new = path.with_suffix(".new")
            subprocess.run(
                [sys.executable, drivers.__file__, "archive", str(new)], check=True, capture_output=True
            )
            new.rename(path)
    return path


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
        pipeline: str = "p", *, storage: str = "store", restore: str | int = "latest", **config: Any
    ) -> CheckpointCoordinator:
        chosen = CheckpointConfig(**{"interval": None, "restart": NoRestart()} | config)
        made.append(
            CheckpointCoordinator(
                spark, pipeline=pipeline, storage=str(tmp_path / storage), config=chosen, restore=restore
            )
        )
        return made[-1]

    yield new
    for coordinator in made:
        coordinator.stop(timeout="1 s", checkpoint=False)


@pytest.fixture
def events(tmp_path: Path) -> Events:
    return Events(tmp_path / "in")
