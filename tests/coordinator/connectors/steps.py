"""What every sink must do when a life of its pipeline is killed or frozen between any two steps of a commit.

A life is a process. It recovers and publishes, and stops before a step that it was told: there it is killed, or it
stands still until a later life has published, so that nothing depends on time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from chandy.coordinator.sinks.two_phase.contract import Committer, Epoch
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.storage.errors import FencedError
from chandy.testing import Row, SinkPipeline, SinkTarget

from ...effort import IS_FULL, chance
from ...waiting import DEADLINE, freeze
from .boundaries import Boundary

TRIED: Final = None if IS_FULL else 2
"""How many steps are tried, which chance chooses; of those of one kind in a row only the first. None: all."""

_PROCESSES = multiprocessing.get_context("forkserver")
# What takes time is imported once, and lives are forks of the process that has.
_PROCESSES.set_forkserver_preload(
    [
        __name__,
        "chandy.coordinator.connectors.files.sink",
        "confluent_kafka",
        "deltalake",
        "hdfs_native.fsspec",
        "psycopg",
        "pyarrow.parquet",
        "pyiceberg.catalog.sql",
        "pyiceberg.io.pyarrow",
        "pyspark.sql.datasource",
        "s3fs",
    ]
)

# --- in the life ---------------------------------------------------------------------------------------------


@attrs.define
class _Steps:
    """The steps of a life until its first epoch is published. It stops before one of them, once."""

    stop_before: int | None
    test: Connection
    names: list[str] = attrs.field(factory=list)
    is_over: bool = False
    _lock: threading.RLock = attrs.field(factory=threading.RLock)

    def take(self, name: str) -> None:
        # Whoever stops keeps all other threads from their steps.
        with self._lock:
            if self.is_over:
                return
            self.names.append(name)
            if len(self.names) - 1 == self.stop_before:
                self.stop()

    def end(self) -> None:
        """There may be fewer steps than the last time. Then it stops here."""
        with self._lock:
            if not self.is_over:
                self.is_over = True
                if self.stop_before is not None and self.stop_before >= len(self.names):
                    self.stop()

    def stop(self) -> None:
        self.test.send("stopped")
        self.test.recv()


def live(
    pipeline: SinkPipeline,
    boundary: Boundary,
    epochs: Sequence[Epoch],
    stop_before: int | None,
    environment: dict[str, str],
    test: Connection,
) -> None:
    """Publish as the second life does, and tell how it ended and what its steps were."""
    os.environ.clear()
    os.environ.update(environment)
    os.fsync = lambda fd: None
    steps = _Steps(stop_before, test)
    stepped = attrs.evolve(pipeline, sink=boundary(pipeline.sink, steps.take))
    try:
        committer = connected(stepped, 2)
        for epoch in epochs:
            committer = published(stepped, 2, committer, epoch)
            steps.end()
        outcome = "published"
    except FencedError:
        outcome = "fenced"
    test.send((outcome, steps.names))


def connected(pipeline: SinkPipeline, generation: int) -> Committer:
    end = time.monotonic() + DEADLINE
    while True:
        try:
            return pipeline.recover(generation)
        except TargetUnavailableError:
            if time.monotonic() > end:
                raise


def published(pipeline: SinkPipeline, generation: int, committer: Committer, epoch: Epoch) -> Committer:
    """Publish an epoch as the publisher does: again and again, and only if the position says that it must."""
    while (committer.position or 0) < epoch.id:
        try:
            committer.commit(epoch)
        except TargetUnavailableError:
            committer.close()
            committer = connected(pipeline, generation)
    return committer


# --- in the test ---------------------------------------------------------------------------------------------


def rows_of(epoch: int) -> list[Row]:
    return [(epoch * 10 + number, f"epoch {epoch}") for number in range(3)]


def rows_up_to(epoch: int) -> list[Row]:
    return [row for one in range(1, epoch + 1) for row in rows_of(one)]


def epoch_of(pipeline: SinkPipeline, number: int) -> Epoch:
    rows = rows_of(number)
    return pipeline.epoch(number, rows[:1], rows[1:])


@attrs.frozen
class SecondLife:
    """A second life of a pipeline, as a process."""

    process: BaseProcess
    answers: Connection

    @classmethod
    @contextmanager
    def begun(
        cls,
        pipeline: SinkPipeline,
        boundary: Boundary,
        epochs: Sequence[Epoch],
        stop_before: int | None = None,
    ) -> Iterator[SecondLife]:
        here, there = _PROCESSES.Pipe()
        process = _PROCESSES.Process(
            target=live, args=(pipeline, boundary, epochs, stop_before, dict(os.environ), there), daemon=True
        )
        process.start()
        there.close()
        life = cls(process, here)
        try:
            yield life
        finally:
            life.kill()

    def wait_until_it_stops(self) -> None:
        assert self._told() == "stopped"

    def freeze(self) -> None:
        freeze(self._pid)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)
        self.answers.send("go on")

    def end(self) -> tuple[str, list[str]]:
        """Return how it ended, and what its steps were."""
        outcome, names = self._told()
        return outcome, names

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def _told(self) -> Any:
        assert self.answers.poll(DEADLINE), "the life says nothing"
        return self.answers.recv()


@attrs.frozen
class Stepped:
    """A kind of target, and where the steps of those who publish there can be interrupted."""

    make: Callable[[], SinkTarget]
    """Makes a new, empty target."""
    boundary: Boundary
    before: int = 1
    """Epochs that an earlier life publishes. How many there are may decide what the steps are."""
    locks: bool = False
    """Whether a life that is frozen may hold a lock of the target."""

    def begin(self, folder: Path) -> Situation:
        target = self.make()
        pipeline = SinkPipeline(target.sink(), f"file://{folder}/store/flights/")
        first = connected(pipeline, 1)
        for number in range(1, self.before + 1):
            first = published(pipeline, 1, first, epoch_of(pipeline, number))
        first.close()
        epochs = tuple(epoch_of(pipeline, self.before + number) for number in (1, 2))
        return Situation(target, pipeline, epochs)


@attrs.frozen
class Situation:
    """A target to which one life has published, and what the next ones are to publish."""

    target: SinkTarget
    pipeline: SinkPipeline
    epochs: tuple[Epoch, ...]

    def check_whole(self) -> None:
        """Check that readers see whole epochs: all but those to be published, and of these the first or not."""
        first = self.epochs[0].id
        assert sorted(self.target.rows()) in (rows_up_to(first - 1), rows_up_to(first))

    def take_over(self) -> None:
        """Publish what there is to publish, as the third life."""
        self.publish(self.pipeline.recover(3))

    def publish(self, committer: Committer) -> None:
        position = committer.position
        assert position is not None
        assert sorted(self.target.rows()) == rows_up_to(position)
        for epoch in self.epochs:
            committer = published(self.pipeline, 3, committer, epoch)
        committer.close()

    def check_rows(self) -> None:
        assert sorted(self.target.rows()) == rows_up_to(self.epochs[-1].id)

    def check_end(self) -> None:
        self.check_rows()
        self.target.check_nothing_left()


class StepsConformance:
    """The tests. A subclass has the fixture ``stepped``."""

    pytestmark = pytest.mark.server
    """Where it needs no server, it needs as much of the machine."""

    @pytest.fixture
    def stepped(self) -> Stepped:
        raise NotImplementedError

    def test_a_life_that_is_killed_between_any_two_steps_costs_and_repeats_no_row(
        self, stepped: Stepped, tmp_path: Path
    ) -> None:
        def kill(situation: Situation, life: SecondLife) -> None:
            life.kill()
            situation.check_whole()
            situation.take_over()
            situation.check_end()

        before_each_step(stepped, tmp_path, kill)

    def test_a_life_that_is_frozen_between_any_two_steps_publishes_nothing_after_its_successor(
        self, stepped: Stepped, tmp_path: Path
    ) -> None:
        def freeze(situation: Situation, zombie: SecondLife) -> None:
            zombie.freeze()
            situation.check_whole()
            try:
                situation.take_over()
            except TargetUnavailableError:
                assert stepped.locks
                # While it holds the lock, nobody has taken over, and it may publish.
                zombie.thaw()
                zombie.end()
                situation.take_over()
            else:
                situation.check_rows()
                zombie.thaw()
                outcome, _ = zombie.end()
                assert outcome == "fenced"
            situation.check_end()

        before_each_step(stepped, tmp_path, freeze)


def before_each_step(stepped: Stepped, folder: Path, act: Callable[[Situation, SecondLife], None]) -> None:
    """Do something with a life that has stopped before a step, for each step on a target of its own."""
    names = steps_of(stepped, folder / "counted")
    for number in chosen(names):
        try:
            situation = stepped.begin(folder / str(number))
            with SecondLife.begun(situation.pipeline, stepped.boundary, situation.epochs, number) as life:
                life.wait_until_it_stops()
                act(situation, life)
        except BaseException as error:
            error.add_note(f"before step {number} of {names}")
            raise


def chosen(names: Sequence[str]) -> Sequence[int]:
    """Return before which steps to stop; the number after all of them stands for the end."""
    if TRIED is None:
        return range(len(names) + 1)
    kinds = [name.partition(" ")[0] for name in names]
    new = [number for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind]
    return sorted(chance(*kinds).sample([*new, len(names)], min(TRIED, len(new) + 1)))


def steps_of(stepped: Stepped, folder: Path) -> list[str]:
    """Return the steps of a life that recovers and publishes an epoch, and nobody interrupts."""
    situation = stepped.begin(folder)
    with SecondLife.begun(situation.pipeline, stepped.boundary, situation.epochs) as life:
        outcome, names = life.end()
    assert outcome == "published"
    assert names, "no step of the publisher was seen"
    return names
