"""What every transactional sink must do, tried on its real target: the tests of a connector inherit these classes.

They need pytest, and no Spark.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from ..storage.checkpoints.manifest import EpochRecord, Handle
from ..storage.errors import FencedError
from ..storage.ids import CheckpointId
from .sinks.two_phase.contract import (
    Batch,
    Committer,
    Epoch,
    Fence,
    Staged,
    TwoPhaseSink,
    WriteContext,
)
from .sinks.two_phase.errors import OutputTakenError
from .sinks.two_phase.limits import Limits
from .sinks.two_phase.writing import Writing

Row = tuple[int, str]
"""A key and a value."""
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])


class SinkTarget(abc.ABC):
    """An empty place to publish to, on a real server or disk."""

    @abc.abstractmethod
    def sink(self, uid: str = "out") -> TwoPhaseSink:
        """Return a sink that appends rows of ``SCHEMA``."""

    @abc.abstractmethod
    def rows(self) -> list[Row]:
        """Return what a reader sees, in any order."""

    def check_nothing_left(self) -> None:  # noqa: B027 (not every target can tell)
        """Check that no publisher has left something behind that holds readers up, or that they may see."""


@attrs.frozen
class SinkPipeline:
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
            OutputError: they are refused in time: nothing of the batch is staged.
        """
        return self.staged(id, rows, {self.sink.uid: self.sink.check(rows.schema) or Limits()})

    def staged(self, id: int, rows: pa.Table, limits: Mapping[str, Limits] | None = None) -> Epoch:
        """Stage any rows within limits, and close them."""
        context = WriteContext(self.store, "staged/delays/", id, 0)
        staged = Writing((self.sink,), limits or {}).write(iter(rows.to_batches()), context)
        return Epoch(EpochRecord(CheckpointId(id), staged.rows, Handle(staged.files)), self.store)

    def epoch(self, id: int, *batches: Iterable[Row]) -> Epoch:
        """Write batches, one partition each, and close them."""
        staged = [self._write(number, rows) for number, rows in enumerate(batches)]
        note = self.sink.pre_commit(id, staged)
        files = tuple(file for one in staged for file in one.files)
        return Epoch(
            EpochRecord(CheckpointId(id), sum(one.rows for one in staged), Handle(files), note), self.store
        )


def _at(committer: Committer) -> int | None:
    return committer.position


def _record_batch(rows: Iterable[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows], schema=SCHEMA)


class _OnTarget:
    """Tests whose subclasses have the fixture ``target``."""

    @pytest.fixture
    def target(self) -> SinkTarget:
        raise NotImplementedError

    @pytest.fixture
    def pipeline(self, target: SinkTarget, tmp_path: Path) -> SinkPipeline:
        return SinkPipeline(target.sink(), f"file://{tmp_path}/store/flights/")


class SinkConformance(_OnTarget):
    """The tests of a sink that appends. A subclass has the fixture ``target``."""

    def test_what_is_written_is_not_visible_before_the_commit(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        pipeline.sink.check(SCHEMA)
        committer = pipeline.recover()
        assert _at(committer) is None
        epoch = pipeline.epoch(3, [(1, "a"), (2, "b")], [(3, "c")])
        assert target.rows() == []
        committer.commit(epoch)
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]
        assert _at(committer) == 3
        committer.close()

    def test_another_life_finds_what_was_published(self, target: SinkTarget, pipeline: SinkPipeline) -> None:
        first = pipeline.recover(1)
        first.commit(pipeline.epoch(1, [(1, "a")]))
        first.commit(pipeline.epoch(4, [(2, "b")]))
        first.close()
        second = pipeline.recover(2)
        assert second.position == 4
        second.commit(pipeline.epoch(5, [(3, "c")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]
        second.close()

    def test_an_epoch_without_rows_moves_the_position(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, [(1, "a")]))
        committer.commit(pipeline.epoch(2))
        committer.close()
        assert pipeline.recover(2).position == 2
        assert target.rows() == [(1, "a")]

    def test_an_earlier_life_publishes_nothing_any_more(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
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

    def test_an_earlier_life_cannot_come_back(self, pipeline: SinkPipeline) -> None:
        pipeline.recover(2).close()
        with pytest.raises(FencedError):
            pipeline.recover(1)

    def test_the_same_life_may_connect_again(self, target: SinkTarget, pipeline: SinkPipeline) -> None:
        first = pipeline.recover(1)
        first.commit(pipeline.epoch(1, [(1, "a")]))
        again = pipeline.recover(1)
        assert again.position == 1
        again.commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]
        again.close()
        first.close()

    def test_another_pipeline_of_the_name_is_refused_unless_it_takes_over(
        self, target: SinkTarget, pipeline: SinkPipeline, tmp_path: Path
    ) -> None:
        first = pipeline.recover(5)
        first.commit(pipeline.epoch(7, [(1, "a")]))
        first.close()
        other = SinkPipeline(pipeline.sink, f"file://{tmp_path}/elsewhere/flights/")
        with pytest.raises(OutputTakenError, match=f"{tmp_path}/store/flights/"):
            other.recover(1)
        successor = other.recover(1, may_take_over=True)
        assert successor.position == 7
        successor.commit(other.epoch(8, [(2, "b")]))
        with pytest.raises(OutputTakenError):
            pipeline.recover(6)
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]

    def test_two_sinks_with_one_target_have_a_position_each(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        other = attrs.evolve(pipeline, sink=target.sink("other"))
        one, two = pipeline.recover(1), other.recover(1)
        one.commit(pipeline.epoch(5, [(1, "a")]))
        assert two.position is None
        two.commit(other.epoch(2, [(2, "b")]))
        assert (pipeline.recover(1).position, other.recover(1).position) == (5, 2)
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]

    def test_many_rows_and_odd_values_arrive_as_they_were(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        odd = ["", "\\N", "\t", "\n", '"', "'", "\\", "é", "\U0001f600", "null", "a" * 10_000]
        rows = [(number, odd[number % len(odd)]) for number in range(5_000)]
        committer = pipeline.recover()
        committer.commit(pipeline.epoch(1, rows[:2_000], rows[2_000:]))
        assert sorted(target.rows()) == rows
        committer.close()


class BatchConformance(_OnTarget):
    """The tests of a sink that publishes each batch at once.

    A subclass has the fixture ``target``, whose sinks upsert by ``k`` with ``publish="batch"``.
    """

    def test_a_batch_is_visible_before_any_epoch_is_and_leaves_the_position(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        committer = pipeline.recover()
        committer.upsert(pipeline.batch(0, (1, "a"), (2, "b")))
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]
        assert _at(committer) is None
        committer.commit(pipeline.epoch(1))
        committer.upsert(pipeline.batch(1, (3, "c")))
        assert _at(committer) == 1
        committer.close()
        assert pipeline.recover(2).position == 1
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]

    def test_a_batch_may_come_again_and_what_comes_last_stays(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        committer = pipeline.recover()
        batch = pipeline.batch(0, (1, "a"), (2, "b"))
        for _ in range(2):
            committer.upsert(batch)
        committer.upsert(pipeline.batch(1, (2, "newer"), (3, "c")))
        # After going back, with other rows.
        committer.upsert(pipeline.batch(0, (1, "again"), (2, "again")))
        assert sorted(target.rows()) == [(1, "again"), (2, "again"), (3, "c")]
        committer.close()

    @pytest.mark.parametrize("published", [None, 1])
    def test_an_earlier_life_publishes_no_batch_any_more(
        self, target: SinkTarget, pipeline: SinkPipeline, published: int | None
    ) -> None:
        zombie = pipeline.recover(1)
        zombie.upsert(pipeline.batch(0, (1, "a")))
        if published is not None:
            zombie.commit(pipeline.epoch(published))
        successor = pipeline.recover(2)
        with pytest.raises(FencedError):
            zombie.upsert(pipeline.batch(1, (1, "zombie"), (2, "zombie")))
        assert target.rows() == [(1, "a")]
        successor.upsert(pipeline.batch(1, (1, "b")))
        assert target.rows() == [(1, "b")]
        assert successor.position == published
        zombie.close()
        successor.close()

    def test_a_batch_that_the_same_life_has_sent_again_by_another_connection_comes_last(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        old = pipeline.recover(1)
        old.upsert(pipeline.batch(0, (1, "a")))
        old.close()
        again = pipeline.recover(1)
        again.upsert(pipeline.batch(0, (1, "b")))
        assert target.rows() == [(1, "b")]
        again.close()
