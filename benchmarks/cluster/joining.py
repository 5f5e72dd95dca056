"""What it costs when a machine joins: bytes that move, and how long batches wait for that."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Collection, Iterable, Iterator
from statistics import median
from typing import Any, Final

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from chandy.coordinator import AssignedShard
from chandy.coordinator.protocol.event_log import LoggedEvent
from chandy.coordinator.protocol.events import BatchAsked
from chandy.state.rpc.messages import AskBatch

from ..report import Options
from .arena import arena
from .figures import Figure, Pair
from .streams import ROWS, Feed, running

PART: Final = "join"
_MB: Final = 1_000_000
SIZES: Final = (100, 1_000)
"""MB of state."""
_VALUE_BYTES: Final = 1_000
_FILL_ROWS: Final = 25_000
_ROWS: Final = 2_000
"""Rows of a batch."""
_CALM: Final = 20
_INTERVAL: Final = "5 s"
_JOIN_SECONDS: Final = 300.0

BEFORE: Final = "batch before, median (s)"
LONGEST_BEFORE: Final = "longest batch before (s)"
LONGEST: Final = "longest batch meanwhile (s)"
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
    for measure in (BEFORE, LONGEST_BEFORE)
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
            feed.wait(found)
            found.checkpoint()
            before = [feed.batch(found, keys, _ROWS) for _ in range(_CALM)]
            assigned = coordinator.assignment()
            joined, begun = cluster.add(), time.monotonic()
            during, waited = [], 0.0
            while not has_its_part(coordinator.assignment(), joined.name):
                during.append(feed.batch(found, keys, _ROWS))
                waited = max(waited, longest_wait(coordinator._executor.machine.events))
                if time.monotonic() - begun > _JOIN_SECONDS:
                    raise TimeoutError(f"{name}: no part of the shards has moved within {_JOIN_SECONDS:g} s")
            yield Figure(PART, name, SECONDS, time.monotonic() - begun)
            yield Figure(PART, name, MOVED, moved_bytes(assigned, coordinator.assignment()) / _MB)
            yield Figure(PART, name, BEFORE, median(before))
            yield Figure(PART, name, LONGEST_BEFORE, max(before))
            yield Figure(PART, name, LONGEST, max(during))
            yield Figure(PART, name, HELD, waited)
            # One is the start.
            yield Figure(PART, name, RESTARTS, len(coordinator.recoveries) - 1)


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
