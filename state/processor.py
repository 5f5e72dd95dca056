"""Runs a PySpark StatefulProcessor, row style, over one task's groups of rows.

States are fetched for many keys in one call before their rows are processed; what changed is collected and is
for the caller to apply, all at once, when the processor has ended without an error.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import attrs
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, TimerValues

from .errors import DeclarationError, ProcessorError
from .grouping import Groups
from .handle import StateHandle
from .rows import SLICE, RowReader

PREFETCH = 20_000
"""State keys that are fetched in one call."""


class StateAccess(Protocol):
    """A task's shards in one batch, as a client of state hosts gives them."""

    def fetch(self, shards: Sequence[int], keys: list[bytes]) -> list[bytes | None]:
        """Return the values of keys; ``shards`` has the shard of each, those of one shard side by side."""
        ...

    def apply(self, shards: Sequence[int], keys: list[bytes], values: list[bytes | None]) -> None:
        """Stage changes, once, at the task's end; None deletes a key."""
        ...


@attrs.define
class Changes:
    """State values that a task changed, as columns; those of one shard side by side."""

    shards: list[int] = attrs.field(factory=list)
    keys: list[bytes] = attrs.field(factory=list)
    values: list[bytes | None] = attrs.field(factory=list)

    def add(self, shard: int, key: bytes, value: bytes | None) -> None:
        """Take note of one change; a value of None removes the key."""
        self.shards.append(shard)
        self.keys.append(key)
        self.values.append(value)


@attrs.define
class ProcessorRun:
    """One run of a processor: ``init``, ``handleInputRows`` for each key, ``close``."""

    processor: StatefulProcessor
    handle: StateHandle
    operator: str
    batch: int
    states: dict[str, str]
    """What the processor declared on the driver."""
    changes: Changes = attrs.field(factory=Changes)
    """What the run has changed so far; to be applied after ``outputs`` has ended."""

    def outputs(self, groups: Groups, reader: RowReader, access: StateAccess) -> Generator[list[Any]]:
        """Run the processor; yield its output rows as it gives them, up to ``SLICE`` at a time.

        ``close`` is called whatever happens, also when the generator is closed before its end.

        Raises:
            ProcessorError: the processor raised.
            DeclarationError: it declared other states than on the driver.
        """
        try:
            self._guarded("init", lambda: self.processor.init(self.handle))
            self.handle.seal()
            if self.handle.declared() != self.states:
                found = f"the driver saw states {sorted(self.states)}, a task {sorted(self.handle.states)}"
                raise DeclarationError(
                    "init", self.operator, f"{found}; init has to declare the same each time"
                )
            yield from self._process(groups, reader, access)
        except BaseException:
            # The first error is the one to tell; what close says after it would hide it.
            with contextlib.suppress(Exception):
                self.processor.close()
            raise
        self._guarded("close", self.processor.close)

    def _process(self, groups: Groups, reader: RowReader, access: StateAccess) -> Iterator[list[Any]]:
        states = list(self.handle.states.values())
        prefixes = [state.prefix for state in states]
        handle_rows = self.processor.handleInputRows
        # What PySpark passes in time mode "none".
        timers = TimerValues(-1, -1)
        all_rows = reader.groups(groups.table, groups.bounds)
        output: list[Any] = []
        step = max(1, PREFETCH // max(1, len(states)))
        for first in range(0, len(groups), step):
            last = min(first + step, len(groups))
            shards = [shard for shard in groups.shards[first:last] for _ in prefixes]
            keys = [prefix + key for key in groups.keys[first:last] for prefix in prefixes]
            held = access.fetch(shards, keys) if keys else []
            at = 0
            for index in range(first, last):
                for offset, state in enumerate(states):
                    state.enter(held[at + offset])
                key, rows = groups.values[index], next(all_rows)
                try:
                    given = handle_rows(key, rows, timers)
                    if given is None:
                        raise TypeError("handleInputRows returned None; it has to return an iterator of rows")
                    results = iter(given)
                    output.extend(islice(results, SLICE - len(output)))
                    while len(output) >= SLICE:
                        yield output
                        output = list(islice(results, SLICE))
                except Exception as error:  # noqa: BLE001 (a processor may raise anything)
                    raise self._failure(f"key {key!r}", error) from None
                for offset, state in enumerate(states):
                    value = state.leave()
                    if value != held[at + offset]:
                        self.changes.add(shards[at + offset], keys[at + offset], value)
                at += len(states)
        if output:
            yield output

    def _guarded(self, where: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 (a processor may raise anything)
            raise self._failure(where, error) from None

    def _failure(self, where: str, error: Exception) -> ProcessorError:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        return ProcessorError(self.operator, self.batch, where, text)
