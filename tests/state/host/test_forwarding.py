"""What tasks stage goes to standbys on several hosts, with real shards. The other hosts are plain objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import pytest

from chandy.state.errors import HostLostError
from chandy.state.format.columns import Columns
from chandy.state.host.changes import Changes
from chandy.state.host.forwarding import Forwarding
from chandy.state.host.memory import Memory
from chandy.state.host.shard import Shard
from chandy.state.rpc.messages import BeginTask, Forward, HandOver, ShardStandby
from chandy.state.rpc.wire import HandedOver

from ...waiting import DEADLINE
from ..fake_control import FakeControl


@attrs.define(eq=False)
class Others:
    """The other hosts: ``answers`` has how each answers, and ``told`` what each was told."""

    answers: dict[str, Callable[[], None]]
    told: dict[str, tuple[Forward, Mapping[int, Columns]]] = attrs.field(factory=dict)
    answered: set[str] = attrs.field(factory=set)

    def forward(self, address: str, request: Forward, changes: Mapping[int, Columns]) -> None:
        self.told[address] = request, changes
        try:
            self.answers[address]()
        finally:
            self.answered.add(address)

    def hand_over(self, address: str, request: HandOver) -> HandedOver:
        raise AssertionError("nothing moves here")


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[dict[int, Shard]]:
    """Three shards: the standby of 0 is on host "a", those of 1 and 2 are on "b"."""
    memory = Memory(8 << 20)
    made = {number: Shard(f"op/{number}", tmp_path / str(number), memory) for number in range(3)}
    for number, address in enumerate("abb"):
        made[number].standby = ShardStandby(10 + number, address)
        made[number].begin(0)
    yield made
    for shard in made.values():
        shard.close()


TASK = BeginTask("q", 0, "op", (0, 1, 2))


def changes_of(*shards: int) -> dict[int, Changes]:
    return {shard: Changes.of(f"op/{shard}", {b"key": b"%d" % shard}) for shard in shards}


def test_each_host_is_told_of_its_standbys_and_how_many_changes_come(shards: dict[int, Shard]) -> None:
    others = Others({"a": lambda: None, "b": lambda: None})
    Forwarding("owner", FakeControl(), others).stage(TASK, shards, changes_of(0, 1))
    found = {address: (request.shards.keys(), request.rows) for address, (request, _) in others.told.items()}
    assert found == {"a": ({0}, 1), "b": ({1, 2}, 1)}
    assert {shard: columns.entries() for shard, columns in others.told["b"][1].items()} == {1: {b"key": b"1"}}


def test_a_host_that_does_not_answer_costs_no_other_host_its_standbys(shards: dict[int, Shard]) -> None:
    control, well = FakeControl(), threading.Event()

    def never() -> None:
        # Only when the other one has had its answer is this one given up.
        assert well.wait(DEADLINE)
        raise HostLostError("a", "no answer")

    Forwarding("owner", control, Others({"a": never, "b": well.set})).stage(TASK, shards, changes_of(0, 1, 2))
    assert [drop.copy_id for drop in control.dropped] == [10]
    assert [shard.standby is None for shard in shards.values()] == [True, False, False]


def test_all_hosts_have_answered_when_an_attempt_fails(shards: dict[int, Shard]) -> None:
    control, failed = FakeControl(), threading.Event()
    control.drop_refusal = HostLostError("coordinator", "away")

    def lost() -> None:
        failed.set()
        raise HostLostError("a", "no answer")

    def slow() -> None:
        # The other one's answer is here, and yet this one is waited for.
        assert failed.wait(DEADLINE)

    others = Others({"a": lost, "b": slow})
    with pytest.raises(HostLostError, match="coordinator"):
        Forwarding("owner", control, others).stage(TASK, shards, changes_of(0, 1, 2))
    assert others.answered == {"a", "b"}
    # Another attempt is not kept waiting.
    control.drop_refusal = None
    Forwarding("owner", control, others).stage(TASK, shards, changes_of(0))


def test_only_the_table_is_kept_of_what_is_staged_everywhere(shards: dict[int, Shard]) -> None:
    changes = changes_of(0, 1)
    Forwarding("owner", FakeControl(), Others({"a": lambda: None, "b": lambda: None})).stage(
        TASK, shards, changes
    )
    assert {shard: (len(one), one.entries) for shard, one in changes.items()} == {
        0: (1, {b"key": b"0"}),
        1: (1, {b"key": b"1"}),
    }
    with pytest.raises(AssertionError, match="the table alone"):
        changes[0].columns  # noqa: B018 (it raises)
