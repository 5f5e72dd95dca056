"""Runs of worlds: from a seed, again without some of their events, and one after the other until there are enough."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from greenlet import GreenletExit
from structlog.stdlib import BoundLogger

from chandy.storage import runtime
from chandy.storage.errors import ChandyError

from .coverage import Coverage
from .events import EVERYTHING, KINDS, WorldEvent, events_of, pairs_of, together
from .promises import MEMORY
from .queries import simulated
from .runtime import SimulatedRuntime
from .scheduler import Scheduler
from .targets import published
from .world import World

EVENTS: Final = 40
"""Of one run."""
RATE: Final = 0.4
"""Events a second, on average."""
ROCKSDB_EVERY: Final = 10
"""One run in so many has the databases of production."""
LOCAL_EVERY, LOCAL = 4, 2
"""One run in so many is on one machine, whose disk has what queries resume after a process was killed; which one."""
PUBLISHING_EVERY, PUBLISHING = 3, 1
"""One run in so many has transactional sinks; which one."""
TOGETHER: Final = 5
"""So many pairs of a run's events are chosen for coming together."""
_PAIRS: Final = pairs_of(KINDS)
_PAIRS_OF_TARGETS: Final = sorted({*pairs_of(EVERYTHING)}.difference(_PAIRS))
LINES: Final = 60
"""Of the log that a failure shows."""


class RunFailedError(AssertionError):
    """A run has found something. It says how to repeat it."""


@contextmanager
def made(seed: object, *, publishes: bool = False) -> Iterator[World]:
    """Make a world, and throw it away at the end."""
    folder = Path(tempfile.mkdtemp(prefix="world-", dir=MEMORY))
    # The same databases as in production take more time, and do the same: ``test_databases``.
    has_rocksdb = isinstance(seed, int) and seed % ROCKSDB_EVERY == 1
    is_local = isinstance(seed, int) and seed % LOCAL_EVERY == LOCAL
    world = World(seed, folder, publishes=publishes, has_rocksdb=has_rocksdb, is_local=is_local)
    with (
        runtime.used(SimulatedRuntime(world.scheduler)),
        published(world),
        simulated(world.open, lambda: world.scheduler.here.machine.boot_id),
        _expected(world.scheduler),
    ):
        try:
            yield world
        finally:
            with _unlogged():
                world.scheduler.end()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _expected(scheduler: Scheduler) -> Iterator[None]:
    """End a run by an error of which the product logs that nobody has expected it."""

    def exception(logger: BoundLogger, event: str, **facts: object) -> None:
        error = sys.exception()
        if scheduler.current is not None and not isinstance(
            error, ChandyError | OSError | GreenletExit | None
        ):
            scheduler.failures.append((scheduler.current, error))
        logger.error(event, error=repr(error), **facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundLogger, "exception", exception)
        yield


def run(
    seed: object, events: Sequence[WorldEvent], coverage: Coverage | None = None, *, publishes: bool = False
) -> World:
    """Run a world, in which a query has transactional sinks or not.

    Raises:
        AssertionError: it has found something.
    """
    with made(seed, publishes=publishes) as world:
        world.run(events)
    if coverage is not None:
        coverage.runs += 1
        coverage.steps += world.scheduler.steps
        coverage.seconds += world.scheduler.now
        coverage.completed += len(world.promises.announced)
        coverage.drivers += len(world.drivers)
        coverage.decided.update(world.promises.met)
        met = (one for bucket in world.buckets.values() for one in bucket.met)
        coverage.add(world.met, Counter(f"{operation} {trouble.name}" for operation, trouble in met))
    return world


def smaller(events: Sequence[WorldEvent], fails: Callable[[Sequence[WorldEvent]], bool]) -> list[WorldEvent]:
    """Return fewer events with which a run still fails: half of them are taken out, then a quarter, and so on."""
    left, size = list(events), max(1, len(events) // 2)
    while True:
        place = 0
        while place < len(left):
            without = left[:place] + left[place + size :]
            if fails(without):
                left = without
            else:
                place += size
        if size == 1:
            return left
        size //= 2


def drawn(seed: int, number: int, *, publishes: bool) -> list[WorldEvent]:
    """Return the events of a run: random ones, and some pairs of kinds that follow each other closely."""
    events = events_of(seed, number - 2 * TOGETHER, RATE, EVERYTHING if publishes else KINDS)
    events += together(seed, chosen_pairs(seed, publishes=publishes), events[-1].at)
    return sorted(events, key=lambda event: event.at)


def chosen_pairs(seed: int, *, publishes: bool) -> list[tuple[str, str]]:
    """Return the kinds that come together in a run. Seeds that follow each other have all pairs in turn."""
    pairs = _PAIRS_OF_TARGETS if publishes else _PAIRS
    publishing = (seed + PUBLISHING_EVERY - 1 - PUBLISHING) // PUBLISHING_EVERY
    first = publishing if publishes else seed - publishing
    return [pairs[(first * TOGETHER + number) % len(pairs)] for number in range(TOGETHER)]


def find(seed: int, number: int = EVENTS, coverage: Coverage | None = None) -> None:
    """Run a world from a seed; if it finds something, make its events fewer, and say what is left.

    Raises:
        RunFailedError: it has found something.
    """
    publishes = seed % PUBLISHING_EVERY == PUBLISHING
    events = drawn(seed, number, publishes=publishes)
    try:
        run(seed, events, coverage, publishes=publishes)
    except Exception as error:
        raise RunFailedError(_shown(seed, events, error, publishes=publishes)) from error


def find_in(seeds: Iterator[int], steps: int, coverage: Coverage, tell: Callable[[str], object]) -> None:
    """Run worlds, one after the other, until they have taken so many steps.

    Raises:
        RunFailedError: one has found something.
    """
    told = 0
    while coverage.steps < steps:
        find(next(seeds), coverage=coverage)
        if coverage.steps >= told + 1_000_000:
            told = coverage.steps
            tell(f"{coverage.runs:,} runs, {coverage.steps:,} steps")


def _shown(seed: int, events: Sequence[WorldEvent], error: Exception, *, publishes: bool) -> str:
    kind = type(error)

    def fails(some: Sequence[WorldEvent]) -> bool:
        try:
            run(seed, some, publishes=publishes)
        except Exception as found:  # noqa: BLE001 (another error is another failure)
            return type(found) is kind
        return False

    left = smaller(events, fails)
    lines: deque[str] = deque(maxlen=LINES)
    try:
        with _logged(lines):
            run(seed, left, publishes=publishes)
    except Exception as found:  # noqa: BLE001 (it is the one that is shown)
        error = found
    happened = "\n".join(map(str, left))
    log = "\n".join(lines)
    return (
        f"seed {seed}: {type(error).__name__}: {error}\n"
        f"--- {len(left)} of its {len(events)} events are enough:\n{happened}\n"
        f"--- the end of the log:\n{log}\n"
        f"--- again: make simulate SEED={seed} STEPS=1"
    )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Log nothing: threads that are thrown away have nothing to say."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)


@contextmanager
def _logged(lines: deque[str]) -> Iterator[None]:
    """Keep what is logged, with its simulated time and process."""

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{runtime.monotonic():9.3f} {record.getMessage()[:400]}")

    root, handler, level, disabled = (
        logging.getLogger(),
        Keeping(),
        logging.getLogger().level,
        logging.root.manager.disable,
    )
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.disable(logging.NOTSET)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.removeHandler(handler)
