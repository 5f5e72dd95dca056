"""A pipeline on executors that are pods: Spark's own backend for Kubernetes, and a stand-in for the API server.

The pods are real processes, made of the template in ``docs/kubernetes`` as Spark reads it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.cluster import choice

from ..waiting import DEADLINE
from .driver import EXECUTORS, GRACE_SECONDS, NODES

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver has seen. It has compared the output of each batch."""
    if not choice.are_isolated():
        pytest.skip("pods need machines with networks and processes of their own")
    folder = tmp_path_factory.mktemp("kubernetes")
    command = [sys.executable, "-m", "tests.kubernetes.driver", str(folder)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10 * DEADLINE)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_spark_makes_its_executors_of_the_template(seen: dict[str, Any]) -> None:
    assert len(seen["started"]["pods"]) == EXECUTORS
    for pod in seen["started"]["pods"]:
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert container["command"][:2] == ["/bin/sh", "-c"]
        assert container["args"] == ["executor"]
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/opt/decom.sh"]
        assert "state" in {one["name"] for one in container["volumeMounts"]}
        assert spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].items() <= (
            pod["metadata"]["labels"].items()
        )
        # Spark's setting is what counts; it overrides the template's.
        assert spec["terminationGracePeriodSeconds"] == GRACE_SECONDS


def test_shards_and_their_standbys_are_on_different_nodes_and_not_just_in_different_pods(
    seen: dict[str, Any],
) -> None:
    # The driver has waited until each shard has a standby on another machine.
    assert seen["started"]["machines"] == [f"node-{number + 1}" for number in range(NODES)]


def test_a_pod_that_is_gone_sends_no_query_back_and_spark_asks_for_another(seen: dict[str, Any]) -> None:
    assert seen["lost"] == {"recoveries": 1, "promoted": 1}, "one recovery is the start"


def test_a_pod_that_is_deleted_in_order_ends_when_its_shards_have_moved(seen: dict[str, Any]) -> None:
    # Long before its time of grace is over: the driver would not have waited for that.
    assert seen["left"] == {"recoveries": 1, "promoted": 0, "phase": "Succeeded"}


def test_no_batch_runs_twice(seen: dict[str, Any]) -> None:
    assert seen["batches"] == list(range(len(seen["batches"])))
