"""What Prometheus reads, and what a probe is told, from the facts about a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from chandy.coordinator.monitor.facts import Facts, QueryFacts
from chandy.coordinator.monitor.health import troubles
from chandy.coordinator.monitor.metrics import exposition
from chandy.coordinator.protocol.life import LifePhase, QueryPhase
from chandy.coordinator.protocol.reasons import Reason
from chandy.coordinator.protocol.totals import SECONDS, PhaseSeconds, Totals
from chandy.storage.checkpoints.manifest import CheckpointKind

from .known_facts import FACTS


def read(facts: Facts | None) -> dict[tuple[str, ...], float]:
    """The values that Prometheus' own parser finds, by name and labels but for the pipeline."""
    found = {}
    for family in text_string_to_metric_families(exposition("p", facts).decode()):
        assert family.name == "chandy_build" or family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("pipeline", "p") == "p"
            key = (sample.name, *labels.values())
            assert key not in found
            found[key] = sample.value
    return found


def test_the_figures_are_those_of_the_facts() -> None:
    found = read(FACTS)
    assert found["chandy_driver_state", "runs"] == 1.0
    assert found["chandy_driver_state", "failed"] == 0.0
    assert found["chandy_checkpoints_in_progress",] == 1.0
    assert found["chandy_checkpoints_queued",] == 2.0
    assert found["chandy_checkpoints_restored_total",] == 1.0
    assert found["chandy_checkpoint_last_completed_timestamp_seconds",] == 990.0
    assert found["chandy_checkpoint_last_completed_id",] == 41.0
    assert found["chandy_checkpoint_phase_seconds_total", "collecting"] == 2.0
    assert found["chandy_replica_active", "warehouse"] == 1.0
    assert found["chandy_replica_checkpoint", "warehouse"] == 39.0
    assert found["chandy_shadow_equal", "next"] == 0.0
    assert (found["chandy_shadow_batches", "next"], found["chandy_shadow_batches_behind", "next"]) == (
        1200,
        3,
    )
    assert found["chandy_checkpoint_size_bytes",] == 5000.0
    assert found["chandy_query_active", "totals"] == 1.0
    assert found["chandy_query_committed_batch", "totals"] == 7.0
    assert found["chandy_unpublished_checkpoints", "totals"] == 2.0
    assert found["chandy_unpublished_oldest_timestamp_seconds", "totals"] == 970.0
    assert found["chandy_recoveries_total", "in place"] == 2.0
    assert found["chandy_recovery_last_duration_seconds",] == 1.5
    assert {key[1]: value for key, value in found.items() if key[0] == "chandy_shards"} == {
        "near": 3,
        "far": 5,
    }
    assert found["chandy_state_hosts", "far"] == 2.0
    assert found["chandy_disk_free_bytes", "far"] == 5_000.0
    assert found["chandy_disk_size_bytes", "far"] == 20_000.0
    assert (found["chandy_shards_unassigned",], found["chandy_shards_moving",]) == (8.0, 1.0)
    assert found["chandy_shards_with_standby",] == 4.0
    assert found["chandy_shards_promoted_total",] == 6.0
    assert found["chandy_shards_reopened_total",] == 2.0
    assert found["chandy_operator_state_bytes", "delays", "totals"] == 4000.0
    assert found["chandy_operator_largest_shard_bytes", "delays", "totals"] == 900.0
    assert found["chandy_operator_state_entries", "delays", "totals"] == 70.0
    assert found["chandy_query_batches_total", "totals"] == 8.0
    assert found["chandy_query_rows_total", "totals"] == 1200.0
    assert found["chandy_query_batch_seconds_total", "totals"] == 4.5
    assert found["chandy_query_offsets_behind", "totals"] == 30.0
    assert found["chandy_query_watermark_timestamp_seconds", "totals"] == 900.0
    operator = {key[1:]: value for key, value in found.items() if key[0] == "chandy_operator_seconds_total"}
    assert operator == {
        ("delays", "input"): 1.0,
        ("delays", "own"): 2.25,
        ("delays", "state"): 0.5,
        ("delays", "output"): 0.25,
    }
    counts = [
        found[f"chandy_operator_{one}_total", "delays"]
        for one in ("rows", "late_rows", "keys", "dead_letters")
    ]
    assert counts == [1100.0, 3.0, 50.0, 1.0]
    assert [found[f"chandy_store_{one}_total",] for one in ("requests", "retries", "failures")] == [90, 4, 1]


def test_what_is_not_known_is_left_out_and_a_driver_that_waits_says_so() -> None:
    idle = {"totals": QueryFacts(QueryPhase.RUNNING, -1)}
    none = attrs.evolve(
        FACTS, last_completed_at=None, size=None, recovery_seconds=None, queries=idle, store=None
    )
    names = {name for name, *_ in read(none)}
    assert "chandy_checkpoint_size_bytes" not in names
    assert "chandy_recovery_last_duration_seconds" not in names
    assert not {"chandy_query_offsets_behind", "chandy_query_watermark_timestamp_seconds"} & names
    assert not {name for name in names if name.startswith("chandy_store_")}
    waiting = read(None)
    assert waiting["chandy_driver_state", "stands by"] == 1.0
    assert {name for name, *_ in waiting} == {"chandy_build_info", "chandy_driver_state"}


def test_the_page_names_all_metrics_and_no_others() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    totals = Totals()
    totals.completed(CheckpointKind.MANUAL, 1.0, PhaseSeconds(1.0), 1)
    found = {name for name, *_ in read(attrs.evolve(FACTS, totals=totals))}
    classes = ("_bucket", "_sum", "_count")
    expected = {name for name in found if not name.endswith(classes)} | {"chandy_checkpoint_duration_seconds"}
    assert set(re.findall(r"\bchandy_[a-z_]+", page)) == expected


ENDED = st.lists(
    st.tuples(
        st.sampled_from(CheckpointKind),
        st.none() | st.sampled_from(Reason),
        st.floats(0.0, 2000.0),
        st.integers(0, 10**9),
    )
)


@given(ENDED)
def test_counters_and_classes_of_durations_say_what_has_ended(
    ended: list[tuple[CheckpointKind, Reason | None, float, int]],
) -> None:
    totals = Totals()
    for kind, reason, seconds, size in ended:
        if reason is None:
            totals.completed(kind, seconds, PhaseSeconds(seconds / 2, 0.0, seconds / 2), size)
        else:
            totals.failed(kind, reason.value)
    found = read(attrs.evolve(FACTS, totals=totals.copy()))
    completed = [(seconds, size) for _, reason, seconds, size in ended if reason is None]
    counted = {key: value for key, value in found.items() if key[0] == "chandy_checkpoints_total"}
    assert sum(counted.values()) == len(ended)
    assert all((key[2] == "completed") == (key[3] == "") for key in counted)
    bucket = "chandy_checkpoint_duration_seconds_bucket"
    for bound in SECONDS:
        (value,) = [value for (name, *le), value in found.items() if name == bucket and float(le[0]) == bound]
        assert value == sum(seconds <= bound for seconds, _ in completed)
    assert found["chandy_checkpoint_duration_seconds_count",] == len(completed)
    assert found["chandy_checkpoint_duration_seconds_sum",] == pytest.approx(sum(one for one, _ in completed))
    phases = sum(found["chandy_checkpoint_phase_seconds_total", one] for one in ("planning", "finalizing"))
    assert phases == pytest.approx(sum(one for one, _ in completed))
    assert found["chandy_checkpoint_phase_seconds_total", "collecting"] == 0
    assert found["chandy_checkpoint_new_bytes_total",] == sum(size for _, size in completed)


@pytest.mark.parametrize("name", ['a "quoted" one', "back\\slash", "line\nbreak", "<b>é</b>"])
def test_names_are_only_names(name: str) -> None:
    found = read(attrs.evolve(FACTS, queries={name: QueryFacts(life=QueryPhase.ENDED, committed=-1)}))
    assert found["chandy_query_committed_batch", name] == -1.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"life": LifePhase.FAILED, "because": "no more"}, ["the pipeline has failed for good: no more"]),
        ({"life": LifePhase.STOPPING}, ["the pipeline is being stopped"]),
        ({"queries": {}}, ["no query has been started"]),
        ({"queries": {"q": QueryFacts(life=QueryPhase.ENDED, committed=3)}}, ["query 'q' has ended"]),
        ({"last_completed_at": 901.0}, []),
        ({"last_completed_at": 899.0}, ["no checkpoint has completed for 101 s, more than 100 s"]),
        ({"last_completed_at": None, "began": 950.0}, []),
        (
            {"last_completed_at": None, "began": 890.0},
            ["no checkpoint has completed for 110 s, more than 100 s"],
        ),
        ({"last_completed_at": 945.0, "longest_interval": 1.0}, []),
        (
            {"last_completed_at": 939.0, "longest_interval": 1.0},
            ["no checkpoint has completed for 61 s, more than 60 s"],
        ),
        ({"last_completed_at": None, "longest_interval": None, "began": 0.0}, []),
    ],
)
def test_a_pipeline_is_ready_unless_something_keeps_it(change: dict[str, object], words: list[str]) -> None:
    assert list(troubles(attrs.evolve(FACTS, **change))) == words


def test_a_driver_that_stands_by_is_not_ready() -> None:
    assert list(troubles(None)) == ["the driver stands by, or takes the pipeline over"]
