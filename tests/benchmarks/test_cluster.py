"""The benchmark on a cluster: its figures, ratios and choices; here without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cluster
from benchmarks.cluster import joining, losses, rates, standby, transport
from benchmarks.cluster.figures import Figure, Pair, ratios, rows
from benchmarks.report import Report
from chandy.coordinator import AssignedShard
from chandy.coordinator.protocol.event_log import LoggedEvent
from chandy.coordinator.protocol.events import BatchAsked, BatchCommitted
from chandy.state.rpc.messages import AskBatch


def test_a_ratio_is_the_median_over_pairs_of_turns_and_a_single_turn_stands_for_all() -> None:
    figures = [Figure("p", "own", "s", value) for value in (2.0, 12.0, 30.0)]
    figures += [Figure("p", "peer", "s", value) for value in (1.0, 2.0, 3.0)]
    figures += [Figure("p", "slow", "s", 2.0), Figure("p", "own", "m", 4.0)]
    assert ratios(figures, [Pair("p", "own", "s", "peer")]) == {"p: s: own / peer": 6.0}
    assert ratios(figures, [Pair("p", "own", "s", "slow")]) == {"p: s: own / slow": 6.0}
    assert ratios(figures, [Pair("p", "own", "m", "own", "s")]) == {
        "p: own, m / own, s": pytest.approx(1 / 3)
    }


@pytest.mark.parametrize("part", cluster.PARTS)
def test_pairs_are_of_what_the_part_measures(part: object) -> None:
    contestants = {
        rates: rates.CONTESTANTS,
        standby: standby.CONTESTANTS,
        losses: losses.CONTESTANTS,
        joining: [joining.contestant(size) for size in joining.SIZES],
        transport: transport.CONTESTANTS,
    }[part]  # type: ignore[index]
    for pair in part.PAIRS:  # type: ignore[attr-defined]
        assert pair.part == part.PART  # type: ignore[attr-defined]
        assert {pair.own, pair.peer} <= {*contestants}


def shard(
    number: int, machine: str | None, size: int | None = None, moves_to: str | None = None
) -> AssignedShard:
    return AssignedShard("q", "op", number, machine, None, size=size, moves_to=moves_to)


def test_a_machine_has_its_part_when_nothing_is_on_its_way_and_shards_are_even() -> None:
    owners = ["m1", "m1", "m2", "m2", "m3"]
    assert not joining.has_its_part([shard(n, m) for n, m in enumerate(owners)], "m4")
    even = [shard(n, m) for n, m in enumerate([*owners, "m4"])]
    assert joining.has_its_part(even, "m4")
    assert not joining.has_its_part([*even[:-1], shard(5, "m4", moves_to="m3")], "m4")


def test_bytes_that_moved_are_those_of_shards_with_another_owner() -> None:
    before = [shard(0, "m1", 10), shard(1, "m2", 20), shard(2, "m3", 40), shard(3, "m3")]
    after = [shard(0, "m4", 11), shard(1, "m2", 21), shard(2, "m4", 41), shard(3, "m4")]
    assert joining.moved_bytes(before, after) == 52


def test_a_wait_is_from_the_first_to_the_last_time_that_a_host_asks_for_a_batch() -> None:
    def asked(at: float, host: str, batch: int) -> LoggedEvent:
        return LoggedEvent(0, at, BatchAsked(AskBatch(host, "q", batch)))

    events = [asked(1.0, "a", 7), asked(1.1, "b", 7), asked(1.4, "a", 7), asked(1.5, "a", 7)]
    events += [LoggedEvent(0, 9.0, BatchCommitted("q", 7)), asked(9.0, "b", 8), asked(9.1, "a", 8)]
    assert joining.longest_wait(events) == pytest.approx(0.5)
    assert joining.longest_wait(events[-2:]) == 0.0
    assert joining.longest_wait([]) == 0.0


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_chart_is_drawn_of_the_first_part_that_there_is(tmp_path: Path, suffix: str) -> None:
    figures = [Figure(losses.PART, name, losses.CHARTED, 3.0) for name in losses.CONTESTANTS]
    chart = tmp_path / f"cluster.{suffix}"
    cluster.draw(Report("cluster", rows(figures), {}), chart)
    assert chart.stat().st_size > 1000
    with pytest.raises(ValueError, match="no figures"):
        cluster.draw(Report("cluster", [], {}), chart)
