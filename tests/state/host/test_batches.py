from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chandy.state.errors import CannotGoBackError, ShardRefusedError
from chandy.state.host.batches import ShardBatches, check_together
from chandy.storage.ids import NO_BATCH

from ...effort import examples


class Applied:
    """A shard whose state is the list of what was applied to it."""

    def __init__(self, position: int = NO_BATCH) -> None:
        self.applied: list[tuple[int, str]] = []
        self.batches: ShardBatches[str] = ShardBatches("op/0", position, self.apply)

    def apply(self, batch: int, changes: str) -> None:
        self.applied.append((batch, changes))


@pytest.fixture
def shard() -> Applied:
    return Applied()


def test_a_batch_is_applied_when_the_next_one_begins(shard: Applied) -> None:
    shard.batches.begin(0)
    shard.batches.stage(0, "a")
    assert (shard.applied, shard.batches.position) == ([], NO_BATCH)
    shard.batches.begin(1)
    assert (shard.applied, shard.batches.position) == ([(0, "a")], 0)


def test_only_the_last_attempt_is_applied(shard: Applied) -> None:
    for attempt in ("first", "second"):
        shard.batches.begin(0)
        shard.batches.stage(0, attempt)
    shard.batches.begin(0)
    shard.batches.begin(1)
    assert shard.applied == [(0, "second")]


def test_a_batch_without_changes_moves_the_position_and_applies_nothing(shard: Applied) -> None:
    shard.batches.begin(3)
    shard.batches.stage(3, None)
    shard.batches.begin(4)
    assert (shard.applied, shard.batches.position) == ([], 3)


def test_a_batch_stays_staged_if_it_cannot_be_applied() -> None:
    class Closed(Exception):
        pass

    def refuse(batch: int, changes: str) -> None:
        raise Closed

    batches: ShardBatches[str] = ShardBatches("op/0", NO_BATCH, refuse)
    batches.begin(0)
    batches.stage(0, "a")
    with pytest.raises(Closed):
        batches.begin(1)
    assert (batches.position, batches.begun, batches.reached(0)) == (NO_BATCH, 0, 0)


def test_the_position_moves_after_the_changes_are_applied() -> None:
    seen: list[int] = []
    batches: ShardBatches[str] = ShardBatches("op/0", 4, lambda batch, changes: seen.append(batches.position))
    batches.begin(5)
    batches.stage(5, "a")
    batches.cut(5)
    assert (seen, batches.position) == ([4], 5)


@pytest.mark.parametrize("batch", [3, 4])
def test_a_batch_that_has_passed_cannot_begin(batch: int) -> None:
    shard = Applied(4)
    with pytest.raises(CannotGoBackError) as caught:
        shard.batches.begin(batch)
    assert (caught.value.asked, caught.value.position) == (batch, 4)


def test_a_batch_before_one_that_has_begun_cannot_begin(shard: Applied) -> None:
    shard.batches.begin(4)
    with pytest.raises(CannotGoBackError) as caught:
        shard.batches.begin(3)
    assert caught.value.position == 4


@pytest.mark.parametrize("stale", [0, 2])
def test_changes_of_another_batch_than_the_one_that_has_begun_are_refused(shard: Applied, stale: int) -> None:
    shard.batches.begin(1)
    with pytest.raises(ShardRefusedError, match=f"changes of batch 1, found changes of batch {stale}"):
        shard.batches.stage(stale, "late")
    assert shard.batches.staged is None


def test_changes_of_a_batch_that_a_snapshot_has_applied_are_refused(shard: Applied) -> None:
    shard.batches.begin(1)
    shard.batches.stage(1, "a")
    shard.batches.cut(1)
    for _ in range(2):
        with pytest.raises(ShardRefusedError, match="changes of batch 2, found changes of batch 1"):
            shard.batches.stage(1, "once more")
    assert shard.batches.staged is None


def test_a_cut_applies_what_is_staged_up_to_it_and_nothing_later(shard: Applied) -> None:
    shard.batches.begin(0)
    shard.batches.stage(0, "a")
    shard.batches.cut(0)
    assert shard.applied == [(0, "a")]
    shard.batches.begin(1)
    shard.batches.stage(1, "b")
    shard.batches.cut(0)
    assert shard.applied == [(0, "a")]
    shard.batches.begin(2)
    with pytest.raises(ShardRefusedError, match="after batch 0, found that batch 1 is already part of it"):
        shard.batches.cut(0)


def test_a_batch_that_has_begun_and_committed_must_have_been_staged(shard: Applied) -> None:
    shard.batches.begin(0)
    shard.batches.cut(NO_BATCH)
    for going_on in (lambda: shard.batches.begin(1), lambda: shard.batches.cut(0)):
        with pytest.raises(ShardRefusedError, match=r"batch 0 has committed, .* before batch 1 begins"):
            going_on()
    shard.batches.stage(0, None)
    shard.batches.begin(1)


def test_batches_are_replayed_in_order(shard: Applied) -> None:
    shard.batches.replay(2, "a")
    shard.batches.replay(3, None)
    shard.batches.replay(5, "b")
    assert (shard.applied, shard.batches.position) == ([(2, "a"), (5, "b")], 5)
    shard.batches.begin(6)


def test_a_shard_has_reached_what_it_has_applied_or_staged(shard: Applied) -> None:
    assert shard.batches.reached(7) == NO_BATCH
    shard.batches.begin(2)
    shard.batches.stage(2, "a")
    shard.batches.begin(5)
    shard.batches.stage(5, "b")
    assert [shard.batches.reached(upto) for upto in (1, 2, 4, 5, 6)] == [1, 2, 2, 5, 5]


def test_shards_of_one_operator_must_have_the_same_batches() -> None:
    check_together({}, 3)
    check_together({"op/0": 2, "op/1": 2}, 3)
    with pytest.raises(ShardRefusedError, match="batch 2 has committed, but its task on shard op/1 has not"):
        check_together({"op/0": 2, "op/1": 1}, 3)


@given(st.lists(st.tuples(st.sampled_from(["begin", "stage", "cut"]), st.integers(0, 6)), max_size=40))
def test_a_refusal_loses_and_repeats_nothing(calls: list[tuple[str, int]]) -> None:
    """Whatever is asked: a staged batch is applied once, in order, or still staged."""
    shard = Applied()
    staged: dict[int, str] = {}
    for number, (call, batch) in enumerate(calls):
        try:
            if call == "begin":
                shard.batches.begin(batch)
            elif call == "cut":
                shard.batches.cut(batch)
            else:
                shard.batches.stage(batch, f"attempt {number}")
                staged[batch] = f"attempt {number}"
        except (CannotGoBackError, ShardRefusedError):
            continue
    waiting = shard.batches.staged
    pending = [] if waiting is None else [(waiting.batch, waiting.changes)]
    assert shard.applied + pending == sorted(staged.items())


class SparkAndAShard(RuleBasedStateMachine):
    """Spark runs batches as it does, with attempts that outlive each other, and snapshots come in between."""

    @initialize()
    def start(self) -> None:
        self.shard = Applied()
        self.running = 0
        self.finished: str | None = None
        """The attempt at the running batch that finished last; None: none has."""
        self.committed: list[tuple[int, str]] = []
        self.attempts: list[tuple[int, str]] = []
        self.numbers = iter(range(10**6))

    @rule()
    def an_attempt_begins(self) -> None:
        self.shard.batches.begin(self.running)
        self.attempts.append((self.running, f"attempt {next(self.numbers)}"))

    @precondition(lambda self: self.attempts)
    @rule(which=st.integers(0, 9))
    def an_attempt_finishes(self, which: int) -> None:
        batch, changes = self.attempts.pop(which % len(self.attempts))
        if batch == self.running:
            self.shard.batches.stage(batch, changes)
            self.finished = changes
        else:
            with pytest.raises(ShardRefusedError):
                self.shard.batches.stage(batch, changes)

    @precondition(lambda self: self.finished is not None)
    @rule()
    def the_batch_commits_and_the_next_begins(self) -> None:
        assert self.finished is not None
        self.committed.append((self.running, self.finished))
        self.running += 1
        self.finished = None
        self.an_attempt_begins()

    @precondition(lambda self: self.committed)
    @rule()
    def a_snapshot_is_taken(self) -> None:
        self.shard.batches.cut(self.running - 1)
        assert self.shard.applied == self.committed

    @precondition(lambda self: self.finished is not None)
    @rule()
    def the_batch_commits_and_a_snapshot_is_taken_before_the_next(self) -> None:
        assert self.finished is not None
        self.committed.append((self.running, self.finished))
        self.shard.batches.cut(self.running)
        assert self.shard.applied == self.committed
        self.running += 1
        self.finished = None

    @invariant()
    def committed_batches_and_no_others_are_applied_once_in_order(self) -> None:
        if hasattr(self, "shard"):
            applied = self.shard.applied
            assert applied == self.committed[: len(applied)]
            assert len(self.committed) - len(applied) <= 1


SparkAndAShard.TestCase.settings = settings(max_examples=examples(12), stateful_step_count=40, deadline=None)
TestSparkAndAShard = SparkAndAShard.TestCase
