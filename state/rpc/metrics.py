"""Where the time of an operator goes: measured in each of its tasks, added up in the state hosts."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Self

import attrs
import pyarrow as pa


@attrs.define
class OperatorMetrics:
    """Sums over the tasks of an operator whose changes were applied. Seconds are of one task at a time."""

    tasks: int = 0
    rows: int = 0
    """That came from Spark."""
    keys: int = 0
    """Whose rows were processed, each counted in every batch that has it."""
    seconds: float = 0.0
    """From the moment when the batch has begun to the moment when its changes are staged."""
    input_seconds: float = 0.0
    """Of these, waiting for rows: what is before the operator in Spark, and the way to Python."""
    state_seconds: float = 0.0
    """Of these, waiting for state hosts, and putting requests together."""
    output_seconds: float = 0.0
    """Of these, waiting for Spark to take the output: what is behind the operator."""
    read_keys: int = 0
    """Keys that had to be read from RocksDB."""
    read_seconds: float = 0.0
    """That RocksDB took to read them, in the state host; part of ``state_seconds``."""
    written_keys: int = 0
    """Changes that were written to RocksDB."""
    write_seconds: float = 0.0
    """That RocksDB took to write them, in the state host, beside the tasks."""

    @property
    def own_seconds(self) -> float:
        """What is left: grouping, the processor, and turning state into values and back."""
        return self.seconds - self.input_seconds - self.state_seconds - self.output_seconds

    def add(self, other: OperatorMetrics) -> None:
        """Add what was spent elsewhere."""
        for field in attrs.fields(OperatorMetrics):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def minus(self, earlier: OperatorMetrics) -> Self:
        """Return what was spent since."""
        names = [field.name for field in attrs.fields(OperatorMetrics)]
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    @contextmanager
    def on_state(self) -> Generator[None]:
        """Count the time inside of the ``with`` as waiting for state hosts."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.state_seconds += time.perf_counter() - begun

    def on_input(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches, counting their rows and the time that they take to come."""
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self.input_seconds += time.perf_counter() - begun
            if batch is None:
                return
            self.rows += batch.num_rows
            yield batch

    def on_output(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches, counting the time until the next one is asked for."""
        for batch in batches:
            handed = time.perf_counter()
            yield batch
            self.output_seconds += time.perf_counter() - handed
