"""A standby follows the owner of its shard, and takes its place, with real RocksDB and Flight.

Only the coordinator is a plain object.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from chandy.state.errors import (
    CopyGivenUpError,
    HostLostError,
    ShardMissingError,
    ShardRefusedError,
    ShardUnreadableError,
)
from chandy.state.format.columns import Columns
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.rocksdb import RocksDatabase
from chandy.state.host.shard import Shard
from chandy.state.host.shard_key import ShardKey
from chandy.state.rpc.calls import ActionClient
from chandy.state.rpc.messages import (
    BeginTask,
    CopyReport,
    CopyStep,
    Forward,
    Forwarded,
    HandOver,
    ShardStandby,
)
from chandy.state.rpc.orders import ConfirmOwner, EndStandby, OpenAhead, Promote, ReleaseOrder
from chandy.state.rpc.wire import REQUEST, HandedOver, pack_changes
from chandy.storage.codec import to_json
from chandy.storage.errors import ChandyError, FailureCode

from ...waiting import DEADLINE, eventually
from ..fake_control import order
from .host_pair import SHARD, TOKEN, Pair
from .host_pair import pair as pair


def stand_by(pair: Pair) -> None:
    """Give the shard a standby, with number 1, while batch 2 is staged."""
    source = pair.run_three()
    pair.hosts["target"].obey(
        OpenAhead(1, "q", SHARD, source, pair.addresses["owner"], 1, pair.addresses["target"])
    )
    assert pair.reported() == CopyReport("target", 1, CopyStep.OPENED)


def promote(pair: Pair, cut: int) -> None:
    pair.hosts["target"].obey(Promote(1, cut, 2))
    assert pair.reported() == CopyReport("target", 1, CopyStep.TAKEN, 2)
    pair.hosts["target"].obey(ConfirmOwner("q", SHARD, "target", 2))


def values(pair: Pair) -> list[str | None]:
    return [pair.value("target", key) for key in (b"a", b"b", b"c")]


def standby_of(pair: Pair) -> Shard:
    arrivals = pair.hosts["target"]._arrivals
    assert arrivals is not None
    return arrivals._arrivals[1].shard


def state(a: bytes | None, b: bytes | None, c: bytes | None) -> list[str | None]:
    return [None if value is None else value.hex() for value in (a, b, c)]


def test_a_standby_has_what_was_staged_before_it_was_there_and_all_that_follows(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"3"})
    pair.run("owner", 4, {})
    pair.run("owner", 5, {b"b": b"5"})
    promote(pair, 5)
    assert values(pair) == state(b"3", b"5", b"2")
    pair.run("target", 6, {b"a": b"6"}, term=2)
    pair.run("target", 7, {}, term=2)
    assert values(pair) == state(b"6", b"5", b"2")


def test_a_batch_that_has_not_committed_runs_again_at_the_promoted_standby(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"not this"})
    promote(pair, 2)
    pair.run("target", 3, {b"a": b"3"}, term=2)
    pair.run("target", 4, {}, term=2)
    assert values(pair) == state(b"3", None, b"2")


def test_a_batch_whose_commit_nobody_knows_of_is_there_when_the_next_one_begins(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"3"})
    promote(pair, 2)
    pair.run("target", 4, {}, term=2)
    assert values(pair) == state(b"3", None, b"2")


def test_the_attempt_that_is_staged_last_counts_at_the_standby_too(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"first", b"c": b"first"})
    pair.run("owner", 3, {b"a": b"second"})
    promote(pair, 3)
    assert values(pair) == state(b"second", None, b"2")


def test_a_standby_puts_off_the_work_of_a_batch_and_is_promoted_with_all_of_it(tmp_path: Path) -> None:
    shard = Shard("op/0", tmp_path / "shard", Memory(8 << 20))
    keys = [b"a", b"b", b"c"]
    try:
        shard.join(HandedOver(2, [(2, {b"a": b"2"})]))
        for batch in (3, 4, 5):
            value = b"%d" % batch
            changes = Changes.of("op/0", {b"a": value, keys[batch - 3]: value})
            shard.follow(batch, batch - 1, changes)
        # Of 3 and 4, which have committed, one is put off.
        assert shard.fetch(keys) == [b"3", None, None]
        shard.catch_up()
        assert shard.fetch(keys) == [b"4", b"4", None]
        with pytest.raises(AssertionError, match="the table alone"):
            changes.columns  # noqa: B018 (it raises)
        shard.follow(6, 5, Changes.of("op/0", {b"a": b"6"}))
        shard.promote(5)
        assert (shard.position, shard.fetch(keys)) == (5, [b"5", b"4", b"5"])
    finally:
        shard.close()


def test_a_standby_adds_a_committed_batch_to_its_state_without_being_told_of_another_one(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"3"})
    pair.run("owner", 4, {b"a": b"4"})
    eventually(lambda: standby_of(pair).fetch([b"a"]) == [b"3"], "batch 3 in the standby's state")


def test_a_standby_whose_work_on_the_batch_before_has_failed_is_dropped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_by(pair)

    def fail(shard: Shard) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(Shard, "catch_up", fail)
        pair.run("owner", 3, {b"a": b"3"})
        assert not pair.controls["owner"].dropped
        pair.run("owner", 4, {b"a": b"4"})
    assert [one.copy_id for one in pair.controls["owner"].dropped] == [1]


def test_what_an_owner_had_forwarded_in_part_when_it_was_killed_is_not_staged(pair: Pair) -> None:
    stand_by(pair)
    pair.run("owner", 3, {b"a": b"3", b"b": b"3"})
    client = ActionClient(pair.addresses["target"], TOKEN)
    request = Forward("q", "op", 3, {0: Forwarded(1, 2)}, rows=2)
    descriptor = flight.FlightDescriptor.for_command(to_json(request))
    writer, _ = client.flight.do_put(descriptor, REQUEST, client.options)
    for rows in pack_changes({0: Columns.of({b"a": b"half of another attempt"})}):
        writer.write_batch(rows)
    with pytest.raises(ShardRefusedError, match="2 changes"), client.errors():
        writer.close()
    client.close()
    promote(pair, 3)
    assert values(pair) == state(b"3", b"3", b"2")


def test_an_owner_that_has_lost_its_shard_without_knowing_it_tells_no_task_that_anything_is_staged(
    pair: Pair,
) -> None:
    stand_by(pair)
    promote(pair, 2)
    pair.controls["owner"].drop_refusal = ShardRefusedError("not the owner", "the owner", "another")
    begun = BeginTask("q", 3, "op", (0,))
    pair.hosts["owner"].begin(begun)
    changes = Changes.of("op/0", {b"a": b"zombie"})
    with pytest.raises(ShardRefusedError, match="not the owner"):
        pair.hosts["owner"].stage(begun, pair.hosts["owner"].shards(begun), {0: changes})
    assert values(pair) == state(b"1", None, b"2")


def test_an_owner_goes_on_without_a_standby_that_does_not_answer_if_the_coordinator_consents(
    pair: Pair,
) -> None:
    stand_by(pair)
    pair.servers["target"].shutdown()
    pair.run("owner", 3, {b"a": b"3"})
    (dropped,) = pair.controls["owner"].dropped
    assert (dropped.host, dropped.shard, dropped.term, dropped.copy_id) == ("owner", SHARD, 1, 1)
    # And asks once.
    pair.run("owner", 4, {b"a": b"4"})
    assert len(pair.controls["owner"].dropped) == 1


def test_a_standby_that_has_missed_a_batch_refuses_the_next_one(pair: Pair) -> None:
    stand_by(pair)
    (shard,) = pair.hosts["owner"].shards(BeginTask("q", 2, "op", (0,))).values()
    standby, shard.standby = shard.standby, None
    pair.run("owner", 3, {b"a": b"3"})
    shard.standby = standby
    pair.run("owner", 4, {b"a": b"4"})
    (dropped,) = pair.controls["owner"].dropped
    assert dropped.copy_id == 1


def test_a_standby_that_has_ended_takes_nothing_more_and_its_owner_sends_nothing_more(pair: Pair) -> None:
    stand_by(pair)
    for host in pair.hosts.values():
        host.obey(EndStandby("q", SHARD, 1))
    with pytest.raises(CopyGivenUpError):
        pair.hosts["target"].follow(Forward("q", "op", 3, {0: Forwarded(1, 2)}, 0), {})
    pair.run("owner", 3, {b"a": b"3"})
    assert not pair.controls["owner"].dropped
    pair.hosts["target"].obey(Promote(1, 3, 2))
    assert pair.reported().step is CopyStep.FAILED


def test_the_end_of_a_standby_does_not_end_another_one(pair: Pair) -> None:
    stand_by(pair)
    for host in pair.hosts.values():
        host.obey(EndStandby("q", SHARD, 7))
    pair.run("owner", 3, {b"a": b"3"})
    promote(pair, 3)
    assert values(pair) == state(b"3", None, b"2")


def test_a_standby_that_was_given_up_and_joins_late_does_not_take_the_place_of_a_newer_one(
    pair: Pair,
) -> None:
    stand_by(pair)
    pair.hosts["owner"].obey(order(pair.store, 2, 2, (0,), follow=(SHARD,)))
    pair.controls["owner"].acked()
    with pytest.raises(ShardRefusedError, match="another standby"):
        pair.hosts["owner"].hand_over(HandOver("q", SHARD, 1, 2, None, ShardStandby(0, "nowhere")))
    pair.run("owner", 3, {b"a": b"3"})
    promote(pair, 3)
    assert values(pair) == state(b"3", None, b"2")


def test_a_shard_that_was_a_standby_takes_part_in_checkpoints(pair: Pair) -> None:
    stand_by(pair)
    promote(pair, 2)
    pair.run("target", 3, {b"a": b"3"}, term=2)
    pair.hosts["target"].obey(order(pair.store, 2, 3, (0,), base=1))
    (snapshot,) = pair.controls["target"].acked().snapshots
    assert snapshot.term == 2


def test_a_standby_ends_with_its_query(pair: Pair) -> None:
    stand_by(pair)
    pair.hosts["target"].obey(ReleaseOrder("q"))
    shards = pair.hosts["target"]._directory / "shards"
    eventually(lambda: not list(shards.iterdir()), "the end of the standby's files")


def test_a_standby_cannot_join_where_nothing_was_kept(pair: Pair) -> None:
    pair.run("owner", 0, {b"a": b"0"})
    request = HandOver("q", SHARD, 1, 0, None, ShardStandby(1, pair.addresses["target"]))
    with pytest.raises(ShardRefusedError):
        pair.hosts["owner"].hand_over(request)
    pair.run("owner", 1, {b"a": b"1"})
    assert not pair.controls["owner"].dropped


def test_no_answer_of_a_standby_is_no_success(pair: Pair) -> None:
    stand_by(pair)
    pair.servers["target"].shutdown()
    pair.controls["owner"].drop_refusal = HostLostError("coordinator", "away")
    begun = BeginTask("q", 3, "op", (0,))
    pair.hosts["owner"].begin(begun)
    with pytest.raises(ChandyError):
        pair.hosts["owner"].stage(begun, pair.hosts["owner"].shards(begun), {})


def large(pair: Pair) -> dict[bytes, bytes]:
    """Give the shard, which has more state than RocksDB reads when it is opened, a standby; return the state."""
    chance = random.Random(0)
    values = {b"%06d" % number: chance.randbytes(100) for number in range(5000)}
    pair.run("owner", 0, dict(values))
    source = pair.checkpoint(1, 0)
    pair.hosts["target"].obey(
        OpenAhead(1, "q", SHARD, source, pair.addresses["owner"], 1, pair.addresses["target"])
    )
    assert pair.reported().step is CopyStep.OPENED
    return values


def damage(pair: Pair, folder: Path) -> None:
    """Change bytes in the middle of the standby's files, which are links to those of the store no more."""
    shards = pair.hosts["target"]._directory / "shards"
    for path in shards.rglob("*.sst"):
        for other in folder.rglob("*"):
            if other != path and other.is_file() and other.samefile(path):
                alone = other.with_name("alone")
                shutil.copyfile(other, alone)
                alone.replace(other)
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            for offset in range(size // 4, 3 * size // 4, 1000):
                file.seek(offset)
                byte = file.read(1)
                file.seek(offset)
                file.write(bytes([byte[0] ^ 1]))


def test_a_standby_whose_files_are_damaged_gives_no_wrong_value_and_says_that_the_pipeline_must_go_back(
    pair: Pair, tmp_path: Path
) -> None:
    written = large(pair)
    pair.run("owner", 1, {b"000001": b"new"})
    damage(pair, tmp_path)
    promote(pair, 1)
    wrong = 0
    for key, value in [*written.items(), (b"000001", b"new")]:
        try:
            found = pair.value("target", key)
        except ShardUnreadableError as error:
            assert error.code is FailureCode.STATE_UNUSABLE
            wrong += 1
        else:
            assert found == (b"new" if key == b"000001" else value).hex()
    assert wrong
    (shard,) = pair.hosts["target"]._table.of_operator("q", "op")
    with pytest.raises(ShardUnreadableError, match="Corruption"):
        list(shard.scan(b"", b"a"))


def test_a_standby_that_cannot_write_is_dropped_and_its_owner_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_write_a_batch(pair, monkeypatch)
    pair.run("owner", 5, {b"a": b"5"})
    (dropped,) = pair.controls["owner"].dropped
    assert dropped.copy_id == 1
    pair.run("owner", 6, {})
    assert pair.value("owner", b"a") == b"5".hex()


def test_a_standby_that_has_lost_what_it_could_not_write_does_not_become_the_shard(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cannot_write_a_batch(pair, monkeypatch)
    pair.hosts["target"].obey(Promote(1, 4, 2))
    report = pair.reported()
    assert report.step is CopyStep.FAILED
    assert report.why is not None
    assert "No space left on device" in report.why
    with pytest.raises(ShardMissingError):
        pair.hosts["target"]._table.held(ShardKey("q", "op", 0))


def full_disk(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the standby's RocksDB take no more."""
    right, own = RocksDatabase.write, pair.hosts["target"]._directory

    def write(database: RocksDatabase, entries: Mapping[bytes, bytes | None], batch: int) -> None:
        if own in Path(database.db.path()).parents:
            raise OSError(errno.ENOSPC, "No space left on device")
        right(database, entries, batch)

    monkeypatch.setattr(RocksDatabase, "write", write)


def cannot_write_a_batch(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a standby's disk be full when it is to write what follows."""
    stand_by(pair)
    full_disk(pair, monkeypatch)
    pair.run("owner", 3, {b"a": b"3"})
    pair.run("owner", 4, {b"a": b"4"})
    spilled(pair)


def spilled(pair: Pair) -> None:
    """Have the hosts write what they have in memory, as for want of it."""
    for host in pair.hosts.values():
        for holder in host._memory._holders:
            holder.spill()


@pytest.mark.parametrize(
    "ending", [EndStandby("q", SHARD, 1), ConfirmOwner("q", SHARD, "owner", 1), ReleaseOrder("q")]
)
def test_the_end_of_a_standby_waits_for_no_disk(pair: Pair, ending: Any) -> None:
    stand_by(pair)
    shard, holds, goes_on = standby_of(pair), threading.Event(), threading.Event()

    def stalled() -> None:
        # RocksDB holds this lock while it writes. A test that fails waits for a while.
        with shard.levels._disk:
            holds.set()
            goes_on.wait(DEADLINE / 10)

    writer = threading.Thread(target=stalled)
    writer.start()
    assert holds.wait(DEADLINE)
    # The thread that carries out orders renews the lease, too.
    pair.hosts["target"].obey(ending)
    assert writer.is_alive()
    goes_on.set()
    writer.join(DEADLINE)
    eventually(lambda: not shard.directory.exists())
