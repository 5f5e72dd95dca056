"""Shards that are opened ahead of the tasks that want them, and who waits for what."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from chandy.state.errors import CoordinatorLostError
from chandy.state.host.restoring import RestoreTally
from chandy.state.host.shard import Shard
from chandy.state.host.shard_key import ShardKey
from chandy.state.host.shard_table import ShardTable
from chandy.state.rpc.messages import ClaimAnswer, ClaimShards, ShardsRestored
from chandy.state.shards import RestoreSource, ResumePoint
from chandy.storage.checkpoints.restore import RestoreReport

from ...waiting import DEADLINE


class Control:
    """Grants every claim; takes word of restores."""

    def __init__(self) -> None:
        self.claims: list[ClaimShards] = []
        self.told: list[ShardsRestored] = []
        self.resume_point: ResumePoint | None = None
        self.refuses = False
        self.has_told = threading.Event()

    def send(self, message: ClaimShards | ShardsRestored) -> ClaimAnswer | None:
        if isinstance(message, ShardsRestored):
            self.told.append(message)
            self.has_told.set()
            return None
        self.claims.append(message)
        if self.refuses:
            raise CoordinatorLostError("grpc://driver", "it is gone")
        return ClaimAnswer(dict.fromkeys(message.shards), {}, self.resume_point)


class FakeShard(str):
    """A shard that is nothing but its name, and takes a term."""


class Opening:
    """Opens shards when it is let."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.tallies: list[RestoreTally] = []
        self.local_recovery: list[ResumePoint | None] = []

    def __call__(
        self,
        key: ShardKey,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
        tally: RestoreTally,
    ) -> Shard:
        self.local_recovery.append(resume_point)
        self.tallies.append(tally)
        assert self.may.wait(DEADLINE)
        tally.files(key.shard, 1.0, RestoreReport(files=1, bytes=5, cached_bytes=5, downloaded_bytes=0))
        return cast(Shard, FakeShard(f"shard {key}"))


@pytest.fixture
def control() -> Control:
    return Control()


def test_a_task_waits_for_what_is_opened_ahead_and_that_is_told(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, wanted = Opening(), threading.Event()
    was = RestoreTally.wanted
    monkeypatch.setattr(RestoreTally, "wanted", lambda tally: (was(tally), wanted.set()))
    table = ShardTable("host", cast(Any, control), opening)
    table.open("q", "op", (0, 1))
    with ThreadPoolExecutor(1) as pool:
        acquired = pool.submit(table.acquire, "q", "op", (0, 1))
        assert wanted.wait(DEADLINE)
        assert not acquired.done()
        opening.may.set()
        here: dict[int, Any] = dict(acquired.result(DEADLINE).here)
    assert here == {0: "shard op/0", 1: "shard op/1"}
    assert len(control.claims) == 1
    assert control.has_told.wait(DEADLINE)
    assert control.told[0].ahead > 0
    assert control.told[0].files > 0


def test_what_is_open_when_a_task_comes_has_kept_nobody_waiting(control: Control) -> None:
    opening = Opening()
    opening.may.set()
    table = ShardTable("host", cast(Any, control), opening)
    table.open("q", "op", (0,))
    assert control.has_told.wait(DEADLINE)
    assert list(table.acquire("q", "op", (0,)).here) == [0]
    assert len(control.claims) == len(control.told) == 1
    assert (control.told[0].files, control.told[0].opening) == (0.0, 0.0)
    assert control.told[0].ahead > 0


def test_a_shard_is_opened_with_what_its_changelog_leads_to(control: Control) -> None:
    opening = Opening()
    opening.may.set()
    control.resume_point = ResumePoint("before", 3, 7)
    table = ShardTable("host", cast(Any, control), opening)
    table.acquire("q", "op", (0, 1))
    assert opening.local_recovery == [ResumePoint("before", 3, 7)] * 2


def test_whoever_opens_ahead_hears_of_a_claim_that_was_refused(control: Control) -> None:
    control.refuses = True
    table = ShardTable("host", cast(Any, control), Opening())
    with pytest.raises(CoordinatorLostError):
        table.open("q", "op", (0,))


class Lasting(Shard):
    """A shard that is deleted when it may be, at the latest when another is closed."""

    def __init__(self, may: threading.Event) -> None:
        self.may = may
        self.gone = threading.Event()

    def close(self) -> None:
        self.may.set()

    def destroy(self) -> None:
        assert self.may.wait(DEADLINE)
        self.gone.set()


def test_who_closes_waits_for_what_was_released(control: Control) -> None:
    may = threading.Event()
    shards = {"over": Lasting(may), "q": Lasting(may)}
    table = ShardTable("host", cast(Any, control), lambda key, *_: shards[key.query_id])
    table.acquire("over", "op", (0,))
    table.acquire("q", "op", (0,))
    assert table.release("over") == [ShardKey("over", "op", 0)]
    table.close()
    assert shards["over"].gone.is_set()


def test_a_shard_that_is_released_while_it_is_restored_goes_when_it_is_there(control: Control) -> None:
    may = threading.Event()
    shard = Lasting(may)

    def restore(*_: object) -> Shard:
        assert may.wait(DEADLINE)
        return shard

    table = ShardTable("host", cast(Any, control), restore)
    table.open("q", "op", (0,))
    table.release("q")
    may.set()
    assert shard.gone.wait(DEADLINE)
    table.close()
