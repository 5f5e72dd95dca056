"""What every transactional sink must do, tried on its real target: a connector's tests inherit ``SinkConformance``."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.sinks.two_phase.contract import (
    Batch,
    Committer,
    Epoch,
    Fence,
    Staged,
    TwoPhaseSink,
    WriteContext,
)
from chandy.coordinator.sinks.two_phase.errors import OutputTakenError
from chandy.coordinator.sinks.two_phase.limits import Limits
from chandy.coordinator.sinks.two_phase.writing import Writing
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.storage.errors import FencedError

Row = tuple[int, str]
"""A key and a value."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])


class Target(abc.ABC):
    """An empty place to publish to, on a real server or disk."""

    @abc.abstractmethod
    def sink(self, uid: str = "out") -> TwoPhaseSink:
        """Return a sink that appends rows of ``SCHEMA``."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """Return what a reader sees, in any order."""

    def check_settled(self) -> None:  # noqa: B027 (not every target can tell)
        """Check that no publisher has left something behind that holds readers up, or that they may see."""


@attrs.frozen
class Pipeline:
    """Stages and publishes as a coordinator does, without Spark."""

    sink: TwoPhaseSink
    store: str
    """URI of its store."""

    def recover(self, generation: int = 1, *, may_take_over: bool = False) -> Committer:
        """Connect as one life."""
        fence = Fence("flights", "delays", self.sink.uid, self.store, generation, may_take_over)
        return self.sink.recover(fence)

    def batch(self, number: int, *rows: Row) -> Batch:
        """Write a batch that is published at once."""
        staged = self._write(number, rows)
        return Batch(number, staged.rows, staged.files, self.store)

    def _write(self, number: int, rows: Iterable[Row]) -> Staged:
        context = WriteContext(self.store, "staged/delays/", number, 0)
        return self.sink.write(iter([_record_batch(rows)]), context)

    def accepted(self, id: int, rows: pa.Table) -> Epoch:
        """Stage any rows as the tasks of a query do, and close them.

        Raises:
            OutputError: They are refused in time: nothing of the batch is staged.
        """
        return self.staged(id, rows, {self.sink.uid: self.sink.check(rows.schema) or Limits()})

    def staged(self, id: int, rows: pa.Table, limits: Mapping[str, Limits] | None = None) -> Epoch:
        """Stage any rows within limits, and close them."""
        context = WriteContext(self.store, "staged/delays/", id, 0)
        staged = Writing((self.sink,), limits or {}).write(iter(rows.to_batches()), context)
        return Epoch(EpochRecord(id, staged.rows, Handle(staged.files)), self.store)

    def epoch(self, id: int, *batches: Iterable[Row]) -> Epoch:
        """Write batches, one partition each, and close them."""
        staged = [self._write(number, rows) for number, rows in enumerate(batches)]
        note = self.sink.pre_commit(id, staged)
        files = tuple(file for one in staged for file in one.files)
        return Epoch(EpochRecord(id, sum(one.rows for one in staged), Handle(files), note), self.store)


def _record_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)


class SinkConformance:
    """The tests. A subclass has the fixture ``target``."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError

    @pytest.fixture
    def pipeline(self, target: Target, tmp_path: Path) -> Pipeline:
        return Pipeline(target.sink(), f"file://{tmp_path}/store/flights/")

    def test_what_is_written_is_not_visible_before_the_commit(
        self, target: Target, pipeline: Pipeline
    ) -> None:
        pipeline.sink.check(SCHEMA)
        committer = pipeline.recover()
        assert committer.position is None
        epoch = pipeline.epoch(3, [(1, "a"), (2, "b")], [(3, "c")])
        assert target.rows() == []
        committer.commit(epoch)
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]
        assert committer.position == 3
        committer.close()

    def test_another_life_finds_what_was_published(self, target: Target, pipeline: Pipeline) -> None:
        first = pipeline.recover(1)
        first.commit(pipeline.epoch(1, [(1, "a")]))
        first.commit(pipeline.epoch(4, [(2, "b")]))
        first.close()
        second = pipeline.recover(2)
        assert second.position == 4
        second.commit(pipeline.epoch(5, [(3, "c")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]
        second.close()

    def test_an_epoch_without_rows_moves_the_position(self, target: Target, pipeline: Pipeline) -> None:
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, [(1, "a")]))
        committer.commit(pipeline.epoch(2))
        committer.close()
        assert pipeline.recover(2).position == 2
        assert target.rows() == [(1, "a")]

    def test_an_earlier_life_publishes_nothing_any_more(self, target: Target, pipeline: Pipeline) -> None:
        zombie = pipeline.recover(1)
        zombie.commit(pipeline.epoch(1, [(1, "a")]))
        successor = pipeline.recover(2)
        with pytest.raises(FencedError):
            zombie.commit(pipeline.epoch(2, [(2, "zombie")]))
        assert successor.position == 1
        successor.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]
        zombie.close()
        successor.close()

    def test_an_earlier_life_cannot_come_back(self, pipeline: Pipeline) -> None:
        pipeline.recover(2).close()
        with pytest.raises(FencedError):
            pipeline.recover(1)

    def test_the_same_life_may_connect_again(self, target: Target, pipeline: Pipeline) -> None:
        first = pipeline.recover(1)
        first.commit(pipeline.epoch(1, [(1, "a")]))
        again = pipeline.recover(1)
        assert again.position == 1
        again.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]
        again.close()
        first.close()

    def test_another_pipeline_of_the_name_is_refused_unless_it_takes_over(
        self, target: Target, pipeline: Pipeline, tmp_path: Path
    ) -> None:
        first = pipeline.recover(5)
        first.commit(pipeline.epoch(7, [(1, "a")]))
        first.close()
        other = Pipeline(pipeline.sink, f"file://{tmp_path}/elsewhere/flights/")
        with pytest.raises(OutputTakenError, match=f"{tmp_path}/store/flights/"):
            other.recover(1)
        successor = other.recover(1, may_take_over=True)
        assert successor.position == 7
        successor.commit(other.epoch(8, [(2, "b")]))
        with pytest.raises(OutputTakenError):
            pipeline.recover(6)
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]

    def test_two_sinks_with_one_target_have_a_position_each(self, target: Target, pipeline: Pipeline) -> None:
        other = attrs.evolve(pipeline, sink=target.sink("other"))
        one, two = pipeline.recover(1), other.recover(1)
        one.commit(pipeline.epoch(5, [(1, "a")]))
        assert two.position is None
        two.commit(other.epoch(2, [(2, "b")]))
        assert (pipeline.recover(1).position, other.recover(1).position) == (5, 2)
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]

    def test_many_rows_and_odd_values_arrive_as_they_were(self, target: Target, pipeline: Pipeline) -> None:
        odd = ["", "\\N", "\t", "\n", '"', "'", "\\", "é", "\U0001f600", "null", "a" * 10_000]
        rows = [(number, odd[number % len(odd)]) for number in range(5_000)]
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, rows[:2_000], rows[2_000:]))
        assert sorted(target.rows()) == rows
        committer.close()
