"""What a start does with a real target: a directory that can take back, or a database that cannot."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.permit import Permit, Permits
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sinks.two_phase.contract import Epoch, Fence, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputAheadError, OutputLostError
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.coordinator.sinks.two_phase.takeover import SinkTakeover
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Generation
from chandy.storage.checkpoints.manifest import EpochRecord, Handle, OutputRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import FencedError, ObjectMissingError, StorageReplacedError

from ....permits import printed
from ...connectors.directory_target import Directory
from .sqlite_sink import SqliteSink


@attrs.define
class Takeovers:
    """The lives of a pipeline with one sink."""

    root: Path
    sink: TwoPhaseSink

    @property
    def store(self) -> LocalStore:
        return LocalStore(self.root / "store")

    def claim(self) -> Generation:
        return Catalog(self.store).take_over("a driver", 0.0)

    def begin(
        self,
        generation: int,
        checkpoint: int | None,
        first_epoch: int,
        *outputs: OutputRecord,
        may_take_back: bool = True,
        permit: Permit | None = None,
    ) -> Publisher:
        """Begin a life with the sink brought to a checkpoint."""
        (publisher,) = begin_all(
            [self],
            generation,
            checkpoint,
            first_epoch,
            *outputs,
            may_take_back=may_take_back,
            permit=permit,
        )
        return publisher

    def epoch(self, id: int) -> Epoch:
        rows = pa.RecordBatch.from_pydict({"k": [id], "v": ["a"]})
        staged = self.sink.write(iter([rows]), WriteContext(self.store.uri, "staged/q/", id, 0))
        return Epoch(EpochRecord(id, staged.rows, Handle(staged.files)), self.store.uri)

    def record(self, published: int | None, epochs: Iterable[Epoch] = ()) -> OutputRecord:
        return OutputRecord(self.sink.uid, tuple(epoch.record for epoch in epochs), published)


def begin_all(
    pipelines: Sequence[Takeovers],
    generation: int,
    checkpoint: int | None,
    first_epoch: int,
    *outputs: OutputRecord,
    may_take_back: bool = True,
    permit: Permit | None = None,
) -> list[Publisher]:
    """Begin a life of a query with several sinks: pipelines with the same root."""
    one = pipelines[0]
    fence = Fence("p", "q", "", one.store.uri, generation)
    publishers = {
        other.sink.uid: Publisher(
            other.sink,
            attrs.evolve(fence, sink=other.sink.uid),
            Unshared(),
            on_failure=lambda error: None,
        )
        for other in pipelines
    }
    SinkTakeover(publishers, fence, Permits(permit or Permit()), first_epoch, may_take_back).run(
        StartPoint(
            SinkOwner(one.store.uri, "p"),
            Unshared(),
            None,
            directory=one.root,
            checkpoint=checkpoint,
            outputs=outputs,
            root=one.store.uri,
        )
    )
    return list(publishers.values())


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path / "out"))


@pytest.fixture
def pipeline(tmp_path: Path, directory: Directory) -> Takeovers:
    return Takeovers(tmp_path, directory.sink())


def test_an_older_checkpoint_takes_back_what_came_after_it(pipeline: Takeovers, directory: Directory) -> None:
    epochs = [pipeline.epoch(number) for number in range(1, 6)]
    pipeline.begin(1, None, 1).publish_now(epochs, 60)
    files = directory.files()
    # Its own epoch was not published when checkpoint 3 was taken.
    successor = pipeline.begin(2, 3, 6, pipeline.record(2, epochs[2:3]))
    assert sorted(directory.rows()) == [(1, "a"), (2, "a"), (3, "a")]
    assert directory.files() == files[:3]
    successor.publish_now([pipeline.epoch(6)], 60)
    assert sorted(directory.rows()) == [(1, "a"), (2, "a"), (3, "a"), (6, "a")]
    # Checkpoint 5 was of rows that are taken back: who goes on behind it would lose them.
    with pytest.raises(OutputAheadError, match="published up to checkpoint or savepoint 6"):
        pipeline.begin(3, 5, 7, pipeline.record(4, epochs[4:]))
    assert sorted(directory.rows()) == [(1, "a"), (2, "a"), (3, "a"), (6, "a")]


def test_a_life_that_went_back_and_ended_at_once_can_be_undone(
    pipeline: Takeovers, directory: Directory
) -> None:
    epochs = [pipeline.epoch(number) for number in range(1, 6)]
    pipeline.begin(1, None, 1).publish_now(epochs, 60)
    files = directory.files()
    # What a checkpoint names as not published was published later, and what came back may have been gone back from.
    for life, checkpoint in enumerate([3, 2, 4, 1, 5], 2):
        published = max(0, checkpoint - 3) or None
        pipeline.begin(life, checkpoint, 6, pipeline.record(published, epochs[published or 0 : checkpoint]))
        assert directory.files() == files[:checkpoint]
    publisher = pipeline.begin(7, 4, 6, pipeline.record(4))
    publisher.publish_now([pipeline.epoch(6)], 60)
    assert sorted(directory.rows()) == [(1, "a"), (2, "a"), (3, "a"), (4, "a"), (6, "a")]
    assert sorted(directory.files()) == sorted(directory.listed())


def test_what_somebody_reads_already_is_not_taken_back(pipeline: Takeovers, directory: Directory) -> None:
    pipeline.begin(1, None, 1).publish_now([pipeline.epoch(1), pipeline.epoch(2)], 60)
    with pytest.raises(OutputAheadError, match="start this query before those"):
        pipeline.begin(2, 1, 3, pipeline.record(1), may_take_back=False)
    assert sorted(directory.rows()) == [(1, "a"), (2, "a")]


def test_who_begins_anew_takes_nothing_back(pipeline: Takeovers, directory: Directory) -> None:
    pipeline.begin(1, None, 1).publish_now([pipeline.epoch(1), pipeline.epoch(2)], 60)
    with pytest.raises(OutputAheadError, match="choose an empty target"):
        pipeline.begin(2, None, 3)
    assert sorted(directory.rows()) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("lives", [1, 3])
def test_a_storage_that_was_wiped_is_called_so(pipeline: Takeovers, directory: Directory, lives: int) -> None:
    for _ in range(lives):
        generation = pipeline.claim().generation
    pipeline.begin(generation, None, 1).publish_now([pipeline.epoch(1)], 60)
    pipeline.store.delete_all(pipeline.store.list())
    claimed = pipeline.claim()
    with pytest.raises((OutputAheadError, StorageReplacedError), match=r"storage .*was wiped"):
        pipeline.begin(claimed.generation, None, claimed.next_id)
    assert directory.rows() == [(1, "a")]


def test_a_driver_that_was_overtaken_is_not_told_of_a_wiped_storage(pipeline: Takeovers) -> None:
    for _ in range(2):
        generation = pipeline.claim().generation
    pipeline.begin(generation, None, 1)
    with pytest.raises(FencedError, match="another driver runs this pipeline"):
        pipeline.begin(generation - 1, None, 1)


def test_a_target_that_cannot_take_back_refuses(tmp_path: Path) -> None:
    pipeline = Takeovers(tmp_path, SqliteSink(tmp_path / "out.db", ("k", "v")))
    pipeline.begin(1, None, 1).publish_now([pipeline.epoch(1), pipeline.epoch(2)], 60)
    with pytest.raises(OutputAheadError, match="restore that one or a newer one") as refused:
        pipeline.begin(2, 1, 3, pipeline.record(1))
    # What is permitted is this repetition, and no later one.
    permit = printed(refused.value)
    assert permit == Permit(repeated_output={"q/sqlite": "2-2"})
    pipeline.begin(3, 1, 3, pipeline.record(1), permit=permit).publish_now([pipeline.epoch(3)], 60)
    with pytest.raises(OutputAheadError, match="2-3"):
        pipeline.begin(4, 1, 4, pipeline.record(1), permit=permit)


@pytest.mark.parametrize("first", [0, 1])
def test_no_sink_takes_anything_back_if_another_one_of_the_query_refuses(
    pipeline: Takeovers, directory: Directory, tmp_path: Path, first: int
) -> None:
    both = [pipeline, Takeovers(tmp_path, SqliteSink(tmp_path / "out.db", ("k", "v")))]
    for one, publisher in zip(both, begin_all(both, 1, None, 1), strict=True):
        publisher.publish_now([one.epoch(1), one.epoch(2)], 60)
    entries = directory.entries()
    in_order = both if first == 0 else both[::-1]
    with pytest.raises(OutputAheadError, match="sink 'sqlite'"):
        begin_all(in_order, 2, 1, 3, *(one.record(1) for one in both))
    assert sorted(directory.rows()) == [(1, "a"), (2, "a")]
    assert directory.entries()[: len(entries)] == entries
    # So the life that goes on from the latest checkpoint finds what it left.
    begin_all(in_order, 3, 2, 3, *(one.record(2) for one in both))
    assert sorted(directory.rows()) == [(1, "a"), (2, "a")]


@pytest.mark.parametrize("first", [0, 1])
def test_no_sink_brings_anything_back_if_another_one_of_the_query_has_lost_its_output(
    tmp_path: Path, first: int
) -> None:
    directories = [Directory(str(tmp_path / name)) for name in ("one", "two")]
    both = [Takeovers(tmp_path, one.sink(uid)) for one, uid in zip(directories, ("one", "two"), strict=True)]
    for one, publisher in zip(both, begin_all(both, 1, None, 1), strict=True):
        publisher.publish_now([one.epoch(number) for number in (1, 2, 3)], 60)
    begin_all(both, 2, 1, 4, *(one.record(1) for one in both))
    shutil.rmtree(tmp_path / "two")
    in_order = both if first == 0 else both[::-1]
    with pytest.raises(OutputLostError, match="sink 'two'"):
        begin_all(in_order, 3, 3, 4, *(one.record(3) for one in both))
    assert directories[0].rows() == [(1, "a")]


def test_a_permit_is_for_one_loss_and_not_for_the_next(pipeline: Takeovers, directory: Directory) -> None:
    def publish(publisher: Publisher, *epochs: int) -> None:
        publisher.publish_now([pipeline.epoch(number) for number in epochs], 60)

    publish(pipeline.begin(1, None, 1), 1, 2)
    shutil.rmtree(directory.path)
    with pytest.raises(OutputLostError) as refused:
        pipeline.begin(2, 2, 3, pipeline.record(2))
    permit = printed(refused.value)
    assert permit == Permit(lost_output={f"q/{pipeline.sink.uid}": "1-2"})
    publish(pipeline.begin(3, 2, 3, pipeline.record(2), permit=permit), 3)
    # A later loss, of what was published since.
    shutil.rmtree(directory.path)
    with pytest.raises(OutputLostError) as refused:
        pipeline.begin(4, 3, 4, pipeline.record(3), permit=permit)
    again = printed(refused.value)
    assert again.covers(Permit(lost_output={f"q/{pipeline.sink.uid}": "1-3"}))
    assert not permit.covers(again)
    publish(pipeline.begin(5, 3, 4, pipeline.record(3), permit=again), 4)
    assert directory.rows() == [(4, "a")]


def test_an_epoch_whose_rows_are_gone_is_given_up_by_a_permit_for_it_alone(
    pipeline: Takeovers, directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.begin(1, None, 1).publish_now([pipeline.epoch(1)], 60)
    left = [pipeline.epoch(2), pipeline.epoch(3)]
    pipeline.store.delete_all([file.key for file in left[0].files])
    with pytest.raises(ObjectMissingError):
        pipeline.begin(2, 3, 4, pipeline.record(1, left))
    permit = printed(caplog.text)
    assert permit == Permit(lost_output={f"q/{pipeline.sink.uid}": "2-2"})
    pipeline.begin(3, 3, 4, pipeline.record(1, left), permit=permit)
    assert sorted(directory.rows()) == [(1, "a"), (3, "a")]
