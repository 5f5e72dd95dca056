"""A shadow takes its pipeline over, and the version before it takes it back: each row is in the target once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chandy.coordinator.coordinator import CheckpointCoordinator
from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.recovery.pipeline_events import PipelineEnded, PipelineEvent
from chandy.coordinator.switch_orders import await_switch, order_switch
from chandy.coordinator.verdicts import read_verdict
from chandy.state.local.changelog import shard_folder
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.pins import pins
from chandy.storage.errors import FencedError

from .. import insides
from ..waiting import eventually
from .switch_driver import SHADOW, add_files, coordinator, numbered, rows_by, start, target

pytestmark = pytest.mark.spark
OLD = "before-next"


def test_a_switch_leads_to_the_new_version_and_back_with_each_row_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/store/p")
    catalog = Catalog(store)
    told: dict[str, list[PipelineEvent]] = {"old": [], "new": []}

    def has(files: int) -> bool:
        return target(tmp_path / "out") == numbered(files)

    def is_equal(name: str, batches: int) -> bool:
        verdict = read_verdict(store, name)
        assert verdict is None or verdict.is_equal, verdict
        return verdict is not None and verdict.states > 0 and verdict.equal >= batches

    def switch(name: str, **more: str) -> None:
        await_switch(store, *order_switch(store, name, **more), 200.0)

    def schema(of: CheckpointCoordinator) -> str:
        (operator,) = catalog.read(of.checkpoint().result().id).operators
        return operator.states["count"].versions[-1]

    add_files(tmp_path / "in", 0, 2)
    with coordinator(spark, tmp_path, on_event=told["old"].append) as first:
        old = start(first, spark, tmp_path, "old")
        eventually(lambda: has(2), "rows")
        before = schema(first)
        with coordinator(spark, tmp_path, on_event=told["new"].append, shadow=SHADOW) as second:
            new = start(second, spark, tmp_path, "new")
            add_files(tmp_path / "in", 2, 3)
            eventually(lambda: is_equal("next", 2), "equal batches")
            switch("next")
            add_files(tmp_path / "in", 5, 3)
            # What its user has of the query is that of the leader now, and that of a shadow.
            eventually(lambda: has(8), "all rows")
            assert new.isActive and second.life.phase is LifePhase.RUNNING and second.verdict is None
            assert schema(second) != before
            eventually(lambda: is_equal(OLD, 2), "batches of the old version that are equal")
            assert old.isActive and first.verdict is not None and first.verdict.shadow == OLD
            # From then on it keeps what local recovery goes on with.
            changelogs, run = insides.driver(second).changelogs, insides.run(second, "q")
            assert shard_folder(changelogs, run.query_id, "numbered", 0).is_dir()

            switch(OLD, keep_old="0 s")
            add_files(tmp_path / "in", 8, 2)
            eventually(lambda: has(10), "all rows")
            assert old.isActive and first.life.phase is LifePhase.RUNNING
            assert schema(first) == before, "its state is its own"
            with pytest.raises(FencedError):
                new.awaitTermination()
            assert second.life.phase is LifePhase.FENCED
            eventually(lambda: not pins(store), "the end of all pins")
            latest = first.checkpoint().result()
    by = [version for _, _, version in rows_by(tmp_path / "out")]
    assert by == ["old"] * 50 + ["new"] * 30 + ["old"] * 20
    for version, error in (("old", type(None)), ("new", FencedError)):
        (end,) = [one for one in told[version] if isinstance(one, PipelineEnded)]
        assert isinstance(end.error, error)
    # It is the pipeline's own state now: the next start goes on from there.
    add_files(tmp_path / "in", 10, 1)
    with coordinator(spark, tmp_path) as again:
        assert again.restored is not None and again.restored.id >= latest.id
        start(again, spark, tmp_path, "old")
        eventually(lambda: has(11), "all rows")
