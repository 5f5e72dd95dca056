"""A bug that is put into the product, and how it is searched for."""

from __future__ import annotations

import logging
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from ...mutation import mutate
from .. import leaders, runs
from ..events import OF_TARGETS, events_of
from ..promises import MEMORY


@attrs.frozen
class Search:
    """What finds bugs."""

    name: str
    look: Callable[[int], object] = attrs.field(repr=False)
    """Look from a seed on. It raises what it finds."""
    tries: int
    """Seeds in which a bug is found."""


def _lead(seed: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        leaders.run(seed, Path(folder))


class _Failures:
    """Keeps what has failed."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.names.append(report.nodeid)


def _pass(file: str, seed: int) -> None:
    # Worlds do without logs; these tests look at them.
    logging.disable(logging.NOTSET)
    failures = _Failures()
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", file], plugins=[failures])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"{file} cannot be run")
    assert not failures.names, failures.names[0].partition("::")[2]


def tests(file: str) -> Search:
    """Return the search by the tests of a file."""
    return Search(file, partial(_pass, file), 1)


def publish(seed: int) -> None:
    """Run a world whose query has transactional sinks."""
    runs.run(seed, events_of(seed, 12, 0.4, OF_TARGETS), publishes=True)


def after(**kinds: int) -> Search:
    """Return the search by worlds in which nothing else happens than this, each so often in relation."""
    return Search(
        f"worlds of {' and '.join(kinds)}",
        lambda seed: runs.run(seed, events_of(seed, 20, runs.RATE, {"checkpoint": 6} | kinds)),
        60,
    )


def _locally(seed: int) -> None:
    number = seed * runs.LOCAL_EVERY + runs.LOCAL
    kinds = {
        "checkpoint": 6,
        "host_dies": 6,
        "driver_dies": 6,
        "power_fails": 3,
        "user_goes_back": 2,
        "store_fails": 3,
    }
    runs.run(number, events_of(number, runs.EVENTS, runs.RATE, kinds))


def _damaged(seed: int) -> None:
    kinds = {"checkpoint": 6, "object_is_damaged": 6, "host_dies": 6, "driver_dies": 3}
    runs.run(seed, events_of(seed, 20, runs.RATE, kinds))


LOCAL: Final = Search("worlds of one machine", _locally, 60)
DAMAGED: Final = Search("worlds of damaged objects", _damaged, 60)
WORLDS: Final = Search("worlds", lambda seed: runs.run(seed, events_of(seed, runs.EVENTS, runs.RATE)), 40)
PUBLISHING: Final = Search("worlds that publish", publish, 100)
LEADERS: Final = Search("worlds of leaders", _lead, 200)


@attrs.frozen
class Bug:
    """A bug, and what finds it."""

    name: str
    put_in: Callable[[pytest.MonkeyPatch], object] = attrs.field(repr=False)
    """Put it into the product."""
    by: Search = WORLDS
    seed: int = 0
    """It was found from this one: it is tried first."""


def text(name: str, place: str, right: str, wrong: str, **found: Any) -> Bug:
    """Return a bug that is a text in the place of another one.

    Args:
        name: what is wrong.
        place: "module:function" or "module:Class.method", without the name of the package.
        right, wrong: what is there once, and what is to be there.
        found: see ``Bug``.
    """

    def put_in(patch: pytest.MonkeyPatch) -> None:
        module, _, path = place.partition(":")
        owner, _, method = f"chandy.{module}:{path}".rpartition("." if "." in path else ":")
        mutate(patch, pkgutil.resolve_name(owner), method, right, wrong)

    return Bug(name, put_in, **found)
