"""A real host process, reached as a task reaches it, with a coordinator that is a real Flight server."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from chandy.state.errors import (
    CannotGoBackError,
    CoordinatorLostError,
    HostLostError,
    RemoteError,
    ShardMissingError,
    ShardRefusedError,
    StateAccessError,
)
from chandy.state.format.arrow import BYTES
from chandy.state.host.coordinator_client import Lease, Pulse
from chandy.state.rpc import client as task_client
from chandy.state.rpc.access import Entries
from chandy.state.rpc.auth import token_options
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.messages import (
    AskBatches,
    AskMetrics,
    BatchTimes,
    CopyReport,
    CopyStep,
    HostPulse,
    ReadValues,
    TaskFailure,
    Values,
)
from chandy.state.rpc.metrics import OperatorMetrics, RecentMetrics
from chandy.state.rpc.orders import ReleaseOrder, Reopen, Settle, StopHost
from chandy.state.shards import RestoreSource, ShardId
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.layout import is_shared
from chandy.storage.codec import to_json

from ...waiting import DEADLINE, eventually

A, B, C, D = b"a", b"b", b"c", b"d"


def test_a_batch_is_seen_by_the_next_one_and_not_by_itself(coordinator: Any) -> None:
    client = coordinator.connect()
    with client.begin(coordinator.task(0)) as access:
        assert coordinator.fetch(access, [0, 1], [B, A]) == [None, None]
        coordinator.apply(access, [0, 1], [B, A], [b"1", b"2"])
    assert coordinator.read(client, 0, [A, B]) == {A: None, B: None}
    assert coordinator.read(client, 1, [A, B]) == {A: b"2", B: b"1"}
    assert [ask.batch for ask in coordinator.asked] == [0, 1]
    assert [claim.shards for claim in coordinator.claims] == [(0, 1)]


def test_a_batch_that_runs_again_begins_with_the_state_before_it(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"1"})
    coordinator.run(client, 1, {A: b"2", B: b"2"})
    assert coordinator.read(client, 1, [A, B]) == {A: b"1", B: None}
    coordinator.run(client, 1, {A: b"3"})
    assert coordinator.read(client, 2, [A, B]) == {A: b"3", B: None}
    coordinator.run(client, 2, {A: None})
    assert coordinator.read(client, 3, [A]) == {A: None}


def test_two_attempts_at_once_do_not_disturb_each_other(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0", C: b"0"})
    first, second = client.begin(coordinator.task(1)), client.begin(coordinator.task(1))
    coordinator.apply(first, [1], [A], [b"first"])
    assert coordinator.fetch(second, [1, 1], [A, C]) == [b"0", b"0"]
    coordinator.apply(second, [1], [C], [b"second"])
    assert coordinator.read(client, 2, [A, C]) == {A: b"0", C: b"second"}


def test_an_attempt_that_spark_has_given_up_cannot_apply(coordinator: Any) -> None:
    client = coordinator.connect()
    late = client.begin(coordinator.task(0))
    coordinator.run(client, 0, {A: b"0"})
    coordinator.run(client, 1, {A: b"1"})
    with pytest.raises(ShardRefusedError, match="expected changes of batch 1, found changes of batch 0"):
        coordinator.apply(late, [1], [A], [b"late"])
    assert coordinator.read(client, 2, [A]) == {A: b"1"}


def test_what_was_sent_but_not_committed_is_nothing(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})
    with client.begin(coordinator.task(1)) as access:
        access._exchanges[0].send(coordinator.entries([1], [A], [b"half"]))
    assert coordinator.read(client, 1, [A]) == {A: b"0"}


def test_the_host_adds_up_the_metrics_of_its_tasks(coordinator: Any) -> None:
    client = coordinator.connect()
    for batch in range(2):
        with client.begin(coordinator.task(batch)) as access:
            access.metrics.rows, access.metrics.keys = 5, 2
            access.apply([coordinator.entries([1], [A], [b"v"])])
    task = coordinator.task(0)
    account = client._client(client.address).call(
        "operator_metrics", AskMetrics(task.query_id, task.uid), OperatorMetrics
    )
    assert (account.tasks, account.rows, account.keys) == (2, 10, 4)
    assert account.seconds >= account.state_seconds > 0
    recent = client._client(client.address).call(
        "batches", AskBatches(task.query_id, task.uid), RecentMetrics
    )
    assert [(one.batch, one.tasks.rows, one.updated, one.removed) for one in recent.batches] == [
        (0, 5, 1, 0),
        (1, 5, 1, 0),
    ]
    assert recent.batches[1].memory > 0


KILLED = """
import sys, time
import numpy as np
import pyarrow as pa
from chandy.state.format.arrow import BYTES
from chandy.state.rpc.access import Entries
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.messages import BeginTask
access = TaskClient(sys.argv[1], sys.stdin.readline().strip()).begin(BeginTask("q", 1, "op", (0, 1)))
values = pa.array([b"half"] * 100_000, BYTES)
keys = pa.array([b"%d" % i for i in range(100_000)], BYTES)
access._exchanges[0].send(Entries(np.full(100_000, 1, np.int32), keys, values))
found = access.fetch(np.array([1], np.int32), pa.array([b"a"], BYTES))
assert found.to_pylist() == [b"0"]
print("sent", flush=True)
time.sleep(600)
"""


def test_a_task_that_is_killed_while_it_applies_changes_nothing(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})
    arguments = [sys.executable, "-c", KILLED, client.address]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as task:
        assert task.stdin is not None and task.stdout is not None
        task.stdin.write(coordinator.token.encode() + b"\n")
        task.stdin.flush()
        assert task.stdout.readline() == b"sent\n"
        task.send_signal(signal.SIGKILL)
    with client.begin(coordinator.task(1)) as access:
        assert coordinator.fetch(access, [1] * 3, [b"0", b"99999", A]) == [None, None, b"0"]
    coordinator.run(client, 1, {A: b"1"})
    assert coordinator.read(client, 2, [A]) == {A: b"1"}


def test_many_keys_and_large_values_go_in_several_messages(coordinator: Any) -> None:
    client = coordinator.connect()
    randomness = random.Random(1)
    keys = [b"%d" % number for number in range(50_000)]
    values = [b"v" * randomness.randrange(100) for _ in keys]
    values[7] = b"x" * 20_000_000
    values[8] = b"y" * 20_000_000
    shards = [0] * 30_000 + [1] * 20_000
    with client.begin(coordinator.task(0)) as access:
        coordinator.apply(access, shards, keys, values)
    with client.begin(coordinator.task(1)) as access:
        assert coordinator.fetch(access, shards, keys) == values


def test_a_shard_without_changes_learns_that_the_batch_left_it_so(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0", B: b"0"})
    coordinator.run(client, 0, {A: b"again"})
    assert coordinator.read(client, 1, [A, B]) == {A: b"again", B: None}


def test_errors_of_the_host_arrive_as_what_they_are(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 5, {A: b"0"})
    coordinator.run(client, 6, {A: b"1"})
    with pytest.raises(CannotGoBackError) as caught:
        client.begin(coordinator.task(5))
    assert (caught.value.asked, caught.value.position) == (5, 6)
    coordinator.stale.add("old")
    with pytest.raises(RemoteError, match="StaleQueryError: expected query q, found another"):
        client.begin(coordinator.task(0, query_id="old"))


def test_an_access_serves_its_own_shards_once(coordinator: Any) -> None:
    client = coordinator.connect()
    access = client.begin(coordinator.task(0, (0, 2)))
    for shard in (1, 3, -1):
        with pytest.raises(ShardMissingError):
            coordinator.fetch(access, [shard], [A])
    with pytest.raises(ValueError, match="a shard for each of 2 keys, found 1"):
        coordinator.fetch(access, [0], [A, B])
    assert coordinator.fetch(access, [], []) == []
    coordinator.apply(access, [], [], [])
    with pytest.raises(StateAccessError, match="has ended"):
        coordinator.apply(access, [], [], [])
    with pytest.raises(StateAccessError, match="has ended"):
        coordinator.fetch(access, [0], [A])


def test_shards_of_another_host_are_reached_there(coordinator: Any) -> None:
    mine, other = coordinator.connect("one"), coordinator.connect("two")
    coordinator.run(other, 0, {B: b"at two"}, (1, 3))
    coordinator.elsewhere = {1: other.address, 3: other.address}
    with mine.begin(coordinator.task(1, (0, 1, 2, 3))) as access:
        assert coordinator.fetch(access, [0, 3, 2, 1], [A, B, B, B]) == [None, None, None, b"at two"]
        coordinator.apply(access, [0, 1, 1, 2], [A, A, B, C], [b"0", b"1", None, b"2"])
    with mine.begin(coordinator.task(2, (0, 1, 2, 3))) as access:
        assert coordinator.fetch(access, [0, 1, 1, 2, 3], [A, A, B, C, D]) == [b"0", b"1", None, b"2", None]
    with other.begin(coordinator.task(2, (1,))) as access:
        assert coordinator.fetch(access, [1], [A]) == [b"1"]


def test_the_times_and_the_fresh_shards_of_all_hosts_come_with_the_batch(coordinator: Any) -> None:
    mine, other = coordinator.connect("one"), coordinator.connect("two")
    coordinator.times[1] = BatchTimes(1000, 900, 800)
    coordinator.run(other, 0, {B: b"0"}, (1, 3))
    coordinator.elsewhere = {1: other.address, 3: other.address}
    with mine.begin(coordinator.task(1, (0, 1, 2, 3))) as access:
        assert access.times == BatchTimes(1000, 900, 800)
        assert access.fresh == {0, 2}


def scanned(access: Any, start: bytes, stop: bytes) -> list[tuple[int, bytes, bytes]]:
    return [
        row
        for entries in access.scan(start, stop)
        for row in zip(
            entries.shards.tolist(), entries.keys.to_pylist(), entries.values.to_pylist(), strict=True
        )
    ]


def test_a_scan_walks_all_shards_wherever_they_are(coordinator: Any) -> None:
    mine, other = coordinator.connect("one"), coordinator.connect("two")
    coordinator.run(other, 0, {b"\x02x": b"at two"}, (1, 3))
    coordinator.elsewhere = {1: other.address, 3: other.address}
    shards = (0, 1, 2, 3)
    with mine.begin(coordinator.task(1, shards)) as access:
        assert scanned(access, b"\x02", b"\x03") == [(1, b"\x02x", b"at two")]
        keys = [b"\x02a", b"\x02b", b"\x02a", b"\x03"]
        coordinator.apply(access, [0, 0, 2, 2], keys, [b"1", b"2", b"3", b"4"])
    with mine.begin(coordinator.task(2, shards)) as access:
        found = scanned(access, b"\x02", b"\x03")
        assert sorted(found) == [
            (0, b"\x02a", b"1"), (0, b"\x02b", b"2"), (1, b"\x02x", b"at two"), (2, b"\x02a", b"3")
        ]  # fmt: skip
        assert scanned(access, b"\x02b", b"\x02c") == [(0, b"\x02b", b"2")]
        assert scanned(access, b"\x02y", b"\x03") == []
        access.apply([])
        with pytest.raises(StateAccessError, match="has ended"):
            scanned(access, b"\x02", b"\x03")


def test_a_long_scan_comes_in_pages_and_fetches_may_come_between(coordinator: Any) -> None:
    client = coordinator.connect()
    rows = [(shard, b"\x02%06d" % row) for shard in (0, 1, 2) for row in range(shard * 30_000)]
    rows += [(0, b"\x02z"), (1, b"\x02z")]
    rows.sort()
    values = [b"%d" % row for row in range(len(rows))]
    values[0] = b"x" * 20_000_000
    values[40] = b"y" * 20_000_000
    with client.begin(coordinator.task(0, (0, 1, 2))) as access:
        coordinator.apply(access, [shard for shard, _ in rows], [key for _, key in rows], values)
    found = []
    with client.begin(coordinator.task(1, (0, 1, 2))) as access:
        for entries in access.scan(b"\x02", b"\x03"):
            assert 0 < len(entries) <= 32 * 1024
            found += zip(
                entries.shards.tolist(), entries.keys.to_pylist(), entries.values.to_pylist(), strict=True
            )
            assert coordinator.fetch(access, [0], [b"\x02z"]) == [values[0]]
    assert found == [(shard, key, value) for (shard, key), value in zip(rows, values, strict=True)]


def test_changes_come_in_parts_and_of_two_of_one_key_the_later_one_wins(coordinator: Any) -> None:
    client = coordinator.connect()
    with client.begin(coordinator.task(0)) as access:
        access.apply(
            coordinator.entries([0, 1], [B, key], [b"0", value])
            for key, value in [(A, b"1"), (C, b"1"), (A, b"2"), (C, None)]
        )
    assert coordinator.read(client, 1, [A, B, C]) == {A: b"2", B: b"0", C: None}


def test_changes_that_fail_half_way_change_nothing(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})

    def failing() -> Iterator[Entries]:
        yield coordinator.entries([1], [A], [b"half"])
        raise ZeroDivisionError

    access = client.begin(coordinator.task(1))
    with pytest.raises(ZeroDivisionError):
        access.apply(failing())
    with pytest.raises(StateAccessError, match="has ended"):
        access.apply([])
    assert coordinator.read(client, 1, [A]) == {A: b"0"}


def test_changes_that_cannot_be_sent_are_an_error_and_no_wait_for_an_answer(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = coordinator.connect()
    with client.begin(coordinator.task(0)) as access:
        coordinator.fetch(access, [0], [A])
        other = pa.schema([("shard", pa.int32()), ("key", BYTES), ("other", BYTES)])
        monkeypatch.setattr(task_client, "REQUEST", other)
        with pytest.raises(StateAccessError, match="changes of batch 0 cannot be sent"):
            coordinator.apply(access, [0], [A], [b"1"])


def test_parts_of_arrays_are_sent_as_what_they_are(coordinator: Any) -> None:
    client = coordinator.connect()
    keys = pa.array([b"zz", A, C, None, b"yy"], BYTES)
    values = pa.array([None, b"not", b"", b"1", None, b"not"], BYTES)
    with client.begin(coordinator.task(0)) as access:
        access.apply([Entries(np.array([1, 1], np.int32), keys.slice(1, 2), values.slice(2, 2))])
    with client.begin(coordinator.task(1)) as access:
        found = access.fetch(np.array([1, 1, 1], np.int32), keys.take(pa.array([2, 1, 4])))
    assert found.to_pylist() == [b"1", b"", None]


def test_values_are_read_while_the_query_runs(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})
    coordinator.run(client, 1, {A: b"1"})
    reader = ActionClient(client.address, coordinator.token)
    keys = (A.hex(), B.hex())
    assert reader.call("read", ReadValues("q", "op", keys, 0), Values).values == (b"0".hex(), None)
    assert reader.call("read", ReadValues("q", "op", keys, 1), Values).values == (b"1".hex(), None)
    reader.close()


def test_hosts_that_point_at_each_other_are_an_error(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.elsewhere = {1: client.address}
    with pytest.raises(StateAccessError, match=r"no state host owns shards \[1\]"):
        client.begin(coordinator.task(0, (0, 1)))


def test_a_failure_of_a_processor_is_passed_on(coordinator: Any) -> None:
    failure = TaskFailure("q", 3, "op", "('AA',)", "ValueError", "Traceback ...")
    coordinator.connect().report(failure)
    assert coordinator.reports == [failure]


def test_a_wrong_token_is_refused_for_actions_and_data(coordinator: Any) -> None:
    good = coordinator.connect()
    coordinator.run(good, 0, {A: b"0"})
    with pytest.raises(flight.FlightUnauthenticatedError):
        TaskClient(good.address, "wrong").begin(coordinator.task(1))
    data = flight.FlightClient(good.address)
    descriptor = flight.FlightDescriptor.for_command(to_json(coordinator.task(0)))
    with pytest.raises(flight.FlightUnauthenticatedError):
        _, reader = data.do_exchange(descriptor, token_options("wrong"))
        reader.read_chunk()
    assert len(coordinator.asked) == 1


# --- snapshots and restores ---------------------------------------------------------------------------------


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


def test_tasks_run_while_another_restores(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0"})
    coordinator.claim_gate.clear()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(coordinator.read, client, 0, [A], (5,))
        eventually(lambda: len(coordinator.claims) == 2, "the claim")
        assert coordinator.read(client, 1, [A]) == {A: b"0"}
        assert not slow.done()
        coordinator.claim_gate.set()
        assert slow.result() == {A: None}


# --- life and death of the process --------------------------------------------------------------------------


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
    coordinator.push(Settle("q", shard, coordinator.hellos[-1].host, 2))
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


def test_the_hello_says_where_and_what_the_host_is(coordinator: Any) -> None:
    client = coordinator.connect("executor-7")
    hello = coordinator.hellos[-1]
    assert hello.address == client.address
    assert hello.executor.endswith("/executor-7")
    assert json.loads(to_json(hello))["pid"] == hello.pid


def test_concurrent_tasks_of_one_batch_share_the_host(coordinator: Any) -> None:
    client = coordinator.connect()
    barrier = threading.Barrier(4)

    def task(shard: int) -> None:
        barrier.wait(DEADLINE)
        for batch in range(5):
            with client.begin(coordinator.task(batch, (shard,))) as access:
                found = coordinator.fetch(access, [shard], [A])[0]
                assert found == (b"%d" % (batch - 1) if batch else None)
                coordinator.apply(access, [shard], [A], [b"%d" % batch])
            barrier.wait(DEADLINE)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(task, shard) for shard in range(4)]:
            done.result(DEADLINE)
    assert sorted(ask.batch for ask in coordinator.asked) == [0, 1, 2, 3, 4]
