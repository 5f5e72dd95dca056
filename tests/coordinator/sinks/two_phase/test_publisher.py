"""A sink's thread: in order, each epoch once, for as long as it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from chandy.coordinator.errors import ConfigError
from chandy.coordinator.permit import Permit, Permits
from chandy.coordinator.sinks.two_phase import publisher as publisher_module
from chandy.coordinator.sinks.two_phase.contract import Batch, Committer, Epoch, Fence, Staged, WriteContext
from chandy.coordinator.sinks.two_phase.errors import (
    OutputError,
    OutputLostError,
    OutputTakenError,
    RewindError,
    TargetUnavailableError,
)
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.storage.checkpoints.manifest import EpochRecord, Handle
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError, FencedError, ObjectMissingError, StoreFailedError
from tests.waiting import DEADLINE, eventually

from .sqlite_sink import SqliteCommitter, SqliteSink

FENCE = Fence("p", "q", "sqlite", "file:///store", 3)


@attrs.define
class NextTrouble:
    """What goes wrong next at a target; each thing once."""

    before: list[Exception] = attrs.field(factory=list)
    """Raised instead of commits."""
    after: list[Exception] = attrs.field(factory=list)
    """Raised after commits, which are done."""
    at_connect: list[Exception] = attrs.field(factory=list)
    while_it_writes: Callable[[], object] = lambda: None
    """Called in an upsert."""
    connections: int = 0
    closed: int = 0


@attrs.frozen
class TroubledSink(SqliteSink):
    """The real one, with an unreliable way to it."""

    trouble: NextTrouble = attrs.field(factory=NextTrouble)

    def recover(self, fence: Fence) -> Committer:
        if self.trouble.at_connect:
            raise self.trouble.at_connect.pop(0)
        self.trouble.connections += 1
        return TroubledCommitter(super().recover(fence), self.trouble)


@attrs.define
class TroubledCommitter(Committer):
    inner: SqliteCommitter
    trouble: NextTrouble

    @property
    def position(self) -> int | None:
        return self.inner.position

    def commit(self, epoch: Epoch) -> None:
        if self.trouble.before:
            raise self.trouble.before.pop(0)
        self.inner.commit(epoch)
        if self.trouble.after:
            raise self.trouble.after.pop(0)

    def upsert(self, batch: Batch) -> None:
        if self.trouble.before:
            raise self.trouble.before.pop(0)
        self.trouble.while_it_writes()
        self.inner.upsert(batch)
        if self.trouble.after:
            raise self.trouble.after.pop(0)

    def close(self) -> None:
        self.trouble.closed += 1


def away() -> TargetUnavailableError:
    return TargetUnavailableError("the target", "it is away", is_understood=True)


@pytest.fixture(autouse=True)
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(publisher_module, "_LONGEST_PAUSE", 0.001)


@pytest.fixture
def sink(tmp_path: Path) -> TroubledSink:
    return TroubledSink(tmp_path / "out.db", ("n",))


@pytest.fixture
def failures() -> list[ChandyError]:
    return []


@pytest.fixture
def publisher(sink: TroubledSink, failures: list[ChandyError]) -> Iterator[Publisher]:
    made = Publisher(sink, FENCE, Unshared(), on_failure=failures.append)
    yield made
    made.close(30)


@pytest.fixture
def epoch(sink: TroubledSink, tmp_path: Path) -> Callable[..., Epoch]:
    store = f"file://{tmp_path}/store/"

    def make(id: int, *rows: int) -> Epoch:
        batch = pa.RecordBatch.from_pydict({"n": pa.array(rows or (id,), pa.int64())})
        staged: Staged = sink.write(iter([batch]), WriteContext(store, "staged/q/", id, 0))
        return Epoch(EpochRecord(id, staged.rows, Handle(staged.files)), store)

    return make


def seen(sink: SqliteSink) -> list[Any]:
    return [n for (n,) in sink.rows()]


Make = Callable[..., Epoch]


def test_epochs_are_published_in_their_order_and_then_it_is_said_so(
    publisher: Publisher, sink: TroubledSink, epoch: Make
) -> None:
    assert publisher.begin(0) is None
    said: list[list[int]] = []
    publisher.publish([epoch(1), epoch(2)], lambda: said.append(seen(sink)))
    publisher.publish([], lambda: said.append(seen(sink)))
    publisher.publish([epoch(5)], lambda: said.append(seen(sink)))
    assert publisher.close(30)
    assert said == [[1, 2], [1, 2], [1, 2, 5]]
    assert sink.trouble.connections == sink.trouble.closed == 1


def test_it_tries_again_for_as_long_as_the_target_is_away(
    publisher: Publisher, sink: TroubledSink, epoch: Make, failures: list[ChandyError]
) -> None:
    publisher.begin(0)
    sink.trouble.before = [away(), StoreFailedError("s", "k", "read", "slow", transient=True), away()]
    sink.trouble.at_connect = [away(), away()]
    publisher.publish([epoch(1), epoch(2)], lambda: None)
    assert publisher.close(30)
    assert seen(sink) == [1, 2]
    assert failures == []
    # Each time by another connection, and no connection is left open.
    assert sink.trouble.connections == sink.trouble.closed == 4


def test_an_error_that_nobody_understands_is_not_tried_for_ever(
    publisher: Publisher,
    sink: TroubledSink,
    epoch: Make,
    failures: list[ChandyError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_PUZZLED_SECONDS", 0.02)
    publisher.begin(0)
    odd = TargetUnavailableError("the target", "a column of a kind that there is not", is_understood=False)
    sink.trouble.before = [odd] * 100_000
    publisher.publish([epoch(1)], lambda: pytest.fail("it was not published"))
    eventually(lambda: len(failures) == 1)
    assert isinstance(failures[0], OutputError)
    assert "a column of a kind that there is not (again and again" in str(failures[0])
    assert not publisher.close(30)


def test_an_error_that_nobody_understands_may_pass(
    publisher: Publisher,
    sink: TroubledSink,
    epoch: Make,
    failures: list[ChandyError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher.begin(0)
    odd = TargetUnavailableError("the target", "odd", is_understood=False)
    sink.trouble.before = [odd, odd]
    publisher.publish_now([epoch(1)], 60)
    # What is understood in between starts the time again.
    monkeypatch.setattr(publisher_module, "_PUZZLED_SECONDS", 0.0)
    monkeypatch.setattr(publisher_module, "_FIRST_PAUSE", 0.0)
    sink.trouble.before = [away() for _ in range(20)]
    publisher.publish([epoch(2)], lambda: None)
    assert publisher.close(30)
    assert (seen(sink), failures) == ([1, 2], [])


def test_a_sink_that_says_that_it_publishes_batches_and_cannot_is_refused_at_the_start(
    tmp_path: Path, failures: list[ChandyError]
) -> None:
    class Unable(SqliteSink):
        def recover(self, fence: Fence) -> Committer:
            return UnableCommitter(super().recover(fence))

    sink = Unable(tmp_path / "out.db", ("n",), publish="batch")
    publisher = Publisher(sink, FENCE, Unshared(), on_failure=failures.append)
    with pytest.raises(ConfigError, match=r"with upsert\(\), because Unable has"):
        publisher.begin(0)


@pytest.mark.parametrize("act", ["rewind", "bring_back"])
def test_a_sink_that_cannot_say_whether_it_would_go_back_is_refused_at_the_start(
    act: str, tmp_path: Path, failures: list[ChandyError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteCommitter, act, lambda committer, epoch: None)
    publisher = Publisher(
        SqliteSink(tmp_path / "out.db", ("n",)), FENCE, Unshared(), on_failure=failures.append
    )
    with pytest.raises(ConfigError, match=rf"{act}\(\) and no check_{act}\(\)"):
        publisher.begin(0)


@attrs.define
class UnableCommitter(Committer):
    inner: Committer

    @property
    def position(self) -> int | None:
        return self.inner.position

    def commit(self, epoch: Epoch) -> None:
        self.inner.commit(epoch)


def test_what_was_published_without_an_answer_is_not_published_twice(
    publisher: Publisher, sink: TroubledSink, epoch: Make
) -> None:
    publisher.begin(0)
    sink.trouble.after = [away()]
    publisher.publish([epoch(1), epoch(2)], lambda: None)
    assert publisher.close(30)
    assert seen(sink) == [1, 2]
    assert sink.trouble.connections == 2


def test_what_the_target_has_already_is_passed_over(
    publisher: Publisher, sink: TroubledSink, epoch: Make
) -> None:
    publisher.begin(0)
    publisher.publish_now([epoch(1), epoch(2)], 0)
    said: list[str] = []
    publisher.publish([epoch(1, 100), epoch(2, 200)], lambda: said.append("done"))
    assert publisher.close(30)
    assert (seen(sink), said) == ([1, 2], ["done"])


def test_a_target_that_has_lost_rows_ends_it_and_is_named(
    publisher: Publisher, sink: TroubledSink, epoch: Make, failures: list[ChandyError]
) -> None:
    publisher.begin(0)
    publisher.publish_now([epoch(4)], 0)
    sink.path.unlink()
    sink.trouble.before = [away()]
    publisher.publish([epoch(5)], lambda: pytest.fail("it was not published"))
    eventually(lambda: len(failures) == 1)
    assert isinstance(failures[0], OutputLostError)
    assert "up to epoch 4" in str(failures[0])
    assert "nothing of it" in str(failures[0])
    assert seen(sink) == []


def test_a_loss_that_the_user_accepts_is_none(publisher: Publisher, sink: TroubledSink, epoch: Make) -> None:
    publisher.begin(0)
    publisher.publish_now([epoch(4)], 0)
    sink.path.unlink()
    publisher.accept_loss(None)
    sink.trouble.before = [away()]
    publisher.publish_now([epoch(5)], 30)
    assert seen(sink) == [5]


@pytest.mark.parametrize(
    "error",
    [
        OutputError("an epoch cannot be published", "numbers", "a letter"),
        FencedError("file:///store", 3, 4, "another driver"),
        StoreFailedError("file:///store", "staged/q/1", "read", "no permission"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_epoch_that_is_refused_ends_it_and_nothing_after_it_is_published(
    publisher: Publisher,
    sink: TroubledSink,
    epoch: Make,
    failures: list[ChandyError],
    error: ChandyError,
) -> None:
    publisher.begin(0)
    publisher.publish_now([epoch(1)], 0)
    sink.trouble.before = [error]
    never: Callable[[], None] = lambda: pytest.fail("it was not published")  # noqa: E731
    publisher.publish([epoch(2), epoch(3)], never)
    publisher.publish([epoch(4)], never)
    eventually(lambda: failures == [error])
    publisher.publish([epoch(5)], never)
    assert not publisher.close(30), "not all of it is published"
    assert seen(sink) == [1]
    assert failures == [error]


def test_an_error_that_a_sink_has_not_translated_gets_a_type_and_names_the_sink(
    publisher: Publisher, sink: TroubledSink, epoch: Make, failures: list[ChandyError]
) -> None:
    sink.trouble.at_connect = [KeyError("port")]
    with pytest.raises(OutputError, match=r"sink 'sqlite' of query 'q' .* SQLite .* KeyError: 'port'"):
        publisher.begin(30)
    publisher.begin(0)
    sink.trouble.before = [ValueError("bad row")]
    with pytest.raises(OutputError, match="ValueError: bad row") as caught:
        publisher.publish_now([epoch(1)], 30)
    assert isinstance(caught.value.__cause__, ValueError)
    sink.trouble.before = [ValueError("bad row")]
    publisher.publish([epoch(1)], lambda: pytest.fail("it was not published"))
    eventually(lambda: len(failures) == 1)
    assert isinstance(failures[0], OutputError)


def test_a_start_waits_for_a_target_only_so_long(
    publisher: Publisher, sink: TroubledSink, epoch: Make
) -> None:
    sink.path.with_name("away").touch()
    with pytest.raises(TargetUnavailableError, match="is not available"):
        publisher.begin(0.01)
    sink.path.with_name("away").unlink()
    sink.trouble.at_connect = [away(), away()]
    assert publisher.begin(30) is None
    sink.path.with_name("away").touch()
    with pytest.raises(TargetUnavailableError):
        publisher.publish_now([epoch(1)], 0.01)
    sink.path.with_name("away").unlink()
    publisher.publish_now([epoch(1)], 0)
    assert seen(sink) == [1]


def test_closing_does_not_wait_for_a_target_that_stays_away(
    publisher: Publisher, sink: TroubledSink, epoch: Make, failures: list[ChandyError]
) -> None:
    publisher.begin(0)
    sink.path.with_name("away").touch()
    publisher.publish([epoch(1)], lambda: pytest.fail("it was not published"))
    assert not publisher.close(0)
    eventually(lambda: not any(thread.name == "chandy-publish-sqlite" for thread in threading.enumerate()))
    assert sink.trouble.connections == sink.trouble.closed == 1
    # The next life finds it as it was.
    sink.path.with_name("away").unlink()
    assert seen(sink) == failures == []


def test_closing_publishes_first_what_was_given(
    publisher: Publisher, sink: TroubledSink, epoch: Make
) -> None:
    publisher.begin(0)
    sink.trouble.before = [away() for _ in range(5)]
    publisher.publish([epoch(id) for id in range(1, 20)], lambda: None)
    assert publisher.close(30)
    assert seen(sink) == list(range(1, 20))


def test_closing_before_anything_was_published_closes_the_connection(
    publisher: Publisher, sink: TroubledSink
) -> None:
    publisher.begin(0)
    assert publisher.close(0)
    assert sink.trouble.closed == 1
    assert publisher.close(0)


def test_a_target_that_cannot_take_rows_back_says_so(publisher: Publisher, epoch: Make) -> None:
    publisher.begin(0)
    publisher.publish_now([epoch(4)], 0)
    with pytest.raises(RewindError, match="up to epoch 4 cannot be taken back to 2"):
        publisher.rewind(2, 0)


def test_a_life_that_has_taken_an_output_over_does_not_take_it_back(
    sink: TroubledSink, epoch: Callable[..., Epoch], tmp_path: Path
) -> None:
    """Of another storage's pipeline, after which a third one has taken it over in the meantime."""
    failures: list[ChandyError] = []
    stores = [f"file://{tmp_path}/{name}/" for name in "ab"]
    first, second = (
        Publisher(
            sink,
            Fence("p", "q", sink.uid, own, 1),
            Unshared(),
            on_failure=failures.append,
            permits=Permits(Permit(taken_output={f"q/{sink.uid}": f"{other}@1"})),
        )
        for own, other in (stores, stores[::-1])
    )
    first.begin(0)
    second.begin(0)
    sink.trouble.before = [away()]
    with pytest.raises(OutputTakenError):
        first.publish_now([epoch(1)], 30)
    assert seen(sink) == []


def test_a_pipeline_whose_store_is_reached_in_another_way_has_its_output_still(sink: TroubledSink) -> None:
    for generation, options in enumerate(
        ("", "?region=eu-central-1", "?profile=p&region=us-east-1"), start=1
    ):
        fence = Fence("p", "q", sink.uid, f"s3://bucket/p{options}", generation, may_take_over=False)
        Publisher(sink, fence, Unshared(), on_failure=print).begin(0)
    elsewhere = Fence("p", "q", sink.uid, "s3://bucket/p?endpoint=http://h:9000", 4, may_take_over=False)
    with pytest.raises(OutputTakenError):
        Publisher(sink, elsewhere, Unshared(), on_failure=print).begin(0)


# --- batches that are published at once ---------------------------------------------------------------------


@pytest.fixture
def batch(sink: TroubledSink, tmp_path: Path) -> Callable[..., Batch]:
    store = f"file://{tmp_path}/store/"

    def make(number: int, *rows: int) -> Batch:
        data = pa.RecordBatch.from_pydict({"n": pa.array(rows, pa.int64())})
        staged: Staged = sink.write(iter([data]), WriteContext(store, "staged/q/", number, 0))
        return Batch(number, staged.rows, staged.files, store)

    return make


MakeBatch = Callable[..., Batch]


class BatchPublisher:
    """Of a publisher whose sink upserts."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> TroubledSink:
        return TroubledSink(tmp_path / "out.db", ("n",), publish="batch")


def never(seconds: float) -> bool:
    return False


class TestBatches(BatchPublisher):
    def test_a_batch_is_published_when_it_returns_and_leaves_the_position(
        self, publisher: Publisher, sink: TroubledSink, batch: MakeBatch
    ) -> None:
        publisher.begin(0)
        assert publisher.upsert(batch(0, 1, 2), never)
        assert seen(sink) == [1, 2]
        assert sink.recover(FENCE).position is None

    def test_it_waits_for_as_long_as_the_target_is_away(
        self, publisher: Publisher, sink: TroubledSink, batch: MakeBatch, failures: list[ChandyError]
    ) -> None:
        publisher.begin(0)
        sink.trouble.before = [away() for _ in range(3)]
        sink.trouble.after = [away()]
        sink.trouble.at_connect = [away()]
        assert publisher.upsert(batch(0, 1, 2), never)
        assert seen(sink) == [1, 2]
        assert failures == []
        assert sink.trouble.connections == 5
        assert publisher.close(30)
        assert sink.trouble.closed == 5

    def test_it_gives_up_when_the_batch_is_not_wanted_any_more(
        self, publisher: Publisher, sink: TroubledSink, batch: MakeBatch, failures: list[ChandyError]
    ) -> None:
        publisher.begin(0)
        sink.path.with_name("away").touch()
        asked: list[float] = []

        def is_over(seconds: float) -> bool:
            asked.append(seconds)
            return len(asked) > 4

        assert not publisher.upsert(batch(0, 1), is_over)
        sink.path.with_name("away").unlink()
        assert seen(sink) == failures == []
        # It is asked before each attempt, and waits in between.
        assert asked[::2] == [0, 0, 0]
        assert all(seconds > 0 for seconds in asked[1::2])

    def test_no_batch_of_a_run_that_is_over_comes_after_one_of_the_next(
        self, publisher: Publisher, sink: TroubledSink, batch: MakeBatch
    ) -> None:
        publisher.begin(0)
        asked = threading.Event()
        stale: list[bool] = []

        def is_over(seconds: float) -> bool:
            asked.set()
            return True

        def run_another() -> None:
            sink.trouble.while_it_writes = lambda: None
            threads[0].start()
            assert not asked.wait(0.2), "it was asked, and might write later"

        threads = [threading.Thread(target=lambda: stale.append(publisher.upsert(batch(0, 7), is_over)))]
        sink.trouble.while_it_writes = run_another
        assert publisher.upsert(batch(0, 1), never)
        threads[0].join(DEADLINE)
        assert stale == [False]
        assert seen(sink) == [1]

    @pytest.mark.parametrize(
        "error",
        [
            OutputError("rows cannot be published", "numbers", "a letter"),
            FencedError("file:///store", 3, 4, "another driver"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_what_the_target_refuses_fails_the_pipeline(
        self,
        publisher: Publisher,
        sink: TroubledSink,
        batch: MakeBatch,
        failures: list[ChandyError],
        error: ChandyError,
    ) -> None:
        publisher.begin(0)
        sink.trouble.before = [error]
        with pytest.raises(type(error)):
            publisher.upsert(batch(0, 1), never)
        assert failures == [error]
        assert seen(sink) == []

    def test_staged_rows_that_are_missing_fail_the_batch_alone(
        self, publisher: Publisher, batch: MakeBatch, failures: list[ChandyError]
    ) -> None:
        publisher.begin(0)
        lost = batch(0, 1)
        Path(lost.root.removeprefix("file://"), lost.files[0].key).unlink()
        with pytest.raises(ObjectMissingError):
            publisher.upsert(lost, never)
        assert failures == []

    def test_a_target_that_has_lost_rows_is_noticed_by_the_next_batch(
        self, publisher: Publisher, sink: TroubledSink, batch: MakeBatch, epoch: Make
    ) -> None:
        publisher.begin(0)
        publisher.publish_now([epoch(4)], 0)
        sink.path.unlink()
        sink.trouble.before = [away()]
        with pytest.raises(OutputLostError, match="nothing of it"):
            publisher.upsert(batch(0, 1), never)


def test_a_sink_that_cannot_upsert_says_so(publisher: Publisher, failures: list[ChandyError]) -> None:
    class Plain(TroubledCommitter):
        upsert = Committer.upsert

    publisher.begin(0)
    assert isinstance(publisher._committer, TroubledCommitter)
    publisher._committer = Plain(publisher._committer.inner, publisher._committer.trouble)
    with pytest.raises(OutputError, match="has a committer that can upsert"):
        publisher.upsert(Batch(0, 1, (), "file:///nowhere"), never)
    assert len(failures) == 1
