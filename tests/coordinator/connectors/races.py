"""What a sink must do when lives of a pipeline meet at its target, as processes or within one step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from chandy.coordinator.sinks.two_phase.errors import TargetUnavailableError
from chandy.coordinator.sinks.two_phase.staged import StagedRows
from chandy.storage.errors import FencedError
from chandy.testing import SinkConformance, SinkPipeline, SinkTarget

from ...effort import rounds
from .publisher_lives import check_lives, rows_of, rows_up_to

T = TypeVar("T")


def in_a_thread(step: Callable[[], T]) -> T:
    """Run a step while a client waits for rows: its own thread may not call it again."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(step).result()


def within_the_next_commits(monkeypatch: pytest.MonkeyPatch, steps: list[Callable[[], object]]) -> None:
    """Have a step run in each commit that follows: it has looked at the target's record, and has not published."""

    def disturbed(rows: StagedRows) -> Iterator[bytes]:
        yield from files(rows)
        if steps:
            in_a_thread(steps.pop(0))

    files = StagedRows.files
    monkeypatch.setattr(StagedRows, "files", disturbed)


class LivesConformance(SinkConformance):
    """Lives that are processes of their own. A subclass has the fixture ``target``."""

    rounds: ClassVar[int] = rounds(3, full=20)
    """Lives that are killed or frozen."""
    locks: ClassVar[bool] = False
    """Whether a life that is frozen may hold a lock of the target."""

    # Where it needs no server, it needs as much of the machine.
    @pytest.mark.server
    def test_lives_that_are_killed_or_frozen_at_random_moments_publish_each_epoch_once(
        self, target: SinkTarget, pipeline: SinkPipeline, tmp_path: Path
    ) -> None:
        position = check_lives(pipeline, self.rounds, tmp_path / "log", locks=self.locks)
        assert sorted(target.rows()) == rows_up_to(position)


class RaceConformance(LivesConformance):
    """Lives that meet within one step. A subclass has the fixture ``target``."""

    @pytest.mark.parametrize("published", [None, 1])
    def test_a_life_that_is_overtaken_within_its_commit_publishes_nothing(
        self,
        target: SinkTarget,
        pipeline: SinkPipeline,
        monkeypatch: pytest.MonkeyPatch,
        published: int | None,
    ) -> None:
        zombie = pipeline.recover(1)
        if published:
            zombie.commit(pipeline.epoch(published, [(1, "a")]))
        successors = []
        within_the_next_commits(monkeypatch, [lambda: successors.append(pipeline.recover(2))])
        with pytest.raises(FencedError):
            zombie.commit(pipeline.epoch(2, [(2, "zombie")]))
        assert [one.position for one in successors] == [published]
        successors[0].commit(pipeline.epoch(2, [(2, "b")]))
        assert sorted(target.rows()) == ([(1, "a"), (2, "b")] if published else [(2, "b")])

    def test_a_life_whose_successor_has_published_the_same_epoch_publishes_nothing(
        self, target: SinkTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zombie = pipeline.recover(1)
        within_the_next_commits(
            monkeypatch, [lambda: pipeline.recover(2).commit(pipeline.epoch(1, [(1, "successor")]))]
        )
        with pytest.raises(FencedError):
            zombie.commit(pipeline.epoch(1, [(1, "zombie")]))
        assert target.rows() == [(1, "successor")]

    def test_a_connection_that_the_same_life_has_given_up_publishes_nothing_twice(
        self, target: SinkTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = pipeline.recover(1)
        within_the_next_commits(
            monkeypatch, [lambda: pipeline.recover(1).commit(pipeline.epoch(1, [(1, "a")]))]
        )
        with pytest.raises(TargetUnavailableError):
            old.commit(pipeline.epoch(1, [(1, "a")]))
        assert target.rows() == [(1, "a")]
        assert pipeline.recover(1).position == 1

    def test_two_sinks_of_one_target_do_not_stand_in_each_others_way(
        self, target: SinkTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committer = pipeline.recover()
        other = SinkPipeline(target.sink("other"), pipeline.store)
        within_the_next_commits(monkeypatch, [lambda: other.recover().commit(other.epoch(4))])
        committer.commit(pipeline.epoch(1, [(1, "a")]))
        assert (pipeline.recover(2).position, other.recover(2).position) == (1, 4)
        assert target.rows() == [(1, "a")]

    def test_lives_that_race_in_threads_publish_each_epoch_once(
        self, target: SinkTarget, pipeline: SinkPipeline
    ) -> None:
        lives, failed = 6, list[BaseException]()
        start = threading.Barrier(lives)

        def live(generation: int) -> None:
            start.wait()
            try:
                committer = pipeline.recover(generation)
                for _ in range(5):
                    number = (committer.position or 0) + 1
                    committer.commit(pipeline.epoch(number, rows_of(number)))
            except (FencedError, TargetUnavailableError):
                pass
            except Exception as error:  # noqa: BLE001 (it is reported by the test's own thread)
                failed.append(error)

        threads = [threading.Thread(target=live, args=(generation,)) for generation in range(1, lives + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        assert sorted(target.rows()) == rows_up_to(pipeline.recover(lives + 1).position)
