"""A shadow runs the batches of the driver that leads, and says whether it is equal, or since which batch not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from chandy import (
    Checkpoint,
    CheckpointConfig,
    CheckpointCoordinator,
    FilesSink,
    Shadow,
    ShadowDiffers,
    ShadowVerdict,
)
from chandy.coordinator.cli import main
from chandy.coordinator.errors import ArgumentError
from chandy.coordinator.upgrade.following import NO_RECORDS
from chandy.coordinator.verdict import Finding, Kind, Phase
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store
from chandy.storage.errors import NothingHereError

from ..waiting import DEADLINE, eventually
from .driver_process import driver
from .driver_runs import runtime as runtime
from .seconds import Seconds, timed
from .seconds import seconds as seconds
from .shadow_driver import RARE, Failing, Pipeline, Refactored, WrongForOneKey
from .support import Events

pytestmark = pytest.mark.spark


def batches(leader: CheckpointCoordinator, events: Events, checkpoints: int, each: int = 2) -> Checkpoint:
    """Run batches, with a checkpoint behind every so many, and return the last one."""
    (query,) = leader.queries
    for _ in range(checkpoints):
        events.add(each)
        query.processAllAvailable()
        taken = leader.checkpoint().result(DEADLINE)
    return taken


def caught_up(shadow: CheckpointCoordinator, passed: int) -> ShadowVerdict:
    """Wait until a shadow has compared a checkpoint, and return what it has found."""

    def has_passed() -> bool:
        assert shadow.verdict is not None
        assert shadow.verdict.phase is not Phase.FAILED, shadow.verdict.because
        return (shadow.verdict.passed or 0) >= passed and shadow.verdict.behind == 0

    eventually(has_passed, f"checkpoint {passed} passed")
    assert shadow.verdict is not None
    return shadow.verdict


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the files that are published in a folder."""
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, spark)


def test_a_shadow_that_computes_the_same_is_equal_and_its_leader_does_not_notice(pipeline: Pipeline) -> None:
    events = pipeline.events
    with pytest.raises(NothingHereError, match="has no checkpoint"):
        pipeline.shadow()
    with pipeline.lead(config=CheckpointConfig(interval=None, retained=10)) as leader:
        pipeline.build(leader)
        batches(leader, events, 2)
        with pipeline.shadow() as shadow:
            pipeline.build(shadow, Refactored())
            eventually(
                lambda: shadow.verdict is not None and shadow.verdict.because == NO_RECORDS,
                "a shadow whose leader has recorded nothing waits",
            )
            with pytest.raises(ArgumentError, match="a coordinator that leads"):
                shadow.rescale("totals", 1)
            # The next checkpoint has records, and batches after it have digests, because there is a shadow.
            caught_up(shadow, batches(leader, events, 1).id)
            batches(leader, events, 2)
            before = pipeline.files()
            found = caught_up(shadow, 5)
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

    def first(self, kind: Kind) -> Finding:
        """The first finding of a kind."""
        return next(one for one in self.verdict.findings if one.kind is kind)


def kept(pipeline: Pipeline, finding: Finding) -> list[dict[str, Any]]:
    """The rows of the file that is kept of a finding."""
    return pq.read_table(Path(pipeline.storage, "p", finding.kept)).to_pylist()  # type: ignore[no-any-return]


def found_by(pipeline: Pipeline, leader: CheckpointCoordinator, name: str, **build: Any) -> Found:
    """Have a shadow compare two batches, one with the rare value, and two more."""
    told: list[ShadowDiffers] = []
    with pipeline.shadow(told, name=name) as shadow:
        pipeline.build(shadow, **build)
        batches(leader, pipeline.events, 1)
        pipeline.events.add(rows=RARE + 1)
        rare = batches(leader, pipeline.events, 1, each=1).batches["totals"] - 1
        return Found(caught_up(shadow, batches(leader, pipeline.events, 1).id), told, rare)


def test_a_difference_is_found_in_the_right_batch_with_an_example(pipeline: Pipeline) -> None:
    with pipeline.lead() as leader:
        pipeline.build(leader)
        batches(leader, pipeline.events, 1)
        wrong = found_by(pipeline, leader, "wrong", processor=WrongForOneKey())
        dropped = found_by(pipeline, leader, "dropped", late="1 second")
        renamed = found_by(pipeline, leader, "renamed", sums="sum")
        failing = found_by(pipeline, leader, "failing", processor=Failing())

    output, state = wrong.verdict.findings[0], wrong.first(Kind.STATE)
    key = f"k{((wrong.rare * 3) + RARE) % 7}"
    assert (output.kind, output.batch, output.what) == (Kind.OUTPUT, wrong.rare, "sink 'files'")
    assert output.says == (
        "columns with other values: total; 1 row that only the leader has, 1 row that only the shadow has"
    )
    leaders, shadows = kept(pipeline, output)
    assert (leaders["side"], leaders["k"], shadows["side"], shadows["k"]) == ("leader", key, "shadow", key)
    assert leaders["total"] + 1 == shadows["total"]
    n, theirs, ours = leaders["n"], leaders["total"], shadows["total"]
    assert output.example == f'k="{key}" n={n}: leader has total={theirs}, shadow has total={ours}'
    assert (state.kind, state.batch, state.what) == (
        Kind.STATE,
        wrong.rare + 1,
        "state 'totals' of operator 'totals'",
    )
    assert state.says == "1 key with other values"
    (item,) = kept(pipeline, state)
    assert json.loads(item["key"]) == {"k": key}
    assert json.loads(item["leader"])["total"] + 1 == json.loads(item["shadow"])["total"]
    assert wrong.told[0].finding == output
    assert (wrong.verdict.batches, wrong.verdict.skipped) == (6, 0)

    # Its batches run with the watermark of the leader, so that their output is equal.
    first = dropped.verdict.findings[0]
    assert (first.batch, first.what, dropped.verdict.state_is_equal) == (
        dropped.rare + 1,
        "the watermark",
        True,
    )
    assert first.says.endswith("00:00:39.000 of the leader, 1970-01-01 00:00:48.000 of the shadow")

    first = renamed.verdict.findings[0]
    assert (first.batch, renamed.verdict.state_is_equal) == (renamed.rare - 2, True)
    assert "columns that only the leader has: total; columns that only the shadow has: sum" in first.says
    assert "leader has total=" in first.example and "shadow has sum=" in first.example

    first = failing.verdict.findings[0]
    assert (first.kind, first.batch) == (Kind.FAILURE, failing.rare)
    assert "49 is too much" in first.says
    # It has gone on behind the checkpoint that has the batch.
    assert (failing.verdict.batches, failing.verdict.skipped, failing.verdict.differing) == (4, 2, 1)
    assert failing.verdict.state_is_equal

    told = CliRunner().invoke(main, ["shadow", pipeline.storage])
    assert told.exit_code == 1
    assert f"differs since batch {wrong.rare} of query 'totals': sink 'files'" in told.output


def test_timers_windows_and_late_rows_are_those_of_the_leader_batch_for_batch(
    spark: SparkSession, tmp_path: Path, seconds: Seconds
) -> None:
    def coordinator(**more: Any) -> CheckpointCoordinator:
        config = CheckpointConfig(interval=None, retained=10, record_batches=True)
        made = CheckpointCoordinator(
            spark, pipeline="p", storage=str(tmp_path / "store"), config=config, **more
        )
        window, own = F.window("t", "10 seconds"), {"uid": "windows", "shards": 4}
        queries = {
            "timed": timed(made, seconds.stream(spark), "EventTime"),
            "windows": made.aggregate(
                seconds.stream(spark), by=["k"], window=window, output_mode="append", n=("*", "count"), **own
            ),
            "native": seconds.stream(spark).groupBy(window, "k").count(),
        }
        for name, rows in queries.items():
            made.start(rows.writeStream, name=name, sink=FilesSink(str(tmp_path / name), uid=name))
        return made

    def run(leader: CheckpointCoordinator, *files: list[tuple[str, int]]) -> Checkpoint:
        for file in files:
            seconds.add(*file)
            for query in leader.queries:
                query.processAllAvailable()
        return leader.checkpoint().result(DEADLINE)

    with coordinator() as leader:
        run(leader, [("a", 0), ("b", 3)], [("b", 100), ("late by its own watermark only", 40)])
        with coordinator(shadow=Shadow()) as shadow:
            found = caught_up(shadow, run(leader, [("c", 50), ("a", 130)], [("late", 60), ("d", 200)]).id)
    assert found.is_equal and found.findings == ()
    assert (found.unrecorded, found.skipped) == (0, 0) and found.batches >= 6 and found.states == 1
    rows = [row for name in ("windows", "native") for row in rows_of(tmp_path / name)]
    assert rows and not [row for row in rows if row["k"] == "late"]


@pytest.mark.processes
@pytest.mark.kills
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
