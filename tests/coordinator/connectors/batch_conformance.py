"""What every sink that can publish batches at once must do, on its real target: tests inherit ``BatchConformance``."""

from __future__ import annotations

from pathlib import Path

import pytest

from chandy.storage.errors import FencedError

from .conformance import Pipeline, Target
from .races import within_the_next_commits


class BatchConformance:
    """The tests. A subclass has the fixture ``target``, whose sinks upsert by ``k`` with ``publish="batch"``."""

    @pytest.fixture
    def target(self) -> Target:
        raise NotImplementedError

    @pytest.fixture
    def pipeline(self, target: Target, tmp_path: Path) -> Pipeline:
        return Pipeline(target.sink(), f"file://{tmp_path}/store/flights/")

    def test_a_batch_is_visible_before_any_epoch_is_and_leaves_the_position(
        self, target: Target, pipeline: Pipeline
    ) -> None:
        committer = pipeline.recover()
        committer.upsert(pipeline.batch(0, (1, "a"), (2, "b")))
        assert sorted(target.rows()) == [(1, "a"), (2, "b")]
        assert committer.position is None
        committer.commit(pipeline.epoch(1))
        committer.upsert(pipeline.batch(1, (3, "c")))
        assert committer.position == 1
        committer.close()
        assert pipeline.recover(2).position == 1
        assert sorted(target.rows()) == [(1, "a"), (2, "b"), (3, "c")]

    def test_a_batch_may_come_again_and_what_comes_last_stays(
        self, target: Target, pipeline: Pipeline
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
        self, target: Target, pipeline: Pipeline, published: int | None
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

    def test_a_life_that_is_overtaken_within_its_batch_publishes_nothing(
        self, target: Target, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zombie = pipeline.recover(1)
        zombie.upsert(pipeline.batch(0, (1, "a")))
        within_the_next_commits(monkeypatch, [lambda: pipeline.recover(2).close()])
        with pytest.raises(FencedError):
            zombie.upsert(pipeline.batch(1, (1, "zombie"), (2, "zombie")))
        assert target.rows() == [(1, "a")]
        zombie.close()

    def test_a_batch_that_the_same_life_has_sent_again_by_another_connection_comes_last(
        self, target: Target, pipeline: Pipeline
    ) -> None:
        old = pipeline.recover(1)
        old.upsert(pipeline.batch(0, (1, "a")))
        old.close()
        again = pipeline.recover(1)
        again.upsert(pipeline.batch(0, (1, "b")))
        assert target.rows() == [(1, "b")]
        again.close()
