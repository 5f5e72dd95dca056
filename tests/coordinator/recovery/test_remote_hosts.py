"""State hosts are started where executors are, also where some have joined."""

from __future__ import annotations

import pytest

from chandy.coordinator.recovery.remote_hosts import RemoteHosts


class Cluster:
    """Executors that come and go, and how often state hosts were started beside them."""

    def __init__(self) -> None:
        self.executors = {"one:1", "two:1"}
        self.starts = 0
        self.fails = False
        self.hosts = RemoteHosts(lambda: frozenset(self.executors), self.start)

    def start(self) -> None:
        if self.fails:
            raise ConnectionError("no executor answers")
        self.starts += 1


def test_hosts_are_started_once_and_again_when_an_executor_joins() -> None:
    cluster = Cluster()
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.starts == 1
    cluster.executors.add("three:1")
    cluster.hosts.look()
    cluster.hosts.look()
    assert cluster.starts == 2


def test_an_executor_that_leaves_starts_nothing_and_is_new_when_it_comes_back() -> None:
    cluster = Cluster()
    cluster.hosts.look()
    cluster.executors.remove("two:1")
    cluster.hosts.look()
    assert cluster.starts == 1
    cluster.executors.add("two:1")
    cluster.hosts.look()
    assert cluster.starts == 2


def test_what_has_failed_is_tried_again() -> None:
    cluster = Cluster()
    cluster.fails = True
    with pytest.raises(ConnectionError):
        cluster.hosts.look()
    cluster.fails = False
    cluster.hosts.look()
    assert cluster.starts == 1
