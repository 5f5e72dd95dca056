"""Each alert rule speaks when it must and is silent otherwise, as Prometheus itself evaluates it."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

RULES = Path(str(files("chandy.coordinator.monitor").joinpath("alerts.yaml")))

RUNS = {'chandy_driver_state{state="runs"}': "1x600"}
KILLED = "1x10 stale"
"""A sample a minute for ten minutes; then the series ends, as all of a process do that is killed."""
BEHIND, COMMITTED = 'chandy_query_offsets_behind{query="a"}', 'chandy_query_committed_batch{query="a"}'
COMPLETED = "chandy_checkpoint_last_completed_timestamp_seconds"

SPEAKS: dict[str, list[tuple[str, int, dict[str, str]]]] = {
    "ChandyHasNoLeader": [
        ("the driver is killed", 20, {'chandy_driver_state{state="runs"}': KILLED}),
        ("the driver is killed, hours later", 240, {'chandy_driver_state{state="runs"}': KILLED}),
        ("it has failed", 20, {'chandy_driver_state{state="runs"}': "1x10 0x60"}),
        (
            "all stand by",
            20,
            {'chandy_driver_state{state="stands by"}': "1x60", 'chandy_driver_state{state="runs"}': "0x60"},
        ),
    ],
    "ChandyHasNoStandby": [
        ("the standby is killed", 30, RUNS | {'chandy_driver_state{state="stands by"}': KILLED}),
        ("the standby has taken over", 30, RUNS | {'chandy_driver_state{state="stands by"}': "1x10 0x60"}),
    ],
    "ChandyPipelineFailed": [("it gives up", 12, {'chandy_driver_state{state="failed"}': "0x10 1x60"})],
    "ChandyCheckpointIsOld": [("the last one was at the beginning", 30, RUNS | {COMPLETED: "60x60"})],
    "ChandyHasNoCheckpoint": [("none completes", 30, RUNS)],
    "ChandyCheckpointsFail": [
        (
            "one fails each minute",
            30,
            {'chandy_checkpoints_total{status="failed",reason="EXPIRED"}': "0+1x60"},
        )
    ],
    "ChandyQueryIsDown": [("one has ended", 30, RUNS | {'chandy_query_active{query="a"}': "1x10 0x60"})],
    "ChandyCommitsNothing": [
        ("a batch hangs and more comes in", 60, {BEHIND: "100+10x90", COMMITTED: "0+1x10 10x90"}),
    ],
    "ChandyFallsBehind": [
        ("batches commit and more comes in", 160, {BEHIND: "1+100x200", COMMITTED: "0+1x200"})
    ],
    "ChandyRestartsAgainAndAgain": [
        (
            "it restarts every two minutes",
            40,
            {'chandy_recoveries_total{kind="in place"}': "0 0 1 1 2+0.5x60"},
        )
    ],
    "ChandyDiskFillsUp": [
        ("a gigabyte a minute", 90, {'chandy_disk_free_bytes{machine="m"}': "200e9-1e9x200"})
    ],
    "ChandyStateGrows": [
        ("it doubles in a day", 390, {'chandy_operator_state_bytes{operator="o"}': "2e9+2e6x1000"})
    ],
    "ChandyOutputWaits": [
        ("the target is away", 30, {'chandy_unpublished_oldest_timestamp_seconds{query="a"}': "60x60"})
    ],
    "ChandyShadowDiffers": [("something differs", 30, {'chandy_shadow_equal{shadow="s"}': "1x20 0x40"})],
    "ChandyShadowFallsBehind": [
        ("it is slow", 40, {'chandy_shadow_batches_skipped{shadow="s"}': "0x20 9x40"})
    ],
    "ChandyReplicaStopped": [("it has ended", 30, RUNS | {'chandy_replica_active{replica="r"}': "0x60"})],
    "ChandyReplicaFallsBehind": [
        (
            "its target is away",
            60,
            {
                "chandy_checkpoint_last_completed_id": "0+1x60",
                'chandy_replica_checkpoint{replica="r"}': "0x60",
            },
        )
    ],
}
"""By rule the minutes at which it must speak, and what there is then: series and their values, one a minute."""

WELL = RUNS | {
    'chandy_driver_state{state="stands by"}': "0x600",
    'chandy_driver_state{state="stands by",instance="e:1"}': "1x600",
    'chandy_driver_state{state="runs",instance="e:1"}': "0x600",
    'chandy_driver_state{state="failed"}': "0x600",
    COMPLETED: "0+60x600",
    'chandy_checkpoints_total{status="failed",reason="EXPIRED"}': "0x600",
    'chandy_query_active{query="a"}': "1x600",
    BEHIND: "50 0 100 20x597",
    COMMITTED: "0+1x600",
    # Nothing comes in.
    'chandy_query_offsets_behind{query="idle"}': "0x600",
    'chandy_query_committed_batch{query="idle"}': "7x600",
    'chandy_recoveries_total{kind="in place"}': "0x300 1x300",
    'chandy_disk_free_bytes{machine="m"}': "200e9-1e6x600",
    'chandy_operator_state_bytes{operator="o"}': "2e9+1e4x600",
    'chandy_unpublished_oldest_timestamp_seconds{query="a"}': "0+60x600",
    'chandy_replica_active{replica="r"}': "1x600",
    "chandy_checkpoint_last_completed_id": "2+1x600",
    'chandy_replica_checkpoint{replica="r"}': "0+1x600",
    'chandy_shadow_equal{shadow="s"}': "1x600",
    'chandy_shadow_batches_skipped{shadow="s"}': "0x600",
}
"""A pipeline that is well: a leader and a standby, two queries of which one idles, a replica, a shadow."""


def series(values: dict[str, str]) -> list[dict[str, str]]:
    """As Prometheus has them: with the pipeline and the driver."""
    found = []
    for name, samples in values.items():
        metric, _, labels = name.rstrip("}").partition("{")
        own = "" if "instance=" in labels else ',instance="d:1"'
        found.append(
            {"series": f'{metric}{{pipeline="p"{own}{"," if labels else ""}{labels}}}', "values": samples}
        )
    return found


def expected(rule: str, minute: int, count: int) -> dict[str, Any]:
    asked = f'count(ALERTS{{alertname=~"{rule}",alertstate="firing"}}) or vector(0)'
    return {"expr": asked, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": count}]}


def test_every_rule_has_a_case_in_which_it_speaks() -> None:
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == SPEAKS.keys()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: Debian's package prometheus has it"
)
def test_rules_speak_when_they_must_and_a_pipeline_that_is_well_is_left_alone(tmp_path: Path) -> None:
    cases = [
        {
            "name": f"{rule}: {why}",
            "input_series": series(values),
            "promql_expr_test": [expected(rule, minute, 1)],
        }
        for rule, found in SPEAKS.items()
        for why, minute, values in found
    ]
    silent = [expected(".+", minute, 0) for minute in (5, 30, 240)]
    cases.append({"name": "well", "input_series": series(WELL), "promql_expr_test": silent})
    tests = [case | {"interval": "1m"} for case in cases]
    document = {"rule_files": [str(RULES)], "evaluation_interval": "2m", "tests": tests}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(document))
    told = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "rules.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
