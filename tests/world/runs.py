"""Runs of worlds: from a seed, again without some of their events, and one after the other until there are enough."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from chandy.storage import runtime

from .coverage import Coverage
from .events import WorldEvent, events_of
from .promises import MEMORY
from .queries import simulated
from .runtime import SimulatedRuntime
from .targets import published
from .world import World

EVENTS: Final = 40
"""Of one run."""
RATE: Final = 0.4
"""Events a second, on average."""
ROCKSDB_EVERY: Final = 10
"""One run in so many has the databases of production."""
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
    world = World(seed, folder, publishes=publishes, has_rocksdb=has_rocksdb)
    with runtime.used(SimulatedRuntime(world.scheduler)), published(world), simulated(world.open):
        try:
            yield world
        finally:
            with _unlogged():
                world.scheduler.end()
            shutil.rmtree(folder, ignore_errors=True)


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


def find(seed: object, number: int = EVENTS, coverage: Coverage | None = None) -> None:
    """Run a world from a seed; if it finds something, make its events fewer, and say what is left.

    Raises:
        RunFailedError: it has found something.
    """
    events = events_of(seed, number, RATE)
    try:
        run(seed, events, coverage)
    except Exception as error:
        raise RunFailedError(_shown(seed, events, error)) from error


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


def _shown(seed: object, events: Sequence[WorldEvent], error: Exception) -> str:
    kind = type(error)

    def fails(some: Sequence[WorldEvent]) -> bool:
        try:
            run(seed, some)
        except Exception as found:  # noqa: BLE001 (another error is another failure)
            return type(found) is kind
        return False

    left = smaller(events, fails)
    lines: deque[str] = deque(maxlen=LINES)
    try:
        with _logged(lines):
            run(seed, left)
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
