"""What it costs when a machine joins: bytes that move, and how long batches wait for that."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import attrs
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from chandy.coordinator import AssignedShard, CheckpointCoordinator
from chandy.coordinator.protocol.event_log import LoggedEvent
from chandy.coordinator.protocol.events import BatchAsked
from chandy.state.rpc.messages import AskBatch

from ..report import Options
from .arena import arena
from .figures import Figure, Pair
from .machine import Machine
from .streams import ROWS, Feed, Running, running

PART: Final = "join"
_MB: Final = 1_000_000
SIZES: Final = (100, 1_000)
"""MB of state."""
_VALUE_BYTES: Final = 1_000
_FILL_ROWS: Final = 25_000
_ROWS: Final = 2_000
"""Rows of a batch."""
_CALM_SECONDS: Final = 30.0
"""How long batches are watched that nothing disturbs, with their checkpoints, and those beside an idle newcomer."""
_INTERVAL: Final = "5 s"
_JOIN_SECONDS: Final = 300.0

BEFORE: Final = "batch before, median (s)"
LONGEST_BEFORE: Final = "longest batch before (s)"
LONGEST_IDLE: Final = "longest batch while a machine joins that gets no shards (s)"
STARTING: Final = "longest batch until the state host is there (s)"
LONGEST: Final = "longest batch while shards move (s)"
MOVING: Final = "batch while shards move, median (s)"
BUSY_BEFORE: Final = "processors busy before (%)"
BUSY: Final = "processors busy while shards move (%)"
HELD: Final = "longest wait for a hand-over (s)"
MOVED: Final = "moved (MB)"
SECONDS: Final = "until each machine has its part (s)"
RESTARTS: Final = "restarts"
CHARTED: Final = LONGEST


def contestant(state_mb: int) -> str:
    """Return the name of the contestant with a state of so many MB."""
    return f"{ROWS}, {state_mb:,} MB"


PAIRS: Final = tuple(
    Pair(PART, contestant(size), LONGEST, contestant(size), measure)
    for size in SIZES
    for measure in (LONGEST_BEFORE, LONGEST_IDLE, STARTING)
)


class Filler(StatefulProcessor):
    """Counts the rows of a key, and keeps as many bytes as it is told: text that hardly compresses."""

    def __init__(self, size: int) -> None:
        self._size = size

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", "n long, text string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        held = self._state.get()
        count = (held[0] if held else 0) + sum(1 for _ in rows)
        self._state.update((count, text(f"{key[0]} {count}", self._size)))
        yield Row(k=key[0], n=count)

    def close(self) -> None:
        pass


def text(seed: str, size: int) -> str:
    """Return letters and digits that a seed determines and that hardly compress; ``size`` is a multiple of four."""
    return base64.b64encode(hashlib.shake_128(seed.encode()).digest(size // 4 * 3)).decode()


def measure(options: Options) -> Iterator[Figure]:
    """Let a machine join beside each size of state."""
    for size in SIZES[:1] if options.quick else SIZES:
        if options.takes(f"{PART}: {contestant(size)}"):
            for _ in range(options.repetitions or 1):
                yield from _figures(size)


def _figures(state_mb: int) -> Iterator[Figure]:
    name, keys = contestant(state_mb), state_mb * _MB // _VALUE_BYTES
    with arena(anchored=False) as cluster:
        feed = Feed(cluster)
        feed.fill(keys, _FILL_ROWS)
        stream = running(cluster, ROWS, feed.stream(), interval=_INTERVAL, processor=Filler(_VALUE_BYTES))
        with stream as found:
            coordinator = found.coordinator
            assert coordinator is not None
            watch = _Watch(feed, found, coordinator, keys)
            feed.wait(found)
            found.checkpoint()
            busy = Busy()
            before = watch.batches(for_a_while())
            yield Figure(PART, name, BUSY_BEFORE, busy.percent())
            # One that is drained gets tasks and no shards: what it costs is Spark's and the new processes' alone.
            idle = cluster.add()
            beside = watch.batches(lambda: watch.has_host(idle))
            coordinator.drain(idle.name)
            beside += watch.batches(for_a_while())
            assigned = coordinator.assignment()
            joined, begun = cluster.add(), time.monotonic()
            starting = watch.batches(lambda: watch.has_host(joined))
            busy = Busy()
            moving = watch.batches(lambda: has_its_part(coordinator.assignment(), joined.name))
            yield Figure(PART, name, BUSY, busy.percent())
            yield Figure(PART, name, SECONDS, time.monotonic() - begun)
            yield Figure(PART, name, MOVED, moved_bytes(assigned, coordinator.assignment()) / _MB)
            yield Figure(PART, name, BEFORE, median(before))
            yield Figure(PART, name, LONGEST_BEFORE, max(before))
            yield Figure(PART, name, LONGEST_IDLE, max(beside))
            yield Figure(PART, name, STARTING, max(starting))
            yield Figure(PART, name, MOVING, median(moving))
            yield Figure(PART, name, LONGEST, max(moving))
            yield Figure(PART, name, HELD, watch.longest_wait)
            # One is the start.
            yield Figure(PART, name, RESTARTS, len(coordinator.recoveries) - 1)


@attrs.define
class _Watch:
    """Gives a stream batch after batch, and sees how long each takes."""

    feed: Feed
    running: Running
    coordinator: CheckpointCoordinator
    keys: int
    longest_wait: float = 0.0
    """Seconds that a batch waited for a hand-over, at most."""

    def batches(self, until: Callable[[], bool]) -> list[float]:
        """Give batches until something holds, one at least, and return their seconds.

        Raises:
            TimeoutError: it takes too long.
        """
        end = time.monotonic() + _JOIN_SECONDS
        seconds: list[float] = []
        while not seconds or not until():
            seconds.append(self.feed.batch(self.running, self.keys, _ROWS))
            self.longest_wait = max(
                self.longest_wait, longest_wait(self.coordinator._executor.protocol.events)
            )
            if time.monotonic() > end:
                raise TimeoutError(
                    f"what batches are given for did not come about within {_JOIN_SECONDS:g} s"
                )
        return seconds

    def has_host(self, machine: Machine) -> bool:
        """Return whether a machine has a state host."""
        hosts = self.coordinator._executor.protocol.read(lambda state: list(state.members.hosts.values()))
        return machine.name in {host.machine for host in hosts}


class Busy:
    """How busy this machine's processors are from now on."""

    def __init__(self) -> None:
        self._begun = _processor_times()

    def percent(self) -> float:
        """Return the share of their time that they have worked."""
        return busy_percent(self._begun, _processor_times())


def busy_percent(begun: tuple[int, int], ended: tuple[int, int]) -> float:
    """Return the share of time that processors have worked, from their ticks with and without work."""
    worked, idle = ended[0] - begun[0], ended[1] - begun[1]
    return 100 * worked / max(1, worked + idle)


def _processor_times() -> tuple[int, int]:
    """Return the ticks that all processors have worked, and have not."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + sum(rest), idle + waiting


def for_a_while() -> Callable[[], bool]:
    """Return what holds when as long has passed as batches are watched that nothing disturbs."""
    end = time.monotonic() + _CALM_SECONDS
    return lambda: time.monotonic() > end


def has_its_part(assigned: Collection[AssignedShard], machine: str) -> bool:
    """Return whether a machine has as many shards as any other, give or take one, and none is on its way."""
    owners = [shard.machine for shard in assigned]
    counts = [owners.count(name) for name in {*owners, machine}]
    return max(counts) - min(counts) <= 1 and all(shard.moves_to is None for shard in assigned)


def moved_bytes(before: Iterable[AssignedShard], after: Iterable[AssignedShard]) -> int:
    """Return the bytes of those shards that have another owner now, as they are in the latest checkpoint."""
    owners = {(one.operator, one.shard): one.machine for one in before}
    return sum(one.size or 0 for one in after if owners[one.operator, one.shard] != one.machine)


def longest_wait(events: Iterable[LoggedEvent]) -> float:
    """Return for how many seconds the answer to a host's "begin batch" was held back, at most.

    While a shard is handed over, there is no answer, and the question is put again.
    """
    first: dict[AskBatch, float] = {}
    asked = [(logged.event.ask, logged.at) for logged in events if isinstance(logged.event, BatchAsked)]
    return max((at - first.setdefault(ask, at) for ask, at in asked), default=0.0)
