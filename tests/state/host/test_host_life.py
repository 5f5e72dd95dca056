"""Life and death of a real host process: what it stores and leaves behind. Each test has its own."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from chandy.state.errors import (
    CoordinatorLostError,
    HostLostError,
)
from chandy.state.host.coordinator_client import Lease, Pulse
from chandy.state.rpc.messages import (
    CopyReport,
    CopyStep,
    HostPulse,
)
from chandy.state.rpc.orders import ConfirmOwner, ReleaseOrder, Reopen, StopHost
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.layout import is_shared

from ...waiting import DEADLINE, eventually

pytestmark = [pytest.mark.processes, pytest.mark.kills]

A, B, C, D = b"a", b"b", b"c", b"d"


def filler(number: int) -> bytes:
    return random.Random(number).randbytes(200_000)


@pytest.mark.parametrize("way", ["answer", "push", "both"])
def test_a_snapshot_holds_exactly_the_cut_while_later_batches_are_applied(coordinator: Any, way: str) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0", B: b"0", C: filler(0)})
    coordinator.run(client, 1, {A: b"1", D: b"1"})
    order = coordinator.order(1, 1)
    if way != "push":
        coordinator.ahead[2] = (order,)
    if way != "answer":
        coordinator.push(order)
    if way == "push":
        # Without the order in its answer the batch would be ahead of a barrier: the coordinator never does
        # that.
        ack = coordinator.acked()
    for batch in range(2, 6):
        coordinator.run(client, batch, {A: b"later", B: None, b"e%d" % batch: filler(batch)})
    if way != "push":
        ack = coordinator.acked()
    coordinator.kill_host()
    coordinator.ahead.clear()
    coordinator.restore_from(ack, coordinator.store, 1)
    keys = [A, B, C, D, b"e2"]
    assert coordinator.read(coordinator.connect(), 2, keys) == {
        A: b"1", B: b"0", C: filler(0), D: b"1", b"e2": None
    }  # fmt: skip


def test_after_a_host_is_killed_the_next_one_has_exactly_the_acknowledged_state(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0", B: filler(1)})
    coordinator.push(coordinator.order(1, 0))
    ack = coordinator.acked()
    coordinator.run(client, 1, {A: b"1"})
    access = client.begin(coordinator.task(2))
    assert coordinator.fetch(access, [1], [A]) == [b"1"]
    coordinator.kill_host()
    with pytest.raises(HostLostError):
        coordinator.fetch(access, [1], [A])
    with pytest.raises(HostLostError):
        client.begin(coordinator.task(2))
    coordinator.restore_from(ack, coordinator.store, 0)
    again = coordinator.connect()
    assert coordinator.read(again, 1, [A, B]) == {A: b"0", B: filler(1)}
    assert len({hello.host for hello in coordinator.hellos}) == 2
    coordinator.run(again, 1, {A: b"again"})
    coordinator.push(coordinator.order(2, 1, base=1))
    assert sum(snapshot.new_bytes for snapshot in coordinator.acked().snapshots) < 20_000


def test_the_driver_finds_in_the_machines_cache_what_a_host_has_stored(
    coordinator: Any, tmp_path: Path
) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: filler(0)})
    coordinator.push(coordinator.order(1, 0))
    files = [file for snapshot in coordinator.acked().snapshots for file in snapshot.handle.files]
    (large,) = (file for file in files if is_shared(file.key))
    cache = FileCache(Path(coordinator.endpoint.cache))
    assert cache.take(large.sha256, large.size, tmp_path / "taken")


def changelogs(coordinator: Any) -> list[Path]:
    """Directories with the changelogs of hosts, living or dead."""
    return sorted((coordinator.directory / "cache" / "changelogs").glob("*-*"))


def left_behind(coordinator: Any) -> list[str]:
    """Directories of hosts, living or dead."""
    places = [
        *(coordinator.directory / "run" / "meet").glob("*"),
        *(coordinator.directory / "cache" / "hosts").glob("*"),
        *changelogs(coordinator),
    ]
    return [str(place) for place in places if place.is_dir()]


def test_a_lease_expires_when_it_is_not_renewed_in_time() -> None:
    now = [100.0]
    lease = Lease(10, lambda: now[0])
    now[0] = 110.0
    assert not lease.expired
    now[0] = 110.1
    assert lease.expired
    lease.renew()
    assert not lease.expired


def test_a_host_says_again_and_again_that_it_lives(coordinator: Any) -> None:
    coordinator.connect()
    eventually(lambda: len(coordinator.pulses) >= 2, "two pulses")
    assert {pulse.host for pulse in coordinator.pulses} == {coordinator.hellos[-1].host}
    disk = coordinator.pulses[-1].disk
    assert disk is not None
    assert disk.size == shutil.disk_usage(coordinator.directory).total
    assert 0 < disk.free <= disk.size


class Listening:
    """A coordinator that cannot be reached now and then."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def send(self, pulse: HostPulse) -> None:
        self.done.append("pulse")
        if len(self.done) == 4:
            raise CoordinatorLostError("address", "it does not answer")


@pytest.mark.parametrize("full", [False, True])
def test_a_host_writes_to_its_disk_before_it_says_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    control = Listening()

    def write(path: Path, data: bytes) -> None:
        control.done.append("disk")
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write)
    pulse = Pulse(control, "host", tmp_path, pause=0.001)  # type: ignore[arg-type]
    thread = threading.Thread(target=pulse.beat, daemon=True)
    thread.start()
    eventually(lambda: len(control.done) >= 8, "four pulses")
    pulse.stopped.set()
    thread.join()
    assert control.done[:8] == ["disk", "pulse"] * 4


def test_a_host_that_loses_its_coordinator_ends_and_leaves_nothing(coordinator: Any) -> None:
    client = coordinator.connect(lease_seconds=5.0)
    coordinator.run(client, 0, {A: b"0"})
    assert len(left_behind(coordinator)) == 3
    coordinator.stop()
    coordinator.wait_for_end(coordinator.hellos[-1].pid)
    assert left_behind(coordinator) == []


def test_a_coordinator_that_hangs_loses_its_hosts_too(coordinator: Any) -> None:
    client = coordinator.connect(lease_seconds=5.0)
    coordinator.run(client, 0, {A: b"0"})
    coordinator.silent.set()
    coordinator.wait_for_end(coordinator.hellos[-1].pid)
    assert left_behind(coordinator) == []


def test_a_short_break_of_the_order_stream_is_survived(coordinator: Any) -> None:
    client = coordinator.connect(lease_seconds=60.0)
    coordinator.run(client, 0, {A: b"0"})
    coordinator.stop()
    coordinator.start()
    eventually(lambda: len(coordinator.hellos) == 2, "the second hello")
    first, second = coordinator.hellos
    assert first == second
    assert coordinator.read(client, 1, [A]) == {A: b"0"}
    coordinator.push(coordinator.order(1, 0))
    coordinator.acked()


def test_a_stop_order_ends_the_process_and_leaves_nothing(coordinator: Any) -> None:
    coordinator.run(coordinator.connect(), 0, {A: b"0"})
    coordinator.push(StopHost())
    coordinator.wait_for_end(coordinator.hellos[-1].pid)
    assert left_behind(coordinator) == []


def test_a_host_that_is_replaced_leaves_its_changelogs_to_the_next_one(coordinator: Any) -> None:
    coordinator.run(coordinator.connect(), 0, {A: b"0"})
    coordinator.push(StopHost(is_replaced=True))
    coordinator.wait_for_end(coordinator.hellos[-1].pid)
    assert left_behind(coordinator) == [str(place) for place in changelogs(coordinator)]
    assert list(changelogs(coordinator)[0].rglob("*.log"))


def test_the_next_host_on_the_machine_opens_the_shards_of_one_that_was_killed(coordinator: Any) -> None:
    client = coordinator.connect("one")
    coordinator.run(client, 0, {A: b"0", B: b"0"})
    coordinator.push(coordinator.order(1, 0))
    (source,) = [
        RestoreSource(coordinator.store, 1, 0, snapshot.handle)
        for snapshot in coordinator.acked().snapshots
        if snapshot.shard.shard == 1
    ]
    coordinator.run(client, 1, {A: b"1"})
    # The driver does not know whether this one has committed.
    coordinator.run(client, 2, {A: b"2"})
    coordinator.kill_host()
    lost = coordinator.hellos[-1]
    client = coordinator.connect("two")
    assert coordinator.hellos[-1].changelogs == lost.changelogs
    shard = ShardId("op", 1)
    coordinator.push(Reopen(1, "q", shard, source, 0, lost.host, cut=1, begun=2, term=2))
    assert coordinator.moves.get(timeout=DEADLINE) == CopyReport(
        coordinator.hellos[-1].host, 1, CopyStep.TAKEN, 2
    )
    coordinator.push(ConfirmOwner("q", shard, coordinator.hellos[-1].host, 2))
    assert coordinator.read(client, 3, [A, B], (1,)) == {A: b"2", B: None}
    assert len(coordinator.claims) == 1, "the shard was claimed, and opened without its batches"


def test_sigterm_ends_the_process_and_leaves_only_what_the_next_host_may_need(coordinator: Any) -> None:
    client = coordinator.connect()
    access = client.begin(coordinator.task(0))
    coordinator.fetch(access, [0], [B])
    os.kill(coordinator.hellos[-1].pid, signal.SIGTERM)
    coordinator.wait_for_end(coordinator.hellos[-1].pid)
    assert left_behind(coordinator) == [str(place) for place in changelogs(coordinator)]
    with pytest.raises(HostLostError):
        coordinator.apply(access, [0], [B], [b"lost"])


def test_a_host_removes_what_killed_hosts_left_and_nothing_of_living_ones(coordinator: Any) -> None:
    coordinator.run(coordinator.connect("dead"), 0, {A: b"0"})
    coordinator.kill_host()
    left = set(left_behind(coordinator)) - {str(place) for place in changelogs(coordinator)}
    living = coordinator.connect("living")
    coordinator.run(living, 0, {A: b"0"}, (8, 9))
    before = set(left_behind(coordinator)) - left - {str(place) for place in changelogs(coordinator)}
    assert not {place for place in left if Path(place).exists()}
    assert len(before) == 2
    coordinator.connect("third")
    assert {place for place in before if Path(place).exists()} == before
    assert coordinator.read(living, 1, [A], (8, 9)) == {A: b"0"}


def test_released_shards_are_deleted(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})
    shards = coordinator.directory / "cache" / "hosts" / coordinator.hellos[-1].host / "shards"
    assert len(list(shards.iterdir())) == 2
    coordinator.push(ReleaseOrder("q"))
    eventually(lambda: list(shards.iterdir()) == [], "deletion of the shards")
    coordinator.run(client, 0, {A: b"other"})
    assert len(coordinator.claims) == 2


def test_no_secret_is_where_other_processes_can_see_it(coordinator: Any) -> None:
    coordinator.connect()
    process = Path(f"/proc/{coordinator.hellos[-1].pid}")
    files = [process / "cmdline", process / "environ"]
    for place in left_behind(coordinator):
        assert Path(place).stat().st_mode & 0o077 == 0
        files += [path for path in Path(place).rglob("*") if path.is_file()]
    # Only names in what a failure prints.
    assert [path.name for path in files if coordinator.token.encode() in path.read_bytes()] == []
