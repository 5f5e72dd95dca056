"""A shadow takes its pipeline over: each row is in the target once, and state goes on as the shadow has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from chandy.coordinator.protocol.life import LifePhase
from chandy.coordinator.switch_orders import await_switch, order_switch
from chandy.coordinator.upgrade.shadow import Shadow
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.layout import SHADOWS
from chandy.storage.errors import FencedError

from ..waiting import eventually
from .switch_driver import add_files, coordinator, numbered, start, target

pytestmark = pytest.mark.spark


def test_a_shadow_leads_when_it_is_told_to_and_each_row_is_there_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/store/p")
    catalog = Catalog(store)
    add_files(tmp_path / "in", 0, 2)
    with coordinator(spark, tmp_path) as leader:
        old = start(leader, spark, tmp_path, "old")
        eventually(lambda: catalog.latest(), "a checkpoint")
        with coordinator(spark, tmp_path, shadow=Shadow()) as shadow:
            new = start(shadow, spark, tmp_path, "new")
            add_files(tmp_path / "in", 2, 3)
            eventually(
                lambda: shadow.verdict and shadow.verdict.states and shadow.verdict.equal >= 2, "batches"
            )
            name, nonce = order_switch(store, None)
            await_switch(store, name, nonce, 200.0)
            add_files(tmp_path / "in", 5, 2)
            # What its user has of the query is that of the leader now.
            eventually(lambda: target(tmp_path / "out") == numbered(7), "all rows")
            assert new.isActive and shadow.life.phase is LifePhase.RUNNING
            assert leader.life.phase is LifePhase.FENCED
            with pytest.raises(FencedError):
                old.awaitTermination()
            latest = shadow.checkpoint().result()
            named = frozenset[str]().union(*(one.keys() for one in catalog.completed()))
            others = (key for key in store.list(SHADOWS) if not key.startswith(f"{SHADOWS}{name}/"))
            assert any(key.startswith(SHADOWS) for key in named) and set(others) <= named
    # It is the pipeline's own state now: the next start goes on from there.
    add_files(tmp_path / "in", 7, 1)
    with coordinator(spark, tmp_path) as again:
        assert again.restored is not None and again.restored.id >= latest.id
        start(again, spark, tmp_path, "new")
        eventually(lambda: target(tmp_path / "out") == numbered(8), "all rows")
