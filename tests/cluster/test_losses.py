"""A pipeline on three machines is exact whatever is lost: executors, state hosts, machines, and their network."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from benchmarks.cluster.machine import Machine
from benchmarks.cluster.namespaces import NamespaceMachine
from chandy.coordinator import CheckpointCoordinator, CheckpointError
from chandy.coordinator.protocol import shard_assignment

from ..effort import chance, rounds
from ..waiting import DEADLINE, eventually
from .conftest import Cluster
from .stream import Stream

pytestmark = pytest.mark.cluster

ROUNDS = rounds(2, full=10)
_log = logging.getLogger(__name__)
_EXECUTOR = "CoarseGrainedExecutorBackend"
_HOST = "chandy.state.host.process"


@pytest.fixture
def stream(cluster: Cluster, coordinator: CheckpointCoordinator, tmp_path: Path) -> Stream:
    cluster.await_workers()
    running = Stream(cluster.spark, coordinator, cluster.shared / tmp_path.name)
    running.add(3)
    running.await_all()
    coordinator.checkpoint().result(DEADLINE)
    # What comes after the checkpoint is what a loss may take.
    running.add(2)
    running.await_all()
    assert running.hosts()
    return running


@attrs.frozen
class Loss:
    """What happens to a machine, and what makes it good again."""

    lose: Callable[[Machine], None]
    mend: Callable[[Cluster, Machine], None]


def killed(what: str) -> Loss:
    """Return the loss of the processes whose command line has a text. Others start them again."""

    def kill(machine: Machine) -> None:
        machine.run("pkill", "-KILL", "-f", what)

    return Loss(kill, lambda cluster, machine: None)


def _unplug(machine: Machine) -> None:
    assert isinstance(machine, NamespaceMachine)
    machine.unplug()


def _plug(cluster: Cluster, machine: Machine) -> None:
    assert isinstance(machine, NamespaceMachine)
    machine.plug()


KILLS = {
    "executor": killed(_EXECUTOR),
    "state host": killed(_HOST),
    "machine": Loss(lambda machine: machine.kill(), Cluster.replace),
}
LOSSES = {
    **KILLS,
    "network": Loss(_unplug, _plug),
    "time": Loss(lambda machine: machine.freeze(), lambda cluster, machine: machine.thaw()),
}
"""A machine that has lost time was frozen, and goes on."""
ON_LOOPBACK = {"machine"}
"""The losses of machines that share one network and one list of processes."""


@pytest.mark.parametrize("loss", KILLS)
def test_what_is_lost_is_lost_once(cluster: Cluster, stream: Stream, loss: str) -> None:
    if not cluster.is_isolated and loss not in ON_LOOPBACK:
        pytest.skip("processes of all machines are in one list here")
    before = stream.hosts()
    machine = cluster.machine_of(before[0])
    KILLS[loss].lose(machine)
    stream.add(3)
    stream.await_all()
    if loss == "executor":
        # The host outlives its executor, and its shards are where they were.
        assert stream.hosts() == before
    else:
        assert before[0].host not in {hello.host for hello in stream.hosts()}
    stream.coordinator.checkpoint().result(DEADLINE)
    KILLS[loss].mend(cluster, machine)


def test_a_machine_that_is_cut_off_and_comes_back_changes_nothing(cluster: Cluster, stream: Stream) -> None:
    machine = isolated(cluster, stream)
    gone = machine.name
    machine.unplug()
    stream.add(2)
    stream.await_all()
    assert gone not in {hello.machine for hello in stream.hosts()}
    machine.plug()
    # Its hosts have outlived their lease: they end, and nothing of theirs counts.
    eventually(lambda: _HOST not in commands(machine), "the end of the hosts that were cut off")
    stream.add(2)
    stream.await_all()
    stream.coordinator.checkpoint().result(DEADLINE)


def test_a_machine_that_hears_and_is_not_heard_is_given_up(cluster: Cluster, stream: Stream) -> None:
    machine = isolated(cluster, stream)
    machine.block(cluster.machines.address)
    stream.add(2)
    stream.await_all()
    machine.unblock(cluster.machines.address)
    stream.add(2)
    stream.await_all()
    assert stream.coordinator.checkpoint().result(DEADLINE)


def test_a_machine_that_freezes_for_longer_than_its_lease_counts_no_more(
    cluster: Cluster, stream: Stream
) -> None:
    machine = isolated(cluster, stream)
    frozen = {hello.host for hello in stream.hosts() if hello.machine == machine.name}
    machine.freeze()
    stream.add(2)
    stream.await_all()
    machine.thaw()
    stream.add(2)
    stream.await_all()
    assert not frozen & {hello.host for hello in stream.hosts()}
    stream.coordinator.checkpoint().result(DEADLINE)


def test_a_disk_that_is_full_on_one_machine_fails_checkpoints_with_its_name_and_loses_nothing(
    cluster: Cluster, stream: Stream
) -> None:
    machine = isolated(cluster, stream)
    used = machine.run("df", "--output=used", "--block-size=1K", "/tmp").split()[-1]
    machine.run("mount", "-o", f"remount,size={used}k", "/tmp")
    try:
        with pytest.raises(CheckpointError, match=f"on {machine.name}: .*No space left on device"):
            stream.coordinator.checkpoint().result(DEADLINE)
    finally:
        machine.run("mount", "-o", "remount,size=4g", "/tmp")
    stream.add(2)
    stream.await_all()


def test_a_stream_that_loses_something_again_and_again_is_exact(cluster: Cluster, stream: Stream) -> None:
    lose_again_and_again(cluster, stream)


def test_a_machine_is_drained_and_another_gets_its_part_while_the_query_runs(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_assignment, "STAYS", 2)
    coordinator = stream.coordinator
    (query,) = coordinator.queries
    life = query.id, query.runId
    owner = stream.hosts()[0]
    machine = cluster.machine_of(owner)
    stream.add(1)
    # The tests before this one may have left it the only machine whose executor has started again.
    eventually(lambda: stream.machines() - {owner.machine}, "a state host on another machine")
    coordinator.drain(owner.machine, timeout="2 min")
    assert owner.machine not in {shard.machine for shard in coordinator.assignment()}
    assert {shard.term for shard in coordinator.assignment()} == {1, 2}
    stream.add(2)
    stream.await_all()
    # The machine leaves, and loses nothing.
    machine.kill()
    stream.add(1)
    stream.await_all()
    # Another one joins. It has a state host before it has a task.
    cluster.replace(machine)
    name = cluster.machines.machines[-1].name
    eventually(lambda: name in stream.machines(), "a state host on the machine that has joined")

    def has_shards() -> bool:
        stream.add(1)
        stream.await_all()
        coordinator.checkpoint().result(DEADLINE)
        return name in {shard.machine for shard in coordinator.assignment()}

    # Tasks come first, and their shards follow them.
    eventually(has_shards, "shards on the machine that has joined")
    # The query has not restarted, and no batch has run again.
    assert (query.id, query.runId) == life
    assert [one.cause for one in coordinator.recoveries] == ["start"]


def test_an_executor_that_is_decommissioned_leaves_its_shards_to_others(
    cluster: Cluster, stream: Stream
) -> None:
    machine = isolated(cluster, stream)
    owner = next(hello for hello in stream.hosts() if hello.machine == machine.name)
    assert owner.spark_executor is not None
    machine.run("pkill", "-PWR", "-f", _EXECUTOR)
    stream.add(1)
    eventually(
        lambda: owner.host not in {hello.host for hello in stream.hosts()},
        "that all shards leave the executor's state host",
    )
    stream.add(2)
    stream.await_all()
    assert [one.cause for one in stream.coordinator.recoveries] == ["start"]


def lose_again_and_again(cluster: Cluster, stream: Stream) -> None:
    """Lose something at random in each round, beside a running batch, and see that the output is exact."""
    numbers = chance("losses")
    losses = sorted(LOSSES if cluster.is_isolated else ON_LOOPBACK)
    for number in range(ROUNDS):
        cluster.await_workers()
        loss, owner = numbers.choice(losses), numbers.choice(stream.hosts())
        machine = cluster.machine_of(owner)
        _log.warning("round %d: %s of %s is lost", number, loss, machine.name)
        stream.add(1)
        begin = time.monotonic()
        LOSSES[loss].lose(machine)
        stream.add(2)
        # Two losses may leave one machine, whose executor is just starting.
        stream.await_all(3 * DEADLINE)
        recoveries = stream.coordinator.recoveries
        _log.warning(
            "round %d: %s of %s, exact after %.1f s, %d recoveries so far",
            number,
            loss,
            machine.name,
            time.monotonic() - begin,
            len(recoveries) - 1,
        )
        if numbers.random() < 0.5:
            stream.coordinator.checkpoint().result(DEADLINE)
        LOSSES[loss].mend(cluster, machine)


def isolated(cluster: Cluster, stream: Stream) -> NamespaceMachine:
    """Return a machine that has shards and a network of its own."""
    machine = cluster.machine_of(stream.hosts()[0])
    if not isinstance(machine, NamespaceMachine):
        pytest.skip("machines share one network here")
    return machine


def commands(machine: Machine) -> str:
    """The command lines of the processes of a machine."""
    return machine.run("ps", "-eo", "args")
