"""What a shadow does next, whatever its leader does: going back, dropping checkpoints, running ahead."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from chandy.coordinator.upgrade.following import (
    NO_CHECKPOINT,
    NO_RECORDS,
    CompareState,
    Following,
    Restore,
    RunBatch,
    Stage,
    Wait,
)
from chandy.storage.checkpoints.batch_record import BatchRecord, BatchRecords
from chandy.storage.ids import NO_BATCH, BatchId, CheckpointId

from ...effort import always_kept

QUERIES = ("counts", "totals")
PATIENCE = 5


@attrs.define
class Leader:
    """A leader's history: which batches each checkpoint has, each by a text that no other batch has."""

    queries: tuple[str, ...] = QUERIES
    history: dict[str, list[str]] = attrs.field(factory=dict)
    stages: dict[int, Stage] = attrs.field(factory=dict)
    """The checkpoints that are there."""
    histories: dict[int, dict[str, list[str]]] = attrs.field(factory=dict)
    """What each checkpoint that ever was there has."""
    base: int = 0
    batches: int = 0

    def __attrs_post_init__(self) -> None:
        self.history = {query: [] for query in self.queries}
        self.histories[0] = {query: [] for query in self.queries}

    def run(self, query: str, times: int = 1) -> None:
        for _ in range(times):
            self.batches += 1
            self.history[query].append(
                f"{query} {len(self.history[query])}, planned as number {self.batches}"
            )

    def checkpoint(self, more: int = 1) -> Stage:
        """Complete a checkpoint, whose records begin with the last batch of the one before, or earlier."""
        id = len(self.histories)
        records = {}
        for query, batches in self.history.items():
            after = max(NO_BATCH, len(self.histories[self.base][query]) - 1 - more)
            of = [BatchRecord(BatchId(n), batches[n]) for n in range(after + 1, len(batches))]
            records[query] = BatchRecords(BatchId(after), tuple(of))
        cuts = {query: BatchId(len(batches) - 1) for query, batches in self.history.items()}
        self.stages[id] = Stage(CheckpointId(id), cuts, records)
        self.histories[id] = {query: list(batches) for query, batches in self.history.items()}
        self.base = id
        return self.stages[id]

    def go_back(self, checkpoint: int) -> None:
        self.history = {query: list(batches) for query, batches in self.histories[checkpoint].items()}
        self.base = checkpoint


@attrs.define
class Follower:
    """What carries the steps out. It knows which batches its state consists of."""

    leader: Leader
    following: Following
    has: dict[str, list[str]] | None = None
    ran: list[str] = attrs.field(factory=list)
    states: list[int] = attrs.field(factory=list)
    newest: int = 0
    """The leader's newest checkpoint when the shadow last looked."""

    def look(self) -> None:
        stages = [self.leader.stages[id] for id in sorted(self.leader.stages)]
        self.newest = stages[-1].id if stages else 0
        self.following.see(stages)

    def carry_out(self, step: Restore | RunBatch | CompareState) -> None:
        if isinstance(step, Restore):
            assert step.stage.id in self.leader.stages, "only what is there can be restored"
            self.has = {query: list(of) for query, of in self.leader.histories[step.stage.id].items()}
            self.following.restored(step)
        elif isinstance(step, CompareState):
            assert self.has == self.leader.histories[step.stage.id], "the shadow stands at the cut"
            self.states += [step.stage.id] if self.following.compared(step) else []
        else:
            assert self.has is not None, "it stands somewhere"
            assert step.record.batch == len(self.has[step.query]), "one batch after the other"
            self.has[step.query].append(step.record.offsets)
            if self.following.ran(step):
                self.ran.append(step.record.offsets)

    def catch_up(self) -> Wait:
        """Carry out all steps until it waits."""
        most = 3 * (self.leader.batches + len(self.leader.histories)) + 10
        for _ in range(most):
            step = self.following.next()
            if isinstance(step, Wait):
                return step
            self.carry_out(step)
        pytest.fail("it goes on for ever")


class AnyHistory(RuleBasedStateMachine):
    """Any history of a leader, and a shadow that looks and works at any moment."""

    @initialize(most_behind=st.sampled_from([2, PATIENCE, 1000]))
    def begin(self, most_behind: int) -> None:
        self.leader = Leader()
        self.follower = Follower(self.leader, Following(QUERIES, most_behind))
        self.most_behind = most_behind
        self.is_undisturbed = True

    @rule(
        back=st.none() | st.integers(0, 2),
        counts=st.integers(0, 3),
        totals=st.integers(0, 4),
        more=st.sampled_from([1, 1, 2, 4]),
        kept=st.integers(1, 4),
    )
    def the_leader_goes_on(self, back: int | None, counts: int, totals: int, more: int, kept: int) -> None:
        """It may go back before, to one of its checkpoints or to the beginning, and drops old ones afterwards."""
        if back is not None:
            places = [0, *sorted(self.leader.stages)]
            self.leader.go_back(places[-1 - back] if back < len(places) else 0)
            self.is_undisturbed = False
        self.leader.run("counts", counts)
        self.leader.run("totals", totals)
        self.leader.checkpoint(more)
        for id in sorted(self.leader.stages)[:-kept]:
            del self.leader.stages[id]
            self.is_undisturbed = self.is_undisturbed and id <= self.follower.newest

    @rule(looks=st.booleans(), steps=st.integers(0, 6), looks_before=st.integers(0, 6))
    def the_shadow_works(self, looks: bool, steps: int, looks_before: int) -> None:
        """It may look at its leader while one of the steps is under way."""
        if looks:
            self.follower.look()
        for number in range(steps):
            step = self.follower.following.next()
            if isinstance(step, Wait):
                return
            if isinstance(step, Restore | CompareState) and step.stage.id not in self.leader.stages:
                self.follower.following.lost(step.stage)
                self.is_undisturbed = False
                continue
            if isinstance(step, RunBatch):
                history = self.leader.histories[self.follower.newest]
                assert history[step.query][step.record.batch] == step.record.offsets, (
                    "of a branch that was given up"
                )
            if number == looks_before:
                self.follower.look()
            self.follower.carry_out(step)

    @rule(fails=st.booleans())
    def a_batch_fails_or_the_session_is_lost(self, fails: bool) -> None:
        step = self.follower.following.next()
        if not fails:
            self.follower.following.interrupted()
        elif isinstance(step, RunBatch):
            self.follower.following.failed(step)
        self.is_undisturbed = False

    @rule()
    def it_catches_up(self) -> None:
        self.follower.look()
        self.follower.catch_up()
        assert self.follower.following.behind == 0 or not self.is_undisturbed
        if self.is_undisturbed:
            assert len(set(self.follower.ran)) == len(self.follower.ran), "a batch was compared twice"

    def teardown(self) -> None:
        if not hasattr(self, "leader"):
            return
        # However it was disturbed: what comes next is compared.
        self.leader.run("totals")
        self.leader.checkpoint()
        self.follower.look()
        self.follower.catch_up()
        self.leader.run("totals")
        stage = self.leader.checkpoint()
        self.follower.look()
        assert self.follower.catch_up() == Wait()
        assert self.follower.has == self.leader.histories[stage.id]
        assert self.leader.history["totals"][-1] in self.follower.ran
        assert self.follower.states[-1] == stage.id
        assert self.follower.following.behind == 0


AnyHistory.TestCase.settings = always_kept(100, steps=20)
test_whatever_the_leader_does_each_batch_runs_on_the_state_of_the_batch_before = AnyHistory.TestCase


def followed(leader: Leader, most_behind: int = 1000, begin_at: int | None = None) -> Follower:
    """Return a shadow that has looked at its leader."""
    following = Following(leader.queries, most_behind, None if begin_at is None else CheckpointId(begin_at))
    follower = Follower(leader, following)
    follower.look()
    return follower


def test_a_shadow_begins_with_the_newest_checkpoint_and_compares_all_that_comes() -> None:
    leader = Leader(("totals",))
    leader.run("totals", 3)
    leader.checkpoint()
    shadow = followed(leader)
    shadow.catch_up()
    for _ in range(4):
        leader.run("totals", 2)
        leader.checkpoint()
    shadow.look()
    # Retention drops what the shadow has looked at: the batches are compared all the same, the state where it is there.
    for id in (2, 3, 4):
        del leader.stages[id]
    shadow.look()
    assert shadow.catch_up() == Wait()
    assert (shadow.ran, shadow.states) == (leader.history["totals"][3:], [5])
    assert shadow.following.skipped == 0


def test_a_shadow_that_starts_again_goes_on_from_the_checkpoint_that_it_had_passed() -> None:
    leader = Leader(("totals",))
    for _ in range(3):
        leader.run("totals", 2)
        leader.checkpoint()
    shadow = followed(leader, begin_at=2)
    shadow.catch_up()
    assert shadow.ran == leader.history["totals"][4:]


def test_a_shadow_that_is_too_far_behind_compares_a_part_and_counts_the_rest() -> None:
    leader = Leader(("totals",))
    leader.checkpoint()
    shadow = followed(leader, most_behind=4)
    shadow.catch_up()
    for _ in range(5):
        leader.run("totals", 3)
        leader.checkpoint()
    shadow.look()
    shadow.catch_up()
    assert shadow.ran == leader.history["totals"][:3]
    assert (shadow.following.skipped, shadow.following.behind) == (12, 0)
    # From there on, it follows again.
    leader.run("totals", 3)
    leader.checkpoint()
    shadow.look()
    shadow.catch_up()
    assert shadow.ran[3:] == leader.history["totals"][-3:]


def test_a_batch_that_cannot_be_run_costs_the_batches_up_to_the_next_checkpoint() -> None:
    leader = Leader(("totals",))
    leader.checkpoint()
    shadow = followed(leader)
    shadow.catch_up()
    leader.run("totals", 3)
    leader.checkpoint()
    leader.run("totals", 2)
    leader.checkpoint()
    shadow.look()
    step = shadow.following.next()
    assert isinstance(step, RunBatch) and shadow.following.failed(step)
    shadow.catch_up()
    assert (shadow.ran, shadow.following.skipped) == (leader.history["totals"][3:], 3)


def test_it_is_said_what_a_shadow_waits_for() -> None:
    leader = Leader(("totals",))
    assert followed(leader).catch_up() == Wait(NO_CHECKPOINT)
    leader.run("totals")
    stage = leader.checkpoint()
    following = Following(("totals",), most_behind=10)
    following.see([unrecorded := attrs.evolve(stage, records={})])
    assert following.next() == Wait(NO_RECORDS)
    leader.run("totals")
    following.see([unrecorded, recorded := leader.checkpoint()])
    step = following.next()
    assert isinstance(step, Restore) and step.stage == recorded


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_leader_that_goes_back_takes_its_shadow_back_wherever_that_is(steps: int, in_flight: bool) -> None:
    leader = Leader(("totals",))
    leader.run("totals", 2)
    leader.checkpoint()
    shadow = followed(leader)
    shadow.catch_up()
    leader.run("totals", 3)
    leader.checkpoint()
    shadow.look()
    for _ in range(steps):
        step = shadow.following.next()
        assert isinstance(step, RunBatch | CompareState)
        shadow.carry_out(step)
    under_way = shadow.following.next()
    leader.go_back(1)
    leader.run("totals", 5)
    leader.checkpoint()
    shadow.look()
    if in_flight and isinstance(under_way, RunBatch):
        shadow.carry_out(under_way)
    shadow.catch_up()
    assert shadow.has == leader.history
    assert shadow.ran[-5:] == leader.history["totals"][2:]
    assert len(shadow.ran) == min(steps, 3) + 5
    assert shadow.following.skipped == 0
