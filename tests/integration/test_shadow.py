"""A shadow runs the batches of the driver that leads, and says whether it is equal, or since which batch not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from chandy import CheckpointCoordinator, ShadowDiffers, ShadowVerdict
from chandy.coordinator.verdict import Phase
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store
from chandy.storage.errors import NothingHereError

from ..waiting import eventually
from .driver_process import driver
from .shadow_driver import RARE, Failing, Pipeline, Refactored, WrongForOneKey
from .support import Events

pytestmark = pytest.mark.spark


def batches(leader: CheckpointCoordinator, events: Events, checkpoints: int, each: int = 2) -> None:
    """Run batches, with a checkpoint behind every so many."""
    (query,) = leader.queries
    for _ in range(checkpoints):
        events.add(each)
        query.processAllAvailable()
        leader.checkpoint().result(60)


def caught_up(shadow: CheckpointCoordinator, passed: int) -> ShadowVerdict:
    """Wait until a shadow has compared a checkpoint, and return what it has found."""

    def has_passed() -> bool:
        assert shadow.verdict is not None
        assert shadow.verdict.phase is not Phase.FAILED, shadow.verdict.because
        return (shadow.verdict.passed or 0) >= passed and shadow.verdict.behind == 0

    eventually(has_passed, f"checkpoint {passed} passed")
    assert shadow.verdict is not None
    return shadow.verdict


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, spark)


def test_a_shadow_that_computes_the_same_is_equal_and_its_leader_does_not_notice(pipeline: Pipeline) -> None:
    events = pipeline.events
    with pytest.raises(NothingHereError, match="has no checkpoint"):
        pipeline.shadow()
    with pipeline.lead() as leader:
        pipeline.build(leader)
        batches(leader, events, 2)
        with pipeline.shadow() as shadow:
            pipeline.build(shadow, Refactored())
            batches(leader, events, 2)
            before = pipeline.files()
            found = caught_up(shadow, 4)
        assert pipeline.files() == before
        assert (found.batches, found.equal, found.states, found.skipped, found.unrecorded) == (4, 4, 2, 0, 0)
        assert found.is_equal and found.findings == ()


@attrs.frozen
class Found:
    """What a shadow has found."""

    verdict: ShadowVerdict
    told: list[ShadowDiffers]
    rare: int
    """The batch with the rare value."""

    def kept(self, pipeline: Pipeline, number: int) -> list[dict[str, Any]]:
        """The rows of the file that is kept of a finding."""
        key = self.verdict.findings[number].kept
        return pq.read_table(Path(pipeline.storage, "p", key)).to_pylist()


def found_by(pipeline: Pipeline, leader: CheckpointCoordinator, name: str, **build: Any) -> Found:
    """Have a shadow compare two batches, one with the rare value, and two more."""
    told: list[ShadowDiffers] = []
    with pipeline.shadow(told, name=name) as shadow:
        pipeline.build(shadow, **build)
        batches(leader, pipeline.events, 1)
        pipeline.events.add(rows=RARE + 1)
        batches(leader, pipeline.events, 1, each=1)
        rare = leader.queries[0].lastProgress.batchId - 1  # type: ignore[index]
        batches(leader, pipeline.events, 1)
        return Found(caught_up(shadow, leader.checkpoint().result(60).id), told, rare)


def test_a_difference_is_found_in_the_right_batch_with_an_example(pipeline: Pipeline) -> None:
    with pipeline.lead() as leader:
        pipeline.build(leader)
        batches(leader, pipeline.events, 1)
        wrong = found_by(pipeline, leader, "wrong", processor=WrongForOneKey())
        print(wrong)
        dropped = found_by(pipeline, leader, "dropped", up_to=39)
        print(dropped)
        renamed = found_by(pipeline, leader, "renamed", sums="sum")
        print(renamed)
        failing = found_by(pipeline, leader, "failing", processor=Failing())
        print(failing)


@pytest.mark.processes
def test_a_shadow_in_an_application_of_its_own_that_is_killed_goes_on(
    spark: SparkSession, tmp_path: Path, runtime: Path
) -> None:
    pipeline, store = Pipeline(tmp_path, spark), open_store(str(tmp_path / "store" / "p"))

    def passed(checkpoint: int) -> bool:
        found = read_verdict(store, "own")
        return found is not None and (found.passed or 0) >= checkpoint

    options = {"folder": tmp_path, "compare_state_every": "0 s"}
    with pipeline.lead() as leader:
        pipeline.build(leader)
        batches(leader, pipeline.events, 1)
        with driver("shadow_driver", tmp_path, runtime, options) as first:
            eventually(lambda: first.told("follows"), "the start")
            batches(leader, pipeline.events, 2)
            eventually(lambda: passed(2), "a checkpoint compared")
        # It was killed. What its leader completes meanwhile is compared, as far as retention has left it.
        batches(leader, pipeline.events, 1)
        with driver("shadow_driver", tmp_path, runtime, options) as second:
            eventually(lambda: second.told("follows"), "the start")
            batches(leader, pipeline.events, 1)
            eventually(lambda: passed(5), "all compared")
            assert second.process.stdin is not None
            second.process.stdin.close()
            eventually(lambda: second.told("stopped"), "its end")
    found = read_verdict(store, "own")
    assert found is not None
    assert (found.is_equal, found.skipped, found.behind, found.phase) == (True, 0, 0, Phase.ENDED)
    assert found.batches >= 8
    assert found.stood == {"totals": 9}
    assert store.list("pins/") == []
