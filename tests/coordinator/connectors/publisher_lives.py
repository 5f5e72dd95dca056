"""Lives of a publisher as processes of their own, killed or frozen at random moments; run as a module, it is one."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from chandy.coordinator.sinks.two_phase.contract import Committer, TwoPhaseSink
from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.storage.errors import FencedError
from chandy.testing import Row, SinkPipeline

from ...effort import chance
from ...waiting import DEADLINE, freeze

FENCED = 3
"""The exit code of a life that found a later one."""
ROOT = Path(__file__).parents[3]


def rows_of(epoch: int) -> list[Row]:
    """The rows of an epoch: none for every fourth, so that it can be seen which epochs are there, and how often."""
    return [(epoch * 10 + number, f"epoch {epoch}") for number in range(epoch % 4)]


def rows_up_to(epoch: int | None) -> list[Row]:
    return [row for one in range(1, (epoch or 0) + 1) for row in rows_of(one)]


def publish(pipeline: SinkPipeline, generation: int) -> None:
    """Publish epoch after epoch, as the publisher of a coordinator does, until a later life is there."""
    committer = _recover(pipeline, generation)
    print("recovered", flush=True)
    while True:
        number = (committer.position or 0) + 1
        rows = rows_of(number)
        epoch = pipeline.epoch(number, rows[:1], rows[1:])
        try:
            committer.commit(epoch)
            print("published", flush=True)
        except TargetUnavailableError as error:
            print(error, file=sys.stderr, flush=True)
            committer.close()
            committer = _recover(pipeline, generation)


def _recover(pipeline: SinkPipeline, generation: int) -> Committer:
    while True:
        try:
            return pipeline.recover(generation)
        except TargetUnavailableError as error:
            print("unavailable", flush=True)
            print(error, file=sys.stderr, flush=True)


@attrs.define
class PublisherLife:
    """A process that publishes once it is told to."""

    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, pipeline: SinkPipeline, generation: int, log: Path) -> PublisherLife:
        value = base64.b64encode(pickle.dumps((pipeline.sink, pipeline.store, generation))).decode()
        with log.open("ab") as stream:
            return cls(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, value],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stream,
                    cwd=ROOT,
                )
            )

    def begin(self, holds_a_lock: PublisherLife | None = None) -> None:
        """Let it recover, and wait until it has.

        Args:
            holds_a_lock: a frozen life that may keep everybody else from the target. It wakes once the target is found
                to be unavailable.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        while (line := self.process.stdout.readline()) == b"unavailable\n":
            if holds_a_lock is not None:
                holds_a_lock.wake()
        assert line == b"recovered\n", line

    def wait_until_it_has_published(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == b"published\n", line

    def freeze(self) -> None:
        freeze(self.process.pid)

    def wake(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def thaw(self) -> int:
        """Let it go on, and return its exit code."""
        self.wake()
        return self.process.wait(DEADLINE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def live_and_die(
    pipeline: SinkPipeline, rounds: int, log: Path, longest: float = 0.4, *, locks: bool = False
) -> None:
    """Let one life follow the other. Each is killed at a random moment, or frozen until its successor is there.

    The one that was frozen must find that it is fenced. ``locks``: until it wakes, it may keep its successor waiting.
    The first one publishes an epoch before it may die: on a slow target no life may live long enough.
    """
    with _lives(pipeline, rounds, log) as lives:
        frozen: PublisherLife | None = None
        moments = chance("lives")
        for number, life in enumerate(lives):
            life.begin(frozen if locks else None)
            if number == 0:
                life.wait_until_it_has_published()
            if frozen is not None:
                assert frozen.thaw() == FENCED, log.read_text()[-3000:]
                frozen = None
            time.sleep(moments.uniform(0, longest))
            if moments.random() < 0.5:
                life.kill()
            else:
                life.freeze()
                frozen = life


@contextmanager
def _lives(pipeline: SinkPipeline, rounds: int, log: Path) -> Iterator[Iterator[PublisherLife]]:
    """The lives one after the other; the next one is already started, so that it begins at once."""
    started: list[PublisherLife] = []

    def start(generation: int) -> PublisherLife:
        started.append(PublisherLife.start(pipeline, generation, log))
        return started[-1]

    def one_after_the_other() -> Iterator[PublisherLife]:
        following = start(1)
        for generation in range(2, rounds + 2):
            life, following = following, start(generation)
            yield life

    try:
        yield one_after_the_other()
    finally:
        for life in started:
            life.kill()


def check_lives(pipeline: SinkPipeline, rounds: int, log: Path, *, locks: bool = False) -> int:
    """Let lives follow each other as ``live_and_die``, and return the position that they have come to."""
    live_and_die(pipeline, rounds, log, locks=locks)
    committer = pipeline.recover(rounds + 2)
    position = committer.position
    committer.close()
    assert position is not None, "no life has published anything"
    return position


def main() -> None:
    sink: TwoPhaseSink
    sink, store, generation = pickle.loads(base64.b64decode(sys.argv[1]))
    # What takes time is imported before it is told to begin.
    SinkPipeline(sink, store).epoch(0, [(0, "")])
    sys.stdin.readline()
    try:
        publish(SinkPipeline(sink, store), generation)
    except FencedError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(FENCED)


if __name__ == "__main__":
    main()
