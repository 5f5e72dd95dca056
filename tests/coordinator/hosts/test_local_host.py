"""The state host of a session in local mode: there ahead of the tasks, and with their shards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import attrs
import pytest
from pyspark import SparkFiles

from chandy.coordinator.hosts.local_host import LocalHost, local_host
from chandy.coordinator.protocol.errors import StaleQueryError
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.messages import ClaimShards, OpenShards
from chandy.storage.checkpoints.manifest import OperatorRecord

from ...state.conftest import FakeCoordinator
from ...waiting import eventually

OPERATOR = OperatorRecord("op", "query", "{}", {}, (None, None, None))


@pytest.fixture
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCoordinator]:
    # A short path, for the host's socket is in it.
    made = FakeCoordinator(tmp_path_factory.mktemp("c"))
    yield made
    if made.hellos:
        made.kill_host()
    made.stop()


def session(master: str, python: str) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=python))


def test_a_host_is_started_and_claims_all_shards(coordinator: FakeCoordinator) -> None:
    host = LocalHost(coordinator.endpoint, str(coordinator.directory / "executor"))
    failed: list[str] = []
    host.open("q", [OPERATOR, attrs.evolve(OPERATOR, uid="other", shards=(None,))], failed.append)
    host.close()
    assert failed == []
    # The host opens shards in the background.
    eventually(lambda: len(coordinator.hellos) == 1 and len(coordinator.claims) == 2)
    (hello,) = coordinator.hellos
    assert sorted(coordinator.claims, key=lambda claim: claim.uid) == [
        ClaimShards(hello.host, "q", "op", (0, 1, 2)),
        ClaimShards(hello.host, "q", "other", (0,)),
    ]
    assert coordinator.connect().address == hello.address


def test_a_query_without_state_has_no_host(coordinator: FakeCoordinator) -> None:
    host = LocalHost(coordinator.endpoint, str(coordinator.directory / "executor"))
    host.open("q", [], lambda why: None)
    host.close()
    assert coordinator.hellos == []


def test_what_goes_wrong_is_logged_and_told(
    coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = attrs.evolve(coordinator.endpoint, runtime="/" + "long/" * 30)
    host = LocalHost(endpoint, str(coordinator.directory / "executor"))
    failed: list[str] = []
    host.open("q", [OPERATOR], failed.append)
    host.close()
    assert "could not open shards ahead" in caplog.text
    assert "runtime" in failed[0] or "path" in failed[0]
    assert len(failed) == 1
    assert coordinator.hellos == []


def test_a_query_that_goes_back_meanwhile_does_not_need_its_shards(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stale(_: object, action: str, request: OpenShards) -> None:
        raise StaleQueryError(request.query_id, None)

    monkeypatch.setattr(ActionClient, "tell", stale)
    failed: list[str] = []
    host = LocalHost(coordinator.endpoint, str(coordinator.directory / "executor"))
    host.open("q", [OPERATOR], failed.append)
    host.close()
    assert failed == []
    assert "could not open shards ahead" not in caplog.text


@pytest.mark.parametrize(
    ("master", "python", "expected"),
    [
        ("local[2]", sys.executable, True),
        ("local[2]", "/their/python3", False),
        ("local-cluster[2,1,1024]", sys.executable, False),
        ("spark://somewhere:7077", sys.executable, False),
    ],
)
def test_only_a_session_whose_executor_is_here_has_one(
    coordinator: FakeCoordinator, monkeypatch: pytest.MonkeyPatch, master: str, python: str, expected: bool
) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: "/somewhere")
    found = local_host(cast(Any, session(master, python)), coordinator.endpoint)
    assert (found is not None) == expected
