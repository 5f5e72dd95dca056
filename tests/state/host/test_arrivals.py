"""A shard moves from one host to another, with real RocksDB and Flight. Only the coordinator is a plain object."""

from __future__ import annotations

import attrs
import pytest

from chandy.state.errors import CannotGoBackError, ShardMissingError, ShardRefusedError
from chandy.state.host.changes import Changes
from chandy.state.host.tail import Tail
from chandy.state.rpc.messages import BeginTask, CopyReport, CopyStep, HandOver
from chandy.state.shards import ShardId

from ..fake_control import order
from .host_pair import SHARD, Pair
from .host_pair import pair as pair


def moved(pair: Pair) -> None:
    """Let the shard move after batch 3."""
    source = pair.run_three()
    assert pair.open_ahead(source) == CopyReport("target", 1, CopyStep.OPENED)
    pair.run("owner", 3, {b"a": b"3"})
    assert pair.take_over(3) == CopyReport("target", 1, CopyStep.TAKEN, 2)


def test_a_shard_that_has_moved_has_every_batch(pair: Pair) -> None:
    moved(pair)
    pair.confirm_owner("target", 2)
    assert [pair.value("target", key) for key in (b"a", b"b", b"c")] == [b"3".hex(), None, b"2".hex()]
    pair.run("target", 4, {b"a": b"4"}, term=2)
    assert pair.value("target", b"a") == b"4".hex()


def test_its_former_owner_serves_it_no_more(pair: Pair) -> None:
    moved(pair)
    pair.confirm_owner("target", 2)
    with pytest.raises(ShardMissingError):
        pair.hosts["owner"].shards(BeginTask("q", 3, "op", (0,)))
    pair.controls["owner"].elsewhere = {0: "the target"}
    assert pair.hosts["owner"].begin(BeginTask("q", 4, "op", (0,))).elsewhere == {0: "the target"}


def test_a_task_finds_it_before_the_new_owner_is_told_that_it_is_the_owner(pair: Pair) -> None:
    moved(pair)
    pair.controls["target"].kept = (0,)
    pair.run("target", 4, {b"a": b"4"}, term=2)
    assert pair.controls["target"].claims[-1].aside == {0: 2}
    # The word comes late, and changes nothing.
    pair.confirm_owner("target", 2)
    assert pair.value("target", b"a") == b"4".hex()


def test_a_move_that_is_given_up_leaves_the_shard_with_its_owner(pair: Pair) -> None:
    moved(pair)
    pair.confirm_owner("owner", 1)
    pair.run("owner", 4, {b"a": b"4"})
    assert pair.value("owner", b"a") == b"4".hex()
    assert pair.value("target", b"a") is None


def test_a_sealed_shard_comes_back_to_its_owner_by_a_claim(pair: Pair) -> None:
    moved(pair)
    pair.controls["owner"].kept = (0,)
    pair.run("owner", 4, {b"a": b"4"})
    assert pair.controls["owner"].claims[-1].aside == {0: 1}
    assert pair.value("owner", b"a") == b"4".hex()


def test_a_snapshot_of_a_shard_that_is_set_aside_is_taken(pair: Pair) -> None:
    moved(pair)
    pair.hosts["target"].obey(order(pair.store, 2, 3, (0,)))
    (snapshot,) = pair.controls["target"].acked().snapshots
    assert snapshot.term == 2


def test_a_call_of_another_term_is_refused(pair: Pair) -> None:
    moved(pair)
    pair.confirm_owner("target", 2)
    with pytest.raises(ShardMissingError):
        pair.hosts["target"].shards(BeginTask("q", 3, "op", (0,)))
    with pytest.raises(ShardMissingError):
        pair.hosts["owner"].hand_over(HandOver("q", SHARD, 2, 0))


def test_a_shard_is_not_handed_over_once_the_next_batch_has_begun(pair: Pair) -> None:
    pair.run("owner", 0, {b"a": b"0"})
    source = pair.checkpoint(1, 0)
    pair.run("owner", 1, {b"a": b"1"})
    assert pair.open_ahead(source).step is CopyStep.OPENED
    pair.run("owner", 2, {b"a": b"2"})
    report = pair.take_over(1)
    assert (report.step, "batch 2 has begun" in report.why) == (CopyStep.FAILED, True)
    pair.run("owner", 3, {b"a": b"3"})
    assert pair.value("owner", b"a") == b"3".hex()


def test_a_late_attempt_at_the_last_batch_changes_nothing(pair: Pair) -> None:
    pair.run("owner", 0, {b"a": b"0"})
    source = pair.checkpoint(1, 0)
    pair.run("owner", 1, {b"a": b"1"})
    (shard,) = pair.hosts["owner"].shards(BeginTask("q", 1, "op", (0,))).values()
    assert pair.open_ahead(source).step is CopyStep.OPENED
    assert pair.take_over(1).step is CopyStep.TAKEN
    with pytest.raises(ShardRefusedError):
        shard.stage(1, Changes.of(shard.name, {b"a": b"late"}))
    with pytest.raises(CannotGoBackError):
        shard.begin(1)
    pair.confirm_owner("target", 2)
    assert pair.value("target", b"a") == b"1".hex()


def test_a_target_that_cannot_restore_says_so(pair: Pair) -> None:
    pair.run("owner", 0, {b"a": b"0"})
    source = pair.checkpoint(1, 0)
    gone = attrs.evolve(source, root=pair.store + "-gone")
    assert pair.open_ahead(gone).step is CopyStep.FAILED
    assert pair.take_over(0).step is CopyStep.FAILED


def test_a_shard_that_comes_back_is_what_it_was_elsewhere(pair: Pair) -> None:
    """What its first owner knew of its files is of another RocksDB, which has used the same names."""
    moved(pair)
    pair.confirm_owner("target", 2)
    pair.run("target", 4, {b"a": b"4"}, term=2)
    taken = order(pair.store, 2, 4, (0,))
    pair.hosts["target"].obey(taken)
    (snapshot,) = pair.controls["target"].acked().snapshots
    assert ShardId("op", 0) == snapshot.shard
    assert not pair.hosts["owner"]._snapshots._hashes


def test_a_tail_that_is_too_long_is_not_handed_over() -> None:
    tail = Tail("op/0", limit=1000)
    tail.add(1, {b"a": b"1"})
    assert tail.after(0) == [(1, {b"a": b"1"})]
    assert tail.after(1) == []
    tail.add(2, {b"a": b"x" * 1000})
    with pytest.raises(ShardRefusedError, match="cannot be handed over"):
        tail.after(0)
