"""What a task waits for from a host that does not answer any more ends; what only takes long does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from chandy.state.errors import HostLostError
from chandy.state.format.arrow import BYTES
from chandy.state.host.memory import Memory
from chandy.state.host.serving import HostServer
from chandy.state.host.state_host import StateHost
from chandy.state.rpc import client as client_module
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.liveness import Liveness
from chandy.state.rpc.messages import BeginTask, Begun
from chandy.storage.checkpoints.files import FileCache

from ...waiting import DEADLINE, eventually
from ..fake_control import FakeControl


def test_whoever_waits_for_a_silent_host_is_ended_and_nobody_else() -> None:
    ended, asked = threading.Event(), []

    def lives(address: str) -> bool:
        asked.append(address)
        return address != "silent"

    liveness = Liveness(lives, pause=0.01)
    with liveness.watching("lives", lambda: pytest.fail("it lives")), liveness.watching("silent", ended.set):
        assert ended.wait(DEADLINE)
    assert set(asked) == {"silent", "lives"}


def test_nobody_is_asked_when_nobody_waits_and_all_goes_on_when_somebody_does_again() -> None:
    liveness = Liveness(lambda address: False, pause=0.01)
    for _ in range(2):
        ended = threading.Event()
        with liveness.watching("silent", ended.set):
            assert ended.wait(DEADLINE)
        eventually(lambda: liveness._thread is None, "the end of the thread")


class Frozen:
    """Two hosts, one of which names the other as the owner of its shard; that one can stop to answer."""

    def __init__(self, directory: Path) -> None:
        self.lives, self.control = threading.Event(), FakeControl()
        self.lives.set()
        self.addresses = [f"grpc+unix://{directory}/{name}.sock" for name in ("near", "far")]
        near = FakeControl()
        near.elsewhere = {0: self.addresses[1]}
        self.hosts = [
            StateHost(name, control, directory / name, Memory(32 << 20), FileCache(directory / "cache"))
            for name, control in (("near", near), ("far", self.control))
        ]
        right = self.hosts[1].shards

        def shards(task: BeginTask) -> object:
            assert self.lives.wait(DEADLINE)
            return right(task)

        self.hosts[1].shards = shards  # type: ignore[assignment, method-assign]
        self.servers = [
            HostServer(address, "secret", host)
            for address, host in zip(self.addresses, self.hosts, strict=True)
        ]


@pytest.fixture
def frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    made = Frozen(tmp_path)
    monkeypatch.setattr(client_module, "_BEGIN_SECONDS", (0.2,))
    yield made
    made.lives.set()
    made.control.ask_gate.set()
    for server in made.servers:
        server.shutdown()
    for host in made.hosts:
        host.close()


def client(frozen: Frozen, monkeypatch: pytest.MonkeyPatch) -> TaskClient:
    """Return a client that finds the far host silent as soon as it is frozen."""
    made = TaskClient.over_flight(frozen.addresses[0], "secret", looks=True)
    monkeypatch.setattr(made, "_lives", lambda address, within=0.0: frozen.lives.is_set())
    assert made._liveness is not None
    made._liveness = Liveness(made._lives, pause=0.01)
    return made


def test_a_task_does_not_wait_for_ever_for_the_values_of_a_host_that_is_gone(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(frozen, monkeypatch).begin(BeginTask("q", 0, "op", (0,))) as access:
        frozen.lives.clear()
        with pytest.raises(HostLostError):
            access.fetch(np.zeros(1, np.int32), pa.array([b"k"], BYTES))


def test_a_task_does_not_wait_for_ever_to_begin_on_a_host_that_is_gone(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen.control.ask_gate.clear()
    frozen.lives.clear()
    with pytest.raises(HostLostError):
        client(frozen, monkeypatch).begin(BeginTask("q", 0, "op", (0,)))


@attrs.frozen
class SilentClient:
    """A client of the host near the task, which names the owner of the shard, or of the owner, which is silent."""

    address: str
    owner: str
    waited: list[float]

    def call(self, name: str, message: object, answer: type, seconds: float | None = None) -> Begun:
        if self.address != self.owner:
            return Begun(elsewhere={0: self.owner})
        self.waited.append(seconds or DEADLINE)
        raise HostLostError(self.address, "no answer") from flight.FlightTimedOutError("deadline exceeded")


def waits(owner: str) -> list[float]:
    """Return how long a task near "near" waits for an owner that does not answer: each time until it gives up."""
    waited: list[float] = []
    made = TaskClient("near", lambda address: SilentClient(address, owner, waited), looks=True)  # type: ignore[arg-type, return-value]
    with pytest.raises(HostLostError):
        made.begin(BeginTask("q", 0, "op", (0,)))
    # To begin, and to say whether the host lives.
    assert len(waited) == 2
    return waited


def test_a_task_does_not_hold_its_batch_up_for_a_machine_without_power() -> None:
    # The coordinator has mostly known it for longer.
    assert sum(waits("far")) <= 3


def test_the_host_beside_a_task_which_the_task_may_kill_has_time_to_answer() -> None:
    assert min(waits("near")) >= 5


def test_a_host_that_takes_long_to_begin_is_waited_for(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()
    made = client(frozen, monkeypatch)

    def lives(address: str, within: float = 0.0) -> bool:
        asked.set()
        frozen.control.ask_gate.set()
        return True

    monkeypatch.setattr(made, "_lives", lives)
    frozen.control.ask_gate.clear()
    # Closed, because a server ends when its exchanges have.
    with made.begin(BeginTask("q", 0, "op", (0,))) as access:
        assert asked.is_set()
        assert access.fetch(np.zeros(1, np.int32), pa.array([b"k"], BYTES)).null_count == 1
