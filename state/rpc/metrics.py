"""Where the time of an operator goes: measured in each of its tasks, summed in the state hosts."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import attrs
import pyarrow as pa

from ...storage.ids import BatchId


@attrs.define
class OperatorMetrics:
    """Sums over the tasks of an operator whose changes were applied. The seconds of parallel tasks add up."""

    tasks: int = 0
    rows: int = 0
    """Rows that came from Spark."""
    late_rows: int = 0
    """Rows that were dropped because they were late in event time."""
    keys: int = 0
    """Keys whose rows were processed. A key counts once in every batch that has it."""
    dead_letters: int = 0
    """Dead letters that were written, see ``DeadLetters``."""
    seconds: float = 0.0
    """From the beginning of the batch until its changes are staged."""
    input_seconds: float = 0.0
    """The part spent waiting for rows: what comes before the operator in Spark, and the transfer to Python."""
    state_seconds: float = 0.0
    """The part spent building requests to state hosts and waiting for the answers."""
    output_seconds: float = 0.0
    """The part spent waiting for Spark to take the output: what comes after the operator."""
    read_keys: int = 0
    """Keys that had to be read from RocksDB."""
    read_seconds: float = 0.0
    """What RocksDB took to read them, in the state host. Included in ``state_seconds``."""
    written_keys: int = 0
    """Changes that were written to RocksDB."""
    write_seconds: float = 0.0
    """What RocksDB took to write them, in the state host, while tasks run."""
    shards: int = 0
    """Shards that tasks had access to. A shard counts once in every batch."""
    remote_shards: int = 0
    """The shards among them that another executor's state host had."""

    @property
    def own_seconds(self) -> float:
        """The rest: grouping, the processor, and turning stored state into values and back."""
        return self.seconds - self.input_seconds - self.state_seconds - self.output_seconds

    @property
    def parts(self) -> dict[str, float]:
        """``seconds`` by what they were spent on; together they are all of it."""
        return {
            "input": self.input_seconds,
            "own": self.own_seconds,
            "state": self.state_seconds,
            "output": self.output_seconds,
        }

    def add(self, other: OperatorMetrics) -> None:
        """Add another task's or host's metrics."""
        for field in attrs.fields(OperatorMetrics):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def minus(self, earlier: OperatorMetrics) -> Self:
        """Return the difference to an earlier reading."""
        names = [field.name for field in attrs.fields(OperatorMetrics)]
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})

    @contextmanager
    def on_state(self) -> Generator[None]:
        """Count the time inside the ``with`` as waiting for state hosts."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.state_seconds += time.perf_counter() - begun

    def on_input(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches, counting their rows and the time spent waiting for them."""
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self.input_seconds += time.perf_counter() - begun
            if batch is None:
                return
            self.rows += batch.num_rows
            yield batch

    def on_output(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass on batches, counting the time until the next one is requested."""
        for batch in batches:
            handed = time.perf_counter()
            yield batch
            self.output_seconds += time.perf_counter() - handed


@attrs.frozen
class BatchMetrics:
    """What an operator did in one batch: sums over its tasks, whose seconds add up."""

    batch: BatchId
    tasks: OperatorMetrics = attrs.field(factory=OperatorMetrics)
    """What the tasks themselves have measured."""
    shards: int = 0
    updated: int = 0
    """Entries of state that were written, timers and the index of what expires among them."""
    removed: int = 0
    """Entries of state that were removed."""
    memory: int = 0
    """Bytes of the state that state hosts held in memory of their own: used lately, or not in RocksDB yet."""
    commit_seconds: float = 0.0
    """Time to stage the changes and to write them to the changelog."""

    @classmethod
    def sum(cls, parts: Iterable[BatchMetrics]) -> BatchMetrics:
        """Return the sum of the parts of one batch; at least one."""
        some = list(parts)
        tasks = OperatorMetrics()
        for part in some:
            tasks.add(part.tasks)
        return cls(
            batch=some[0].batch,
            tasks=tasks,
            shards=sum(part.shards for part in some),
            updated=sum(part.updated for part in some),
            removed=sum(part.removed for part in some),
            memory=sum(part.memory for part in some),
            commit_seconds=sum(part.commit_seconds for part in some),
        )


@attrs.frozen
class RecentMetrics:
    """The latest batches of an operator on one host, oldest first."""

    batches: tuple[BatchMetrics, ...]
