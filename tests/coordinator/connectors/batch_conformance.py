"""What a sink that publishes each batch at once does when it is overtaken within a batch; its tests inherit this."""

from __future__ import annotations

import pytest

from chandy.storage.errors import FencedError
from chandy.testing import BatchConformance, SinkPipeline, SinkTarget

from .races import within_the_next_commits


class BatchRaces(BatchConformance):
    """The tests. A subclass has what ``BatchConformance`` asks for."""

    def test_a_life_that_is_overtaken_within_its_batch_publishes_nothing(
        self, target: SinkTarget, pipeline: SinkPipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        zombie = pipeline.recover(1)
        zombie.upsert(pipeline.batch(0, (1, "a")))
        within_the_next_commits(monkeypatch, [lambda: pipeline.recover(2).close()])
        with pytest.raises(FencedError):
            zombie.upsert(pipeline.batch(1, (1, "zombie"), (2, "zombie")))
        assert target.rows() == [(1, "a")]
        zombie.close()
