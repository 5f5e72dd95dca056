"""A driver on another machine takes a pipeline over, and a former driver that comes back changes nothing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import pytest

from benchmarks.cluster.loopback import LoopbackMachine
from benchmarks.cluster.machine import Machine
from benchmarks.cluster.namespaces import NamespaceMachine
from benchmarks.cluster.standalone import SOON, Standalone, wait_for
from chandy.coordinator.switch_orders import await_switch, order_switch
from chandy.coordinator.verdicts import read_verdict
from chandy.storage.backends.open import open_store
from chandy.storage.store import Store

from ..integration.drivers import EVENT, add_file, answer_of_batches, batches_in
from ..spark_settings import WITH_EXECUTORS
from ..waiting import DEADLINE, eventually
from .conftest import Cluster
from .stream import rows_in

pytestmark = pytest.mark.cluster

_DRIVER = "tests.cluster.takeover_driver"
_HOST = "chandy.state.host.process"
_REPOSITORY = Path(__file__).parents[2]


def processes(machine: Machine, text: str) -> set[int]:
    """The processes of a machine whose command line has a text."""
    lines = (line.split(maxsplit=1) for line in machine.run("ps", "-ww", "-eo", "pid=,args=").splitlines())
    found = {int(pid) for pid, command in lines if text in command}
    # Machines without namespaces have one list of processes.
    return {pid for pid in found if machine.owns(pid)} if isinstance(machine, LoopbackMachine) else found


@attrs.frozen
class Both:
    """Two machines beside the others, with a worker each. Each of two applications has an executor on both."""

    address: str
    machines: Sequence[Machine]
    standalone: Standalone


@attrs.frozen
class _Beside:
    """Some of the machines, for a cluster of their own."""

    address: str
    machines: Sequence[Machine]


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Iterator[Both]:
    beside = _Beside(cluster.machines.address, [cluster.machines.add(name) for name in ("d1", "d2")])
    with Standalone(beside, cluster.shared / "drivers-logs") as standalone:
        yield Both(beside.address, beside.machines, standalone)
        for machine in beside.machines:
            machine.kill()


@attrs.define
class MachineDriver:
    """A driver on a machine."""

    machine: Machine
    log: Path
    process: subprocess.Popen[bytes]

    def told(self, event: str) -> bool:
        """Whether an event has come, or a line of the log that has this text."""
        text = self.log.read_text(errors="replace")
        assert event in text or self.process.poll() is None, f"the driver has ended: {text[-3000:]}"
        return event in text

    def event(self, name: str) -> str:
        """Wait for an event and return what it says."""
        eventually(lambda: self.told(f"{EVENT}{name}"), f"{name!r} of the driver on {self.machine.name}")
        lines = self.log.read_text(errors="replace").splitlines()
        return next(line for line in lines if line.startswith(f"{EVENT}{name}"))[len(f"{EVENT}{name}") :]

    def kill(self) -> None:
        """Kill the driver and its JVM, and nothing else of its machine."""
        for pid in processes(self.machine, str(self.log)):
            with contextlib.suppress(subprocess.CalledProcessError):
                self.machine.run("kill", "-KILL", str(pid))
        self.process.wait()


class ClusterPipeline:
    """The folders of a pipeline, and its drivers."""

    def __init__(self, both: Both, folder: Path) -> None:
        self._both, self._folder, self._files = both, folder, 0
        self.drivers: list[MachineDriver] = []
        (folder / "in").mkdir(parents=True)

    def start(self, machine: Machine, *, standby: bool = False, shadow: str = "") -> MachineDriver:
        """Start a driver on a machine."""
        log = self._folder / f"driver-{len(self.drivers)}.log"
        settings = {
            **SOON,
            "spark.master": self._both.standalone.url,
            "spark.driver.host": machine.address,
            "spark.driver.bindAddress": machine.address,
            "spark.driver.memory": "512m",
            # By this its JVM is known, too.
            "spark.app.name": str(log),
            "spark.driver.extraJavaOptions": f"-Dlog={log}",
            # Two applications share the machines.
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            **WITH_EXECUTORS,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.shuffle.reduceLocality.enabled": "false",
            "spark.deploy.maxExecutorRetries": "-1",
        }
        options = {
            "folder": str(self._folder),
            "standby": standby,
            "shadow": shadow,
            "settings": settings,
        }
        command = [sys.executable, "-m", _DRIVER, json.dumps(options)]
        env = {"PYTHONPATH": str(_REPOSITORY), "PYSPARK_PYTHON": sys.executable}
        with log.open("ab") as output:
            driver = MachineDriver(machine, log, machine.start(command, env, output))
        self.drivers.append(driver)
        return driver

    @property
    def store(self) -> Store:
        return open_store(str(self._folder / "store" / "p"))

    def add(self, files: int) -> None:
        for _ in range(files):
            add_file(self._folder / "in", self._files)
            self._files += 1

    def await_all(self) -> None:
        """Wait until every row of every file is published, exactly once."""

        def are_there() -> bool:
            rows = rows_in(self._folder / "out")
            return rows == answer_of_batches(batches_in(rows, self._files))

        eventually(are_there, f"the output of {self._files} files")


@pytest.fixture
def pipeline(cluster: Cluster, both: Both, tmp_path: Path) -> Iterator[ClusterPipeline]:
    made = ClusterPipeline(both, cluster.shared / tmp_path.name)
    wait_for("two workers", lambda: both.standalone.workers() == len(both.machines), 120)
    yield made
    for driver in made.drivers:
        with contextlib.suppress(subprocess.CalledProcessError):
            driver.kill()


def test_a_standby_on_another_machine_goes_on_when_the_driver_is_killed_and_when_its_machine_is_frozen(
    both: Both, pipeline: ClusterPipeline
) -> None:
    first, second = both.machines
    killed = pipeline.start(first, standby=True)
    killed.event("leads")
    standby = pipeline.start(second, standby=True)
    pipeline.add(3)
    pipeline.await_all()
    eventually(lambda: standby.told("standing by"), "the second driver stands by")
    # They are all the leader's: a standby on a cluster starts none.
    eventually(lambda: all(processes(machine, _HOST) for machine in both.machines), "a state host on each")
    hosts = {machine.name: processes(machine, _HOST) for machine in both.machines}
    killed.kill()
    assert int(standby.event("leads")) > 0, "it goes on from a checkpoint"
    pipeline.add(2)
    pipeline.await_all()
    for machine in both.machines:
        left = hosts[machine.name]
        eventually(
            lambda machine=machine, left=left: not left & processes(machine, _HOST),  # type: ignore[misc]
            "the end of the killed driver's state hosts",
        )
    # The next one takes over while its own executor there is frozen, too.
    frozen, standby = standby, pipeline.start(first, standby=True)
    eventually(lambda: standby.told("standing by"), "the third driver stands by")
    second.freeze()
    try:
        assert int(standby.event("leads")) > 0
        pipeline.add(2)
        pipeline.await_all()
    finally:
        second.thaw()
    assert "was fenced" in frozen.event("ended")
    assert "FENCED" in frozen.event("completes no checkpoint")
    pipeline.add(2)
    pipeline.await_all()
    assert not standby.told(f"{EVENT}ended")


@pytest.mark.full(
    "integration/test_switch.py::test_a_switch_leads_to_the_new_version_and_back_with_each_row_once"
)
def test_a_shadow_with_executors_of_its_own_takes_over_after_a_state_host_was_lost_and_is_followed(
    cluster: Cluster, both: Both, pipeline: ClusterPipeline
) -> None:
    first, second = both.machines

    def is_equal(shadow: str, batches: int) -> bool:
        verdict = read_verdict(pipeline.store, shadow)
        assert verdict is None or verdict.is_equal, verdict
        return verdict is not None and verdict.states > 0 and verdict.equal >= batches

    # Its driver is on the one machine, and its executors are on two others.
    leader = pipeline.start(cluster.machines.machines[0])
    leader.event("leads")
    pipeline.add(2)
    pipeline.await_all()
    eventually(lambda: all(processes(machine, _HOST) for machine in both.machines), "a state host on each")
    hosts = processes(second, _HOST)
    shadow = pipeline.start(first, shadow="next")
    shadow.event("follows")
    pipeline.add(2)
    eventually(lambda: is_equal("next", 1), "an equal batch")
    for host in hosts:
        second.run("kill", "-KILL", str(host))
    pipeline.add(1)
    pipeline.await_all()
    await_switch(pipeline.store, *order_switch(pipeline.store, "next"), DEADLINE)
    pipeline.add(2)
    pipeline.await_all()
    eventually(lambda: is_equal("before-next", 1), "the driver before to follow")
    for driver in (leader, shadow):
        assert not driver.told(f"{EVENT}ended")
    pipeline.add(1)
    pipeline.await_all()


@pytest.mark.full(
    "integration/test_frozen_drivers.py::test_drivers_that_are_frozen_and_wake_leave_their_successors_output_alone"
)
def test_a_driver_that_is_started_while_another_is_cut_off_fences_it(
    both: Both, pipeline: ClusterPipeline
) -> None:
    first, second = both.machines
    if not isinstance(first, NamespaceMachine):
        pytest.skip("machines share one network here")
    cut_off = pipeline.start(first, standby=False)
    pipeline.add(2)
    pipeline.await_all()
    cut_off.event("leads")
    first.unplug()
    try:
        # It reaches the storage all the same, and an executor on its own machine.
        pipeline.add(1)
        other = pipeline.start(second, standby=False)
        other.event("leads")
        pipeline.add(2)
        pipeline.await_all()
    finally:
        first.plug()
    assert "was fenced" in cut_off.event("ended")
    assert "FENCED" in cut_off.event("completes no checkpoint")
    pipeline.add(2)
    pipeline.await_all()
    assert not other.told(f"{EVENT}ended")


@pytest.mark.full(
    "cluster/test_drivers.py::test_a_standby_on_another_machine_goes_on_when_the_driver_is_killed_and_when_its_machine_is_frozen"
)
def test_a_standby_goes_on_when_the_drivers_machine_loses_its_power(
    both: Both, pipeline: ClusterPipeline
) -> None:
    first, second = both.machines
    pipeline.start(first, standby=True).event("leads")
    standby = pipeline.start(second, standby=True)
    pipeline.add(3)
    pipeline.await_all()
    eventually(lambda: standby.told("standing by"), "the second driver stands by")
    pipeline.add(1)
    # The last test of these machines.
    first.kill()
    assert int(standby.event("leads")) > 0
    pipeline.add(2)
    pipeline.await_all()
