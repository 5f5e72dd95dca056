"""A machine whose shards move between hosts, and bugs of moves that a test seeds in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.copies import MOVES_AT_A_TIME, CopyPhase
from chandy.coordinator.protocol.errors import DrainError
from chandy.state.errors import ShardRefusedError
from chandy.state.rpc.messages import Ack, CopyStep, ShardSnapshot
from chandy.storage.checkpoints.manifest import CheckpointKind

from .lives import HOLD, QUERY, SMALL, Life, Machine, put_files

EXECUTOR = st.sampled_from("abc")

Bug = Callable[[pytest.MonkeyPatch], None]


class MovingMachine(Machine):
    """Whatever can happen to moves, among whatever can happen."""

    place = 0
    """Which hosts the tasks of batches run beside."""

    # What has nothing to do with moves, and would leave them little room.
    a_savepoint_is_asked_for = a_pipeline_stops_with_a_savepoint = None
    a_manifest_is_written = a_manifest_lands_late = the_store_fails_at_the_next_manifest = None
    a_checkpoint_is_overdue_while_its_manifest_is_written = None
    a_store_hangs_at_its_manifests = the_stores_let_go = the_drivers_files_cannot_be_read = None
    machines_keep_what_they_restore = another_coordinator_takes_over_in_a_checkpoint = None
    a_way_back_fails_half_way_and_a_checkpoint_is_asked_for = None
    all_hosts_die_and_die_again_when_one_query_has_got_further = None

    def busy(self, hold: str, rounds: int) -> None:
        """Go on for so long that shards can move."""
        life = self.world.life
        for _ in range(rounds):
            if life.lost:
                life.recover()
            for query in ("orders", "totals"):
                life.runs[query].stands = False
                life.batch(query, 3, self.place)
            life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            life.quiet(hold)
            self.check_moves(life)

    @staticmethod
    def check_moves(life: Life) -> None:
        active = [
            one
            for one in life.machine.placement.moves.under_way.values()
            if one.phase in (CopyPhase.OPENING, CopyPhase.READY, CopyPhase.HANDING_OVER)
        ]
        assert len(active) <= MOVES_AT_A_TIME, "too many shards move at a time"

    @rule(executor=EXECUTOR, hold=HOLD, rounds=st.integers(0, 3))
    def a_machine_is_drained(self, executor: str, hold: str, rounds: int) -> None:
        life = self.world.life
        try:
            life.handle(on.DrainRequested(executor))
        except DrainError:
            return
        self.busy(hold, rounds)

    @rule(executor=EXECUTOR, hold=HOLD, rounds=st.integers(0, 3), leaves=st.booleans())
    def a_machine_joins(self, executor: str, hold: str, rounds: int, leaves: bool) -> None:
        life = self.world.life
        if not any(name[0] == executor for name in life.hosts):
            life.join(executor)
        elif leaves and len(life.hosts) > 1:
            for name in [name for name in life.hosts if name[0] == executor]:
                del life.hosts[name]
                life.lose(name)
        self.busy(hold, rounds)

    @rule(hold=HOLD, rounds=st.integers(1, 4))
    def much_goes_on(self, hold: str, rounds: int) -> None:
        self.busy(hold, rounds)

    @rule(number=SMALL, steps=st.integers(1, 3))
    def a_target_works(self, number: int, steps: int) -> None:
        life = self.world.life
        for _ in range(steps):
            if life.moving:
                life.move(number)

    @rule(number=SMALL, fate=st.sampled_from(["arrives", "arrives", "twice", "lost", "failed"]))
    def a_target_reports(self, number: int, fate: str) -> None:
        life = self.world.life
        if not life.reports:
            return
        report = life.reports.pop(number % len(life.reports))
        if fate == "failed":
            report = attrs.evolve(report, step=CopyStep.FAILED)
        if fate != "lost":
            life.handle(report)
        if fate == "twice":
            life.reports.append(report)

    @rule(query=QUERY, upto=st.integers(0, 4), steps=st.integers(0, 3), seconds=st.sampled_from([0.0, 6.0]))
    def a_batch_meets_a_move_and_the_target_is_slow(
        self, query: str, upto: int, steps: int, seconds: float
    ) -> None:
        life = self.world.life
        life.quiet("orders messages")
        life.batch(query, 3, 0, upto)
        for host in life.hosts.values():
            while host.mailbox:
                host.obey(host.mailbox.popleft())
        for _ in range(steps):
            if life.moving:
                life.move(0)
        self.world.now += seconds
        life.handle(on.Tick())
        life.batch(query, 3, 1)

    @rule(number=SMALL, checkpoint=st.booleans())
    def a_zombie_acknowledges(self, number: int, checkpoint: bool) -> None:
        """A host that had a shard in an older term has not noticed, and its state is not what it should be."""
        life = self.world.life
        if checkpoint:
            for query in ("orders", "totals"):
                life.batch(query, 3, 0)
            life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            life.quiet("messages orders")
        owners = {
            (query.query_id, shard, owned.term)
            for query in life.machine.queries.values()
            for shard, owned in query.assignment._owners.items()
        }
        runs = {query.query_id for query in life.machine.queries.values()}
        former = [
            (host, *served)
            for served, host in life.owned.items()
            if served[0] in runs and served not in owners
        ]
        pending = sorted(life.machine.checkpoints.pending)
        if not former or not pending:
            return
        host, query_id, shard, term = former[number % len(former)]
        files = {"zombie": {"000000000.sst": b'{"number": 0, "changes": {"0": [666]}}'}}
        for id in pending:
            root = life.machine.checkpoints.pending[id].root
            stored = put_files(self.world.open(root), id, f"zombie-{host}", files, {})
            snapshot = ShardSnapshot(shard, stored["zombie"], 1, 0.0, 0.0, 0.0, term, entries=1)
            life.receive(Ack(host, id, query_id, (snapshot,)))

    @property
    def has_moved(self) -> bool:
        """Whether any shard has."""
        return any(term > 1 for life in self.world.every_life for _, _, term in life.owned)


def walk(steps: int, upto: int, early: bool) -> None:
    """Drain a machine: moves get so far, then a batch, a checkpoint and a zombie meet them, then all goes on."""
    machine = MovingMachine()
    machine.start()
    life = machine.world.life
    machine.busy("", 2)
    life.handle(on.DrainRequested("a"))
    machine.busy("moves", 1)
    for number in range(steps):
        if number % 3 == (0 if early else 2):
            life.batch("orders", 3, 0, upto)
        if life.moving:
            life.move(number)
        if life.reports and number % 2:
            life.handle(life.reports.pop(0))
        machine.the_promises_are_kept()
    for query in ("orders", "totals"):
        life.batch(query, 3, 0, upto)
    machine.busy("moves", 1)
    machine.the_promises_are_kept()
    machine.busy("", 2)
    machine.a_zombie_acknowledges(upto, checkpoint=True)
    machine.busy("", 1)
    machine.the_promises_are_kept()
    assert not life.machine.placement.shards_on("a"), "the machine is not drained"
    machine.teardown()


WALKS = list(product(range(1, 12, 2), (0, 1, 2, 4, 5), (False, True)))


def walks(cases: Iterable[tuple[Any, ...]] = WALKS) -> None:
    for case in cases:
        walk(*case)


def assert_found(bug: Bug, patch: pytest.MonkeyPatch, walks: Callable[[], None]) -> None:
    """Put a bug into the product, and check that walks show it."""
    bug(patch)
    # A shard may notice first that its state is not what it must be.
    with pytest.raises((AssertionError, KeyError, ShardRefusedError)):
        walks()
