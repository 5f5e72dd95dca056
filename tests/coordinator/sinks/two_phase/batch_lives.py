"""Lives that publish each batch at once into one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.protocol.limits import MAX_UNPUBLISHED
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sinks.two_phase.contract import Fence, Staged, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.manifest import OutputRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError
from tests.waiting import eventually

from .sqlite_sink import SqliteSink

Row = tuple[int, str]

COLUMNS = ("k", "v")


def write_batch(
    rows: Sequence[Row], sink: TwoPhaseSink, store: str, folder: str, batch: int, attempt: object
) -> tuple[Staged, ...]:
    """As Spark's tasks do it: a partition for each row."""
    staged = []
    for partition, (k, v) in enumerate(rows):
        data = pa.RecordBatch.from_pydict({"k": [k], "v": [v]})
        staged.append(sink.write(iter([data]), WriteContext(store, folder, batch, partition)))
    return tuple(staged)


@attrs.define
class SinkLife:
    """One life of a coordinator, as far as the sinks of its query go."""

    sink: TransactionalSink
    failures: list[ChandyError]
    folder: Path
    published: list[int] = attrs.field(factory=list)
    runs: int = 0
    takes_digests: bool = False

    def begin(
        self, checkpoint: int | None = None, outputs: tuple[OutputRecord, ...] = (), *, last: int = -1
    ) -> Path:
        """Begin a run after a checkpoint with so many batches, and return its directory."""
        directory = self.directory()
        self.sink.begin("q", self.beginning(directory, checkpoint, outputs, last))
        return directory

    def directory(self) -> Path:
        self.runs += 1
        return self.folder / f"run-{id(self)}-{self.runs}"

    def beginning(
        self, directory: Path, checkpoint: int | None, outputs: tuple[OutputRecord, ...], last: int = -1
    ) -> StartPoint:
        return StartPoint(
            SinkOwner(self.store, "p"),
            Unshared(),
            None,
            directory=directory,
            checkpoint=checkpoint,
            batch=last,
            root=self.store,
            outputs=outputs,
        )

    @property
    def store(self) -> str:
        return f"file://{self.folder}/store/"

    def take(self, batch: int, *rows: Row) -> None:
        rows_of_spark: Any = rows
        self.sink.take(rows_of_spark, batch)

    def checkpoint(self, id: int, cut: int) -> tuple[OutputRecord, ...]:
        """Take a checkpoint, and return what its manifest says."""
        self.sink.close_epoch(id, cut)
        outputs = self.sink.pre_commit(id)
        self.sink.commit(id)
        eventually(lambda: id in self.published, f"checkpoint {id} to be published")
        return outputs

    def staged(self) -> list[str]:
        return open_store(self.store).list("")


class SinkRuns:
    """Makes the lives of one pipeline, each of a higher generation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[SinkLife] = []

    def __call__(self, *sinks: TwoPhaseSink, first_epoch: int = 1) -> SinkLife:
        failures: list[ChandyError] = []
        published: list[int] = []
        fence = Fence("p", "q", "", f"file://{self.folder}/store/", len(self.made) + 1)
        sink = TransactionalSink(
            sinks,
            fence,
            Unshared(),
            max_unpublished=MAX_UNPUBLISHED,
            first_epoch=first_epoch,
            on_published=published.append,
            on_failure=failures.append,
            takes_digests=lambda: life.takes_digests,
        )
        life = SinkLife(sink, failures, self.folder, published)
        self.made.append(life)
        return life

    def begun(self, *sinks: TwoPhaseSink, first_epoch: int = 1) -> SinkLife:
        """Return a new life that has begun without anything restored."""
        life = self(*sinks, first_epoch=first_epoch)
        life.begin()
        return life


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[SinkRuns]:
    made = SinkRuns(tmp_path)
    yield made
    for life in made.made:
        life.sink.close()


def rows(sink: SqliteSink) -> list[tuple[object, ...]]:
    return sorted(sink.rows())  # type: ignore[type-var]
