"""A pipeline on three machines is exact whatever is lost: executors, state hosts, machines, and their network."""

from __future__ import annotations

from contextlib import suppress

import pytest

from benchmarks.cluster.machine import Machine
from benchmarks.cluster.namespaces import NamespaceMachine
from chandy.coordinator import CheckpointError
from chandy.coordinator.protocol import shard_assignment

from ..waiting import DEADLINE, eventually
from .conftest import Cluster
from .losses import _HOST, KILLS, ON_LOOPBACK, lose_again_and_again
from .losses import running as running
from .losses import stream as stream
from .stream import Stream

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    "loss",
    [
        "executor",
        pytest.param(
            "state host",
            marks=pytest.mark.full(
                "cluster/test_standbys.py::test_no_query_restarts_and_no_batch_runs_again_when_hosts_and_machines_are_lost"
            ),
        ),
        "machine",
    ],
)
def test_what_is_lost_is_lost_once(cluster: Cluster, stream: Stream, loss: str) -> None:
    if not cluster.is_isolated and loss not in ON_LOOPBACK:
        pytest.skip("processes of all machines are in one list here")
    before, life, recoveries = stream.hosts(), stream.life(), len(stream.coordinator.recoveries)
    machine = cluster.machine_of(before[0])
    KILLS[loss].lose(machine)
    if loss == "state host":
        # Also if no task starts the next one.
        eventually(
            lambda: (
                [hello.machine for hello in stream.hosts()] == [hello.machine for hello in before]
                and before[0] not in stream.hosts()
            ),
            "that the next state host on the machine has the shards",
        )
    stream.add(3)
    stream.await_all()
    if loss == "executor":
        # The host outlives its executor, and its shards are where they were.
        assert stream.hosts() == before
    else:
        assert before[0].host not in {hello.host for hello in stream.hosts()}
    if loss == "state host":
        # The query has gone on.
        assert stream.life() == life
        assert len(stream.coordinator.recoveries) == recoveries
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


@pytest.mark.full("cluster/test_losses.py::test_a_machine_that_is_cut_off_and_comes_back_changes_nothing")
def test_a_machine_that_hears_and_is_not_heard_is_given_up(cluster: Cluster, stream: Stream) -> None:
    machine = isolated(cluster, stream)
    machine.block(cluster.machines.address)
    stream.add(2)
    stream.await_all()
    machine.unblock(cluster.machines.address)
    stream.add(2)
    stream.await_all()
    assert stream.coordinator.checkpoint().result(DEADLINE)


@pytest.mark.full(
    "cluster/test_drivers.py::test_a_standby_on_another_machine_goes_on_when_the_driver_is_killed_and_when_its_machine_is_frozen"
)
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

    def completes() -> bool:
        # A shard whose changes could not be written sends the pipeline back once more.
        with suppress(CheckpointError):
            return bool(stream.coordinator.checkpoint().result(DEADLINE))
        return False

    eventually(completes, "a checkpoint")
    stream.await_all()


@pytest.mark.full("cluster/test_losses.py::test_what_is_lost_is_lost_once")
def test_a_stream_that_loses_something_again_and_again_is_exact(cluster: Cluster, stream: Stream) -> None:
    lose_again_and_again(cluster, stream)


def test_a_machine_is_drained_and_another_gets_its_part_while_the_query_runs(
    cluster: Cluster, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_assignment, "STAYS", 2)
    coordinator = stream.coordinator
    life, recoveries = stream.life(), len(coordinator.recoveries)
    stream.add(1)
    # The tests before this one may have left one machine alone whose executor has started again.
    eventually(lambda: len(stream.machines()) > 1, "state hosts on two machines")
    owner = stream.hosts()[0]
    machine = cluster.machine_of(owner)
    before = {(shard.operator, shard.shard): shard for shard in coordinator.assignment()}
    coordinator.drain(owner.machine, timeout="2 min")
    now = {(shard.operator, shard.shard): shard for shard in coordinator.assignment()}
    assert owner.machine not in {shard.machine for shard in now.values()}
    drained = {key for key, shard in before.items() if shard.machine == owner.machine}
    # The owner may have had them all, and a host that joins meanwhile gets its part of them.
    assert drained
    assert all(now[key].term > before[key].term for key in drained)
    assert all(now[key].term >= before[key].term for key in now)
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
    assert stream.life() == life
    assert len(coordinator.recoveries) == recoveries


def isolated(cluster: Cluster, stream: Stream) -> NamespaceMachine:
    """Return a machine that has shards and a network of its own."""
    machine = cluster.machine_of(stream.hosts()[0])
    if not isinstance(machine, NamespaceMachine):
        pytest.skip("machines share one network here")
    return machine


def commands(machine: Machine) -> str:
    """The command lines of the processes of a machine."""
    return machine.run("ps", "-eo", "args")
