"""What a machine of a cluster can lose, and a stream that loses something again and again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import attrs
import pytest

from benchmarks.cluster.machine import Machine
from benchmarks.cluster.namespaces import NamespaceMachine

from ..effort import chance, rounds
from ..waiting import DEADLINE
from .conftest import Cluster, coordinate
from .stream import Stream

ROUNDS = rounds(2, full=10)

_log = logging.getLogger(__name__)

_EXECUTOR = "CoarseGrainedExecutorBackend"
_HOST = "chandy.state.host.process"


@pytest.fixture(scope="module")
def running(cluster: Cluster) -> Iterator[Stream]:
    """The stream of all tests of a module: each goes on with what the losses before it have left."""
    coordinator = coordinate(cluster, "losses")
    yield Stream(cluster.spark, coordinator, cluster.shared / "losses")
    coordinator.stop(timeout="5 s", checkpoint=False)


@pytest.fixture
def stream(cluster: Cluster, running: Stream) -> Stream:
    cluster.await_workers()
    running.add(2)
    running.await_all()
    running.coordinator.checkpoint().result(DEADLINE)
    # What comes after the checkpoint is what a loss may take.
    running.add(2)
    running.await_all()
    assert running.hosts()
    return running


@attrs.frozen
class MachineLoss:
    """What happens to a machine, and what makes it good again."""

    lose: Callable[[Machine], None]
    mend: Callable[[Cluster, Machine], None]


def killed(what: str) -> MachineLoss:
    """Return the loss of the processes whose command line has a text. Others start them again."""

    def kill(machine: Machine) -> None:
        machine.run("pkill", "-KILL", "-f", what)

    return MachineLoss(kill, lambda cluster, machine: None)


def _unplug(machine: Machine) -> None:
    assert isinstance(machine, NamespaceMachine)
    machine.unplug()


def _plug(cluster: Cluster, machine: Machine) -> None:
    assert isinstance(machine, NamespaceMachine)
    machine.plug()


KILLS = {
    "executor": killed(_EXECUTOR),
    "state host": killed(_HOST),
    "machine": MachineLoss(lambda machine: machine.kill(), Cluster.replace),
}

LOSSES = {
    **KILLS,
    "network": MachineLoss(_unplug, _plug),
    "time": MachineLoss(lambda machine: machine.freeze(), lambda cluster, machine: machine.thaw()),
}
"""A machine that has lost time was frozen, and goes on."""

ON_LOOPBACK = {"machine"}
"""The losses of machines that share one network and one list of processes."""


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
