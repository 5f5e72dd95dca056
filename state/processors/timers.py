"""The timers of an operator's keys, stored by key and by time.

Each key has a hidden value with a list of its timers, and each timer has an empty value under an ordered key. The
invariant: a timer is in the list of its key exactly if it has an entry under the ordered keys, in whatever mode the
operator runs.

As in Spark (found by experiment on 4.3), a timer is due when its time is not after that of the batch. The timers that
are due after all rows of a batch have been processed fire in this batch, including those registered in it. Handlers do
not change which timers fire: a timer that a handler registers waits for the next batch even if it is due, and a timer
that a handler deletes still fires. A timer is removed after its handler, so ``listTimers`` still shows it.

PySpark leaves the order open. Here timers fire shard by shard, in each shard by time and then by the bytes of their
key, and ``listTimers`` is in order of time. Timers of one time mode do not fire while an operator runs in another.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import numpy as np

from ..format import keyspace
from ..operators.task_state import TaskState
from ..operators.time_mode import TimeMode
from .variable import CurrentKey, StateUse, no_key

_MODES: Final = {
    TimeMode.PROCESSING: (keyspace.PROCESSING_TIMERS, f"{keyspace.HIDDEN}processing timers"),
    TimeMode.EVENT: (keyspace.EVENT_TIMERS, f"{keyspace.HIDDEN}event timers"),
}
_DOING: Final = {
    "registerTimer": "register timer",
    "deleteTimer": "deleting timer",
    "listTimers": "listing timers",
}
"""What PySpark says after "Error" of each call."""
_INT64: Final = np.dtype("<i8")
_BITS: Final = 63


class Timers:
    """The timers of the current key, and those of all keys that are due."""

    def __init__(self, mode: TimeMode, name: str, current: CurrentKey) -> None:
        self._mode = mode
        self._operator = name
        self._current = current
        self._index, hidden = _MODES.get(mode, (b"", ""))
        self._prefix = keyspace.value_prefix(hidden)
        self._until = 0
        self._held: list[bytes | None] | None = None
        self._now: dict[int, set[int]] = {}
        self._due: dict[int, set[tuple[int, bytes]]] = {}
        self._gone: set[tuple[int, bytes]] = set()

    def begin(self, until_ms: int) -> None:
        """Begin a batch in which timers up to ``until_ms`` are due."""
        self._until = until_ms

    # --- for the engine, from key to key ----------------------------------------------------------------------

    def chunk(self) -> None:
        """Begin another chunk of keys; their timers are fetched when the first key uses its timers."""
        self._held, self._now = None, {}

    def flush(self) -> None:
        """Put the changes of the timers of the chunk's keys.

        A key may be entered as often as it has timers, so this is done once for each key, when the chunk is done.
        """
        held, touched = self._held or [], self._now
        self.chunk()
        changed = [
            (index, before, now)
            for index, now in touched.items()
            if (before := set(times_of(held[index]))) != now
        ]
        # Lists may be too large. If one is refused, nothing of these keys may be left among the timers that are due.
        for index, _, now in changed:
            self._current.index = index
            self._current.put(self._prefix + self._current.key, listed(now))
        for index, before, now in changed:
            self._current.index = index
            self._put(self._current.key, before, now)
        self._current.index = -1

    def _put(self, key: bytes, before: set[int], now: set[int]) -> None:
        for time in now - before:
            self._current.put(keyspace.timed_key(self._index, time, key), b"")
            if time <= self._until:
                self._due.setdefault(self._current.shard, set()).add((time, key))
                self._gone.discard((time, key))
        for time in before - now:
            self._current.put(keyspace.timed_key(self._index, time, key), None)
            if time <= self._until:
                self._due.setdefault(self._current.shard, set()).discard((time, key))
                self._gone.add((time, key))

    def due(self, state: TaskState) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """Yield each shard with timers that are due now, and these timers as pairs of time and key, in order."""
        if self._mode is TimeMode.NONE:
            return
        new, gone = self._due, self._gone
        self._due, self._gone = {}, set()
        found = {shard: set(timers) for shard, timers in new.items()}
        for entries in list(state.scan(*keyspace.due(self._index, self._until))):
            for shard, key in zip(entries.shards.tolist(), entries.keys.to_pylist(), strict=True):
                timer = keyspace.split_timed(key)
                if timer not in gone:
                    found.setdefault(shard, set()).add(timer)
        for shard in sorted(found):
            if found[shard]:
                yield shard, sorted(found[shard])

    # --- for the processor ----------------------------------------------------------------------------------

    def register(self, time_ms: int) -> None:
        """Register a timer of the current key; registering it twice has no effect.

        Raises:
            StateUseError: the operator runs in a time mode without timers, or no key is being processed.
        """
        self._open("registerTimer").add(_checked(time_ms))

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the current key; nothing happens if there is none.

        Raises:
            StateUseError: as for ``register``.
        """
        self._open("deleteTimer").discard(_checked(time_ms))

    def list(self) -> Iterator[int]:
        """Return the current key's timers in order of time, as they are when the first is taken.

        Raises:
            StateUseError: as for ``register``.
        """
        self._open("listTimers")
        return chain.from_iterable(sorted(self._open(call)) for call in ("listTimers",))

    def _open(self, call: str) -> set[int]:
        if self._mode is TimeMode.NONE:
            raise StateUse(
                f"Error {_DOING[call]}: {call} of operator {self._operator!r} cannot be used",
                "time mode 'ProcessingTime' or 'EventTime'",
                repr(self._mode.value),
                "give time_mode where the operator is defined",
            )
        if self._current.index < 0:
            raise no_key(f"the timers of operator {self._operator!r}", _DOING[call])
        now = self._now.get(self._current.index)
        if now is None:
            if self._held is None:
                self._held = self._current.fetch_chunk(self._prefix)
            now = self._now[self._current.index] = set(times_of(self._held[self._current.index]))
        return now


def hidden_list(index: bytes) -> bytes:
    """Return the prefix of the keys under which a shard has the list of a key's timers.

    Args:
        index: the prefix of the ordered keys of these timers: ``PROCESSING_TIMERS`` or ``EVENT_TIMERS``.
    """
    return next(keyspace.value_prefix(hidden) for prefix, hidden in _MODES.values() if prefix == index)


def listed(times: Iterable[int]) -> bytes | None:
    """Return the list of a key's timers as it is stored; None if there are none."""
    return np.array(sorted(times), _INT64).tobytes() or None


def times_of(data: bytes | None) -> Iterable[int]:
    """Return the timers in a stored list."""
    if data is None:
        return ()
    times: list[int] = np.frombuffer(data, _INT64).tolist()
    return times


def _checked(time_ms: int) -> int:
    time = operator.index(time_ms)
    if not -(1 << _BITS) <= time < (1 << _BITS):
        raise ValueError(f"{time} is no time in milliseconds, because it needs more than 64 bits")
    return time
