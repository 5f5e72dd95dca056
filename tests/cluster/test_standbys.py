"""With a standby for each shard, what is lost on three machines takes no state along: no query restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.coordinator import (
    CheckpointConfig,
    CheckpointCoordinator,
    FixedDelay,
    HostReplaced,
    PipelineEvent,
)

from ..waiting import DEADLINE, eventually
from .conftest import Cluster
from .losses import KILLS, lose_again_and_again
from .stream import Stream

pytestmark = pytest.mark.cluster


@pytest.fixture
def told() -> list[PipelineEvent]:
    """What the pipeline has told of itself."""
    return []


@pytest.fixture
def coordinator(
    cluster: Cluster, request: pytest.FixtureRequest, told: list[PipelineEvent]
) -> Iterator[CheckpointCoordinator]:
    config = CheckpointConfig(
        interval=None,
        host_timeout="6 s",
        restart=FixedDelay("100 ms", attempts=1000),
        work_dir=str(cluster.shared / "work"),
        shared=True,
        standbys=1,
        on_event=told.append,
    )
    made = CheckpointCoordinator(
        cluster.spark, pipeline=request.node.name, storage=str(cluster.shared / "store"), config=config
    )
    yield made
    made.stop(timeout="5 s", checkpoint=False)


def await_standbys(stream: Stream) -> None:
    """Take checkpoints until every shard has a standby that is in sync, on another machine."""
    coordinator = stream.coordinator

    def are_in_sync() -> bool:
        if not all(shard.machine for shard in coordinator.assignment()):
            # The pipeline has gone back, and shards get owners with a batch: an idle stream has none to come.
            stream.add(1)
            stream.await_all()
        coordinator.checkpoint().result(DEADLINE)
        shards = coordinator.assignment()
        assert all(shard.standby != shard.machine for shard in shards if shard.machine)
        return all(shard.standby and not shard.moves_to for shard in shards)

    try:
        eventually(are_in_sync, "a standby of every shard")
    except AssertionError as error:
        error.add_note(f"{coordinator.assignment()}\n{coordinator.recoveries}")
        raise


@pytest.fixture
def stream(cluster: Cluster, coordinator: CheckpointCoordinator, tmp_path: Path) -> Stream:
    cluster.await_executors()
    running = Stream(cluster.spark, coordinator, cluster.shared / tmp_path.name)
    running.add(3)
    running.await_all()
    return running


def test_no_query_restarts_and_no_batch_runs_again_when_hosts_and_machines_are_lost(
    cluster: Cluster, coordinator: CheckpointCoordinator, stream: Stream, told: list[PipelineEvent]
) -> None:
    (query,) = coordinator.queries
    life, seen, promoted = (query.id, query.runId), [], 0
    for loss in ("state host", "machine") if cluster.is_isolated else ("machine",):
        await_standbys(stream)
        # What comes after the checkpoint is what a loss would take.
        stream.add(2)
        stream.await_all()
        before = [one for one in coordinator.assignment() if one.machine == stream.hosts()[0].machine]
        machine = cluster.machine_of(stream.hosts()[0])
        stream.add(1)
        KILLS[loss].lose(machine)
        stream.add(2)
        stream.await_all()
        now = {(one.operator, one.shard): one for one in coordinator.assignment()}
        for one in before:
            assert now[one.operator, one.shard].machine == one.standby
            assert now[one.operator, one.shard].term == one.term + 1
        seen.append(loss)
        promoted += len(before)
        replaced = [one for one in told if isinstance(one, HostReplaced)]
        assert (sum(one.promoted for one in replaced), sum(one.reopened for one in replaced)) == (promoted, 0)
        KILLS[loss].mend(cluster, machine)
    await_standbys(stream)
    stream.add(1)
    stream.await_all()
    assert (query.id, query.runId) == life
    assert [one.cause for one in coordinator.recoveries] == ["start"]
    # An idle query reports its newest batch again and again.
    batches = [progress.batchId for progress in query.recentProgress if progress.numInputRows]
    assert batches == sorted(set(batches)), "a batch that has committed has run again"


@pytest.mark.full(
    "cluster/test_standbys.py::test_no_query_restarts_and_no_batch_runs_again_when_hosts_and_machines_are_lost"
)
def test_a_stream_with_standbys_that_loses_something_again_and_again_is_exact(
    cluster: Cluster, stream: Stream
) -> None:
    # A checkpoint lies between some losses only, so some shards have no standby when their machine is lost.
    await_standbys(stream)
    lose_again_and_again(cluster, stream)


@pytest.mark.full(
    "coordinator/execution/test_promotion.py::test_the_loss_of_a_shard_and_its_standby_in_one_batch_goes_back"
)
def test_the_loss_of_a_shard_and_its_standby_in_one_batch_needs_nobody(
    cluster: Cluster, stream: Stream
) -> None:
    if not cluster.is_isolated:
        pytest.skip("processes of all machines are in one list here")
    await_standbys(stream)
    stream.add(2)
    stream.await_all()
    shard = stream.coordinator.assignment()[0]
    stream.add(1)
    for machine in cluster.machines.machines:
        if machine.name in (shard.machine, shard.standby):
            KILLS["state host"].lose(machine)
    stream.add(2)
    stream.await_all()
    # If the standby is lost first, the owner's changelog has the shard; otherwise the pipeline goes back.
    await_standbys(stream)
    stream.add(1)
    stream.await_all()
