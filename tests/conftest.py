"""What all tests share."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from . import java
from .effort import SEED, description, examples, leave_out, skip_all_but

# A test says what is true, not how fast: on a busy machine a limit of time would fail it by chance. The seed alone
# decides about the examples, so none is remembered from an earlier run.
settings.register_profile("chandy", deadline=None, database=None, max_examples=examples(10))
settings.load_profile("chandy")
# It would mix the constants of all modules that are imported into the examples: those of a seed would depend on what
# ran before, and each process would read all sources.
providers._get_local_constants = lambda: providers._local_constants

PLACES = {
    "browser": ("tests/coordinator/monitor/test_browser.py",),
    "cluster": ("tests/cluster/", "tests/kubernetes/", "tests/integration/test_local_cluster.py"),
    "compat": ("tests/integration/", "tests/coordinator/connectors/"),
    "examples": ("tests/integration/", "tests/benchmarks/", "tests/test_package.py"),
    "kills": (
        "tests/integration/",
        "tests/coordinator/execution/",
        "tests/state/host/",
        "tests/test_package.py",
    ),
    "migration": ("tests/integration/",),
    "processes": (
        *("tests/integration/", "tests/coordinator/monitor/test_stored.py", "tests/state/host/"),
        *("tests/test_faces.py", "tests/test_package.py", "tests/benchmarks/"),
    ),
    "server": (
        *("tests/coordinator/connectors/", "tests/integration/", "tests/state/writer/", "tests/storage/"),
        "tests/yarn/",
    ),
    "spark": ("tests/integration/", "tests/coordinator/connectors/test_files.py", "tests/yarn/"),
    "yarn": ("tests/yarn/",),
}
"""Where the tests of a marker are: its target in the Makefile looks nowhere else, for collecting all takes its time."""


SERVERS = {"moto", "rclone", "own_rclone", "s3proxy", "hdfs"}
"""Fixtures, and names of backends, that start a server."""


def pytest_report_header() -> str:
    return description()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    java.configure()
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


def pytest_sessionstart(session: pytest.Session) -> None:
    # Each test sends two messages to the process that counts attempts (pytest-rerunfailures), the second one without an
    # answer. The next test would wait 40 ms for its acknowledgement, by Nagle's algorithm.
    attempts = getattr(session.config, "failures_db", None)
    if isinstance(connection := getattr(attempts, "sock", None), socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def mark_servers(items: list[pytest.Item]) -> None:
    """Mark the tests that need a server."""
    for item in items:
        if isinstance(item, pytest.Function):
            callspec = getattr(item, "callspec", None)
            backend = callspec.params.get("backend") if callspec else None
            if backend in SERVERS or not SERVERS.isdisjoint(item.fixturenames):
                item.add_marker("server")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # First, and before any are deselected by their marks: a conftest of a folder is not asked in each run.
    mark_servers(items)
    for item in items:
        for marker in item.iter_markers():
            places = PLACES.get(marker.name)
            if places and not item.nodeid.startswith(places):
                raise pytest.UsageError(
                    f"no target runs {item.nodeid}: `{marker.name}` is for {', '.join(places)}"
                )
    leave_out(items)
    # Worlds take longest: what comes last ends while other processes have nothing left to do.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/world/"))
    if config.option.markexpr == "compat":
        # Each of them also runs with the newest PySpark.
        found = [
            item
            for item in items
            if item.get_closest_marker("compat") and not item.get_closest_marker("skip")
        ]
        skip_all_but(len(found) // 6, found, "compat")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Thousands of tests and their modules live to the end: looking for garbage among them takes twice the time.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Write to disks without waiting for them: no test cuts the power, and on a busy disk most time goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
