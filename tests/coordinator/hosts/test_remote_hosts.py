"""State hosts are started where executors are, also where some have joined, and these get tasks."""

from __future__ import annotations

import contextlib

import pytest

from chandy.coordinator.hosts.remote_hosts import RemoteHosts


class Executors:
    """Executors that come and go, and how often state hosts were started beside them and tasks spread over them."""

    def __init__(self) -> None:
        self.executors = {"1", "2"}
        self.hosted: set[str] = set()
        self.reached: set[str] | None = None
        """The executors that tasks run on; None: all."""
        self.starts = self.spreads = self.ends = 0
        self.fails = self.misses = False
        self.has_operators, self.are_awaited = True, False
        self.hosts = RemoteHosts(
            lambda: self.has_operators,
            lambda: self.are_awaited,
            lambda: frozenset(self.executors),
            lambda: frozenset(self.executors - self.hosted),
            self.start,
            self.end,
            self.spread,
        )

    def leave(self, executor: str) -> None:
        self.executors.remove(executor)
        self.hosted.discard(executor)

    def start(self) -> None:
        if self.fails:
            raise ConnectionError("no executor answers")
        self.starts += 1
        self.hosted |= self.executors if self.reached is None else self.reached

    def end(self) -> None:
        self.ends += 1

    def spread(self) -> bool:
        self.spreads += 1
        return not self.misses


@pytest.fixture
def cluster() -> Executors:
    return Executors()


def test_hosts_are_started_once_and_again_when_an_executor_joins(cluster: Executors) -> None:
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.starts == 1
    cluster.executors.add("3")
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.starts == 2


def test_a_pipeline_without_operators_starts_none_until_it_has_some(cluster: Executors) -> None:
    cluster.has_operators = False
    cluster.hosts.look()
    assert (cluster.starts, cluster.spreads) == (0, 0)
    cluster.has_operators = True
    cluster.hosts.look()
    assert cluster.starts == 1


def test_an_executor_that_leaves_starts_nothing_and_is_new_when_it_comes_back(cluster: Executors) -> None:
    cluster.hosts.look()
    cluster.leave("2")
    cluster.hosts.look()
    assert cluster.starts == 1
    cluster.executors.add("2")
    cluster.hosts.look()
    assert cluster.starts == 2


def test_the_tasks_that_start_hosts_end_with_the_coordinator(cluster: Executors) -> None:
    cluster.hosts.look()
    assert cluster.ends == 0
    cluster.hosts.close()
    assert cluster.ends == 1


def test_what_has_failed_is_tried_again(cluster: Executors) -> None:
    cluster.fails = True
    with pytest.raises(ConnectionError):
        cluster.hosts.look()
    cluster.fails = False
    cluster.hosts.look()
    assert cluster.starts == 1
    assert cluster.spreads == 1


def test_tasks_are_spread_when_an_executor_joins_and_until_each_has_its_part(cluster: Executors) -> None:
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.spreads == 1
    cluster.executors.add("3")
    cluster.misses = True
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.spreads == 3
    cluster.misses = False
    cluster.hosts.look()
    cluster.hosts.look()
    assert (cluster.starts, cluster.spreads) == (2, 4)


def test_where_an_executor_never_has_room_for_its_tasks_it_is_not_tried_for_ever(cluster: Executors) -> None:
    cluster.misses = True
    for _ in range(100):
        cluster.hosts.look()
    assert 1 < cluster.spreads < 20


def test_an_executor_that_leaves_takes_no_tasks_from_others(cluster: Executors) -> None:
    cluster.hosts.look()
    cluster.leave("2")
    cluster.hosts.look()
    assert cluster.spreads == 1


def test_an_executor_without_a_host_gets_one_although_spark_has_run_the_first_tasks_elsewhere(
    cluster: Executors,
) -> None:
    cluster.reached = {"1"}
    for _ in range(5):
        cluster.hosts.look()
    assert (cluster.starts, cluster.spreads) == (5, 1)
    cluster.reached = None
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.starts == 6
    assert cluster.hosted == {"1", "2"}


def test_where_an_executor_never_gets_a_host_it_is_tried_now_and_then(cluster: Executors) -> None:
    cluster.reached = {"1"}
    for _ in range(1000):
        cluster.hosts.look()
    assert 20 < cluster.starts < 100
    # A host that was killed is started again, too.
    cluster.reached = None
    for _ in range(20):
        cluster.hosts.look()
    cluster.hosted.remove("1")
    for _ in range(20):
        cluster.hosts.look()
    assert cluster.hosted == {"1", "2"}


def test_a_host_that_lost_shards_wait_for_is_started_at_once(cluster: Executors) -> None:
    for _ in range(11):
        cluster.hosts.look()
    cluster.hosted.remove("1")
    cluster.hosts.look()
    assert cluster.hosted == {"2"}, "one that nobody waits for is started with time"
    cluster.are_awaited = True
    cluster.hosts.look()
    assert cluster.hosted == {"1", "2"}


def test_an_executor_that_has_waited_long_for_its_host_gets_tasks_then(cluster: Executors) -> None:
    cluster.fails = True
    for _ in range(30):
        with contextlib.suppress(ConnectionError):
            cluster.hosts.look()
    spread_before = cluster.spreads
    cluster.fails = False
    for _ in range(20):
        cluster.hosts.look()
    assert (cluster.starts, cluster.spreads) == (1, spread_before + 1)
