"""Tasks and a real host process, with a coordinator that is a real Flight server: all tests share the host."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from chandy.state.errors import (
    CannotGoBackError,
    RemoteError,
    ShardMissingError,
    StateAccessError,
)
from chandy.state.format.arrow import BYTES
from chandy.state.rpc import client as task_client
from chandy.state.rpc.access import Entries
from chandy.state.rpc.auth import token_options
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.client import TaskClient
from chandy.state.rpc.messages import (
    AskBatches,
    AskMetrics,
    BatchTimes,
    ReadValues,
    TaskFailure,
    Values,
)
from chandy.state.rpc.metrics import OperatorMetrics, RecentMetrics
from chandy.storage.codec import to_json

from ...waiting import DEADLINE, eventually

pytestmark = pytest.mark.processes

A, B, C, D = b"a", b"b", b"c", b"d"


@pytest.fixture
def coordinator(lasting_coordinator: Any) -> Any:
    lasting_coordinator.begin_test()
    return lasting_coordinator


def test_a_batch_is_seen_by_the_next_one_and_not_by_itself(coordinator: Any) -> None:
    client = coordinator.connect()
    with client.begin(coordinator.task(0)) as access:
        assert coordinator.fetch(access, [0, 1], [B, A]) == [None, None]
        coordinator.apply(access, [0, 1], [B, A], [b"1", b"2"])
    assert coordinator.read(client, 0, [A, B]) == {A: None, B: None}
    assert coordinator.read(client, 1, [A, B]) == {A: b"2", B: b"1"}
    assert [ask.batch for ask in coordinator.asked] == [0, 1]
    assert [claim.shards for claim in coordinator.claims] == [(0, 1)]


def test_two_attempts_at_once_do_not_disturb_each_other(coordinator: Any) -> None:
    client = coordinator.connect()
    coordinator.run(client, 0, {A: b"0", C: b"0"})
    first, second = client.begin(coordinator.task(1)), client.begin(coordinator.task(1))
    coordinator.apply(first, [1], [A], [b"first"])
    assert coordinator.fetch(second, [1, 1], [A, C]) == [b"0", b"0"]
    coordinator.apply(second, [1], [C], [b"second"])
    assert coordinator.read(client, 2, [A, C]) == {A: b"0", C: b"second"}


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
    account = client._link(client.address).call(
        "operator_metrics", AskMetrics(task.query_id, task.uid), OperatorMetrics
    )
    assert (account.tasks, account.rows, account.keys) == (2, 10, 4)
    assert account.seconds >= account.state_seconds > 0
    recent = client._link(client.address).call("batches", AskBatches(task.query_id, task.uid), RecentMetrics)
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
client = TaskClient.over_flight(sys.argv[1], sys.stdin.readline().strip())
access = client.begin(BeginTask(sys.argv[2], 1, "op", (0, 1)))
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
    arguments = [sys.executable, "-c", KILLED, client.address, coordinator.query_id]
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
    mine, other = coordinator.connect(), coordinator.connect("other")
    coordinator.run(other, 0, {B: b"at the other"}, (1, 3))
    coordinator.elsewhere = {1: other.address, 3: other.address}
    with mine.begin(coordinator.task(1, (0, 1, 2, 3))) as access:
        assert coordinator.fetch(access, [0, 3, 2, 1], [A, B, B, B]) == [None, None, None, b"at the other"]
        coordinator.apply(access, [0, 1, 1, 2], [A, A, B, C], [b"0", b"1", None, b"2"])
    with mine.begin(coordinator.task(2, (0, 1, 2, 3))) as access:
        assert coordinator.fetch(access, [0, 1, 1, 2, 3], [A, A, B, C, D]) == [b"0", b"1", None, b"2", None]
    with other.begin(coordinator.task(2, (1,))) as access:
        assert coordinator.fetch(access, [1], [A]) == [b"1"]


def test_the_times_and_the_fresh_shards_of_all_hosts_come_with_the_batch(coordinator: Any) -> None:
    mine, other = coordinator.connect(), coordinator.connect("other")
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
    mine, other = coordinator.connect(), coordinator.connect("other")
    coordinator.run(other, 0, {b"\x02x": b"at the other"}, (1, 3))
    coordinator.elsewhere = {1: other.address, 3: other.address}
    shards = (0, 1, 2, 3)
    with mine.begin(coordinator.task(1, shards)) as access:
        assert scanned(access, b"\x02", b"\x03") == [(1, b"\x02x", b"at the other")]
        keys = [b"\x02a", b"\x02b", b"\x02a", b"\x03"]
        coordinator.apply(access, [0, 0, 2, 2], keys, [b"1", b"2", b"3", b"4"])
    with mine.begin(coordinator.task(2, shards)) as access:
        found = scanned(access, b"\x02", b"\x03")
        assert sorted(found) == [
            (0, b"\x02a", b"1"), (0, b"\x02b", b"2"), (1, b"\x02x", b"at the other"), (2, b"\x02a", b"3")
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
    for committed, value in ((0, b"0"), (1, b"1")):
        found = reader.call("read", ReadValues(coordinator.query_id, "op", keys, committed), Values)
        assert found.entries == {A.hex(): value.hex()}
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
        TaskClient.over_flight(good.address, "wrong").begin(coordinator.task(1))
    data = flight.FlightClient(good.address)
    descriptor = flight.FlightDescriptor.for_command(to_json(coordinator.task(0)))
    with pytest.raises(flight.FlightUnauthenticatedError):
        _, reader = data.do_exchange(descriptor, token_options("wrong"))
        reader.read_chunk()
    assert len(coordinator.asked) == 1


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


def test_the_hello_says_where_and_what_the_host_is(coordinator: Any) -> None:
    client = coordinator.connect("executor")
    (hello,) = (hello for hello in coordinator.hellos if hello.address == client.address)
    assert hello.executor.endswith("/executor")
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
