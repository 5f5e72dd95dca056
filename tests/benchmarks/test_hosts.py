"""The benchmark of many hosts: what it makes of the protocol, what it counts, and how costs become rows and ratios."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import hosts
from benchmarks.hosts import crowd
from benchmarks.hosts.crowd import SHARDS_A_HOST, Cost, Crowd
from benchmarks.report import Report
from benchmarks.scale.alone import RETAINED

HOSTS, LOST, JOINED = 20, 1, 5


@pytest.fixture(scope="module")
def lived() -> Crowd:
    made = Crowd(HOSTS)
    hosts.lived(made)
    return made


def test_a_crowd_has_all_shards_in_its_checkpoint_after_a_loss_and_a_growth(lived: Crowd) -> None:
    assert lived.hosts == HOSTS - LOST + JOINED
    newest = lived.machine.checkpoints.retained.manifests[-1]
    assert len(newest.operators[0].shards) == HOSTS * SHARDS_A_HOST
    assert None not in newest.operators[0].shards
    owners = lived.machine.queries["flights"].assignment.by_owner()
    assert sum(map(len, owners.values())) == HOSTS * SHARDS_A_HOST
    # Who has joined has no shard, and who is lost has none any more.
    assert len(owners) == HOSTS - LOST


def test_each_step_has_the_messages_that_it_must_have(lived: Crowd) -> None:
    (joined,), (lost,), (grown,), (idle,) = (
        lived.costs[step] for step in (crowd.JOIN, crowd.LOSS, crowd.GROWTH, crowd.IDLE)
    )
    before, after = lived.costs[crowd.CHECKPOINT]
    left, all_ = HOSTS - LOST, HOSTS - LOST + JOINED
    # A greeting and a claim of each host.
    assert (joined.received, joined.sent) == (2 * HOSTS, 2 * HOSTS)
    # An acknowledgement of each host, to which it gets an order, an answer, and word of the end.
    assert (before.received, before.sent) == (HOSTS, 3 * HOSTS)
    # Those that have joined hear of the end alone.
    assert (after.received, after.sent) == (left, 2 * left + all_)
    # For each task a claim and the word that its shards are restored; all hosts hear which run is over.
    assert (lost.received, lost.sent) == (2 * HOSTS, 2 * HOSTS + left)
    assert (grown.received, grown.sent) == (2 * JOINED, 2 * JOINED)
    assert (idle.received, idle.sent) == (all_, 3 * all_)
    assert all(cost.received_bytes > 0 < cost.sent_bytes for cost in (joined, before, lost, grown, idle))


def test_only_checkpoints_are_counted_that_delete_an_older_one(lived: Crowd) -> None:
    assert len(lived.costs[crowd.CHECKPOINT]) == 2
    assert [manifest.id for manifest in lived.machine.checkpoints.retained.manifests] == list(
        range(3, 3 + RETAINED)
    )


def cost(seconds: float, size: int = 1_000_000) -> Cost:
    return Cost(1, size, 2, size, locked=seconds, coded=2 * seconds, longest=seconds / 2)


def test_rows_have_the_median_of_each_step_and_ratios_the_growth_from_the_least_to_the_greatest() -> None:
    measured = {
        10: {step: [cost(1.0), cost(2.0), cost(9.0)] for step in hosts.STEPS},
        30: {step: [cost(4.0, 1_500_000)] for step in hosts.STEPS},
        100: {step: [cost(40.0, 5_000_000)] for step in hosts.STEPS},
    }
    found = hosts.rows(measured)
    assert found[0] == {
        "step": crowd.JOIN,
        "hosts": 10,
        "messages received": 1,
        "messages sent": 2,
        "MB sent and received": 2.0,
        "processor time (s)": 6.0,
        "of it under the lock (s)": 2.0,
        "longest event (s)": 1.0,
    }
    assert len(found) == 3 * len(hosts.STEPS)
    ratios = hosts.growth(measured)
    assert ratios[f"processor time (s), {crowd.LOSS}: 100 / 10 hosts"] == 20.0
    assert ratios[f"MB sent and received, {crowd.LOSS}: 100 / 10 hosts"] == 5.0


def test_a_chart_has_the_report_s_seconds(tmp_path: Path) -> None:
    measured = {size: {step: [cost(float(size))] for step in hosts.STEPS} for size in (10, 100)}
    hosts.draw(Report("hosts", hosts.rows(measured), {}), tmp_path / "hosts.svg")
    assert "checkpoint" in (tmp_path / "hosts.svg").read_text()
