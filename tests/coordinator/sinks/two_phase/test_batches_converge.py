"""Batches that are published at once, whatever happens: what has committed is in the table, and the table converges.

The sink of a query, with its records and its publisher, is the real one, and so is the database. Around it, a model
plans batches over rows that are numbered, commits them, takes checkpoints, goes back to one, goes on behind it, and
kills drivers, who go on as zombies. The value of a key is the number of its last row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.sinks.two_phase import publisher, staging
from chandy.coordinator.sinks.two_phase.contract import Batch, Committer, Fence
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.storage.checkpoints.manifest import OutputRecord
from chandy.storage.errors import FencedError

from ....effort import chance, examples
from .batch_lives import COLUMNS, Life, Lives, write_batch
from .sqlite_sink import SqliteSink

STEPS = 30
KEYS = 5


class DriverKilled(BaseException):
    """The driver dies in the middle of what it does."""


@attrs.define(eq=False)
class Trouble:
    """What happens at the next upsert."""

    kind: str = ""


@attrs.frozen
class TroubledSink(SqliteSink):
    trouble: Trouble = attrs.field(factory=Trouble)

    def recover(self, fence: Fence) -> Committer:
        return TroubledCommitter(super().recover(fence), self.trouble)


@attrs.define
class TroubledCommitter(Committer):
    inner: Committer
    trouble: Trouble

    @property
    def position(self) -> int | None:
        return self.inner.position

    def commit(self, epoch: object) -> None:
        self.inner.commit(epoch)  # type: ignore[arg-type]

    def upsert(self, batch: Batch) -> None:
        kind, self.trouble.kind = self.trouble.kind, ""
        if kind == "away":
            raise TargetUnavailableError("the target", "it is away", is_understood=True)
        if kind == "killed before":
            raise DriverKilled
        self.inner.upsert(batch)
        if kind == "killed after":
            raise DriverKilled
        if kind == "no answer":
            raise TargetUnavailableError("the target", "it has not answered", is_understood=True)


@attrs.frozen
class Checkpoint:
    id: int
    batch: int
    end: int
    outputs: tuple[OutputRecord, ...]


NOTHING = Checkpoint(0, -1, 0, ())


class World:
    """One pipeline and its table."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = chance("batches", seed)
        self.sink = TroubledSink(folder / "out.db", COLUMNS, publish="batch")
        self.lives = Lives(folder)
        self.checkpoints = [NOTHING]
        self.next_id = 1
        self.longest = 0
        """How far any batch has come."""
        self.zombies: list[Life] = []
        self.life = self.lives(self.sink)
        self.go_to(NOTHING)

    def go_to(self, checkpoint: Checkpoint) -> None:
        """Begin a run of the current life after a checkpoint."""
        self.directory = self.life.begin(checkpoint.id or None, checkpoint.outputs, last=checkpoint.batch)
        self.base, self.batch, self.end = checkpoint, checkpoint.batch, checkpoint.end
        self.planned: int | None = None

    # --- steps ----------------------------------------------------------------------------------------------

    def run_a_batch(self, trouble: str = "") -> None:
        """Run the next batch, or the one that has not committed; it may be that it does not commit this time."""
        if self.planned is None:
            self.planned = self.end + self.random.randint(1, 4)
        self.longest = max(self.longest, self.planned)
        self.sink.trouble.kind = trouble
        rows = [(number % KEYS, f"{number:06}") for number in range(self.end, self.planned)]
        # Of one batch, each key is given out once.
        self.life.take(self.batch + 1, *dict(rows).items())
        if self.random.random() < 0.8:
            self.batch, self.end, self.planned = self.batch + 1, self.planned, None

    def take_a_checkpoint(self) -> None:
        if self.batch < 0:
            return
        made = Checkpoint(self.next_id, self.batch, self.end, self.life.checkpoint(self.next_id, self.batch))
        self.next_id += 1
        self.checkpoints.append(made)
        self.base = made

    def go_back(self) -> None:
        self.go_to(self.base)

    def kill(self) -> None:
        """Another driver takes over: it goes on behind the checkpoint, or goes back to any."""
        self.zombies.append(self.life)
        self.life = self.lives(self.sink, first_epoch=self.next_id)
        resumes = self.random.random() < 0.5
        if resumes and not self.life.sink.obstacle(self.directory, self.base.batch, self.batch):
            beginning = self.life.beginning(
                self.directory, self.base.id or None, self.base.outputs, self.base.batch
            )
            self.life.sink.resume("q", beginning, self.batch)
            return
        if self.random.random() < 0.3:
            # Those after it do not count any more.
            self.checkpoints = self.checkpoints[: self.random.randint(1, len(self.checkpoints))]
        self.go_to(self.checkpoints[-1])

    def wake_a_zombie(self) -> None:
        if self.zombies:
            before = self.rows()
            with pytest.raises(FencedError):
                self.random.choice(self.zombies).take(99, (0, "zombie"), (1, "zombie"))
            assert self.rows() == before

    def step(self) -> None:
        kind = self.random.choice(
            [
                "",
                "",
                "",
                "away",
                "no answer",
                "killed before",
                "killed after",
                "checkpoint",
                "back",
                "kill",
                "zombie",
            ]
        )
        steps: dict[str, Callable[[], None]] = {
            "checkpoint": self.take_a_checkpoint,
            "back": self.go_back,
            "kill": self.kill,
            "zombie": self.wake_a_zombie,
        }
        try:
            steps.get(kind, lambda: self.run_a_batch(kind))()
        except DriverKilled:
            self.kill()

    # --- what must hold -------------------------------------------------------------------------------------

    def rows(self) -> dict[object, object]:
        return dict(self.sink.rows())  # type: ignore[arg-type]

    def exactly_once(self, end: int) -> dict[object, object]:
        return {number % KEYS: f"{number:06}" for number in range(end)}

    def check(self) -> None:
        """What has committed is in the table, or something newer that was rolled back."""
        found = self.rows()
        for key, value in self.exactly_once(self.end).items():
            assert str(found.get(key, "")) >= str(value), f"key {key} has lost {value}"
        assert self.life.failures == []

    def converge(self) -> None:
        """Run all rows that any batch ever had."""
        while self.end < self.longest:
            self.run_a_batch()
        assert self.rows() == self.exactly_once(self.end)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(staging, "write_batch", write_batch)
    monkeypatch.setattr(publisher, "_FIRST_PAUSE", 0.001)
    yield


def run(folder: Path, seed: int) -> None:
    folder.mkdir()
    world = World(folder, seed)
    try:
        for _ in range(STEPS):
            world.step()
            world.check()
        world.converge()
    finally:
        for life in world.lives.made:
            life.sink.close()


def test_the_table_converges_whatever_happens(tmp_path: Path) -> None:
    for seed in range(examples(3)):
        run(tmp_path / str(seed), seed)


# --- does it find anything? ---------------------------------------------------------------------------------


def commit_a_batch_that_is_not_published(patch: pytest.MonkeyPatch) -> None:
    """Whoever waits for a target gives up and goes on."""
    right = TroubledCommitter.upsert

    def upsert(committer: TroubledCommitter, batch: Batch) -> None:
        try:
            right(committer, batch)
        except TargetUnavailableError:
            return

    patch.setattr(TroubledCommitter, "upsert", upsert)


def let_a_zombie_publish(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("chandy.coordinator.sinks.two_phase.contract.Position.taken_by", lambda self, fence: self)


@pytest.mark.parametrize(
    "bug", [commit_a_batch_that_is_not_published, let_a_zombie_publish], ids=lambda bug: bug.__name__
)
def test_it_finds(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug(monkeypatch)

    def search() -> None:
        for seed in range(300):
            run(tmp_path / str(seed), seed)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        search()
