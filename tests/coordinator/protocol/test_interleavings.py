"""The protocol as a whole against whatever can happen to it: hosts, tasks, stores and coordinators that fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis.stateful import run_state_machine_as_test

from chandy.coordinator.execution.checkpoint_jobs import CheckpointJobs
from chandy.coordinator.execution.connected_hosts import ConnectedHosts
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol import instructions as do
from chandy.coordinator.protocol import life
from chandy.coordinator.protocol import retained as retained_module
from chandy.coordinator.protocol.admission import Admission
from chandy.coordinator.protocol.requests import Request
from chandy.coordinator.protocol.retained import RetainedCheckpoints
from chandy.coordinator.protocol.shard_assignment import ShardAssignment
from chandy.coordinator.protocol.state_machine import CheckpointStateMachine
from chandy.coordinator.restore import resume
from chandy.state.errors import ShardRefusedError
from chandy.state.host.batches import ShardBatches
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.shard import Shard
from chandy.state.rpc.messages import Decline
from chandy.state.rpc.orders import SnapshotOrder
from chandy.state.shards import RestoreSource, ResumePoint, ShardId
from chandy.storage.checkpoints.layout import manifest_key
from chandy.storage.checkpoints.manifest import CheckpointKind, Manifest

from ...effort import IS_FULL, always_kept, sampled, until_found
from ...mutation import mutate
from ...world.protocol_bugs import (
    abort_a_checkpoint_whose_manifest_is_being_written,
    abort_an_overdue_checkpoint,
    abort_whatever_fails_late,
    announce_before_the_manifest_is_durable,
    apply_a_batch_twice,
    apply_what_a_left_over_attempt_has_made,
    build_on_whatever_was_stored_last,
    change_the_answer_for_a_batch,
    count_an_acknowledgement_twice,
    cut_upstream_first,
    delete_a_successors_objects,
    delete_what_a_manifest_may_name,
    delete_what_others_need,
    forget_a_request_that_waits,
    keep_on_restarting_in_place,
    leave_out_a_shard_of_an_order,
    never_look_for_a_successor,
    place_a_barrier_before_a_batch_that_has_passed,
    snapshot_a_shard_before_the_staged_batch,
    use_ids_again,
    wait_for_a_manifest_for_ever,
    wait_for_a_place_for_ever,
)
from ..stepped_executor import Work
from .lives import KEYS, ROOT, SHARDS, Files, Host, Life, Machine, ModelChanges, State, Task, _unique

LENGTH = 50
"""The number of steps of a run."""


# --- shards -------------------------------------------------------------------------------------------------


class RealShard:
    """The real shard, its files as bytes."""

    memory: ClassVar[Memory]
    folder: ClassVar[Path]

    def __init__(self, files: Files, position: int) -> None:
        directory = self.folder / str(next(_unique))
        directory.mkdir()
        for name, content in files.items():
            (directory / name).write_bytes(content)
        self.shard = Shard("shard", directory, self.memory, position)
        self.hand_over = self.shard.hand_over
        self.take_over = self.shard.take_over
        self.term = 1
        self.standby = None
        self.in_order = self.shard.in_order
        self.begin = self.shard.begin
        self.reached = self.shard.reached

    def fetch(self, key: int) -> list[int]:
        (value,) = self.shard.fetch([str(key).encode()])
        return [] if value is None else list(json.loads(value))

    def stage(self, batch: int, changes: ModelChanges) -> int:
        return self.shard.stage(batch, Changes.of("shard", self.entries(changes.entries)))

    def replay(self, batches: list[tuple[int, State]]) -> None:
        self.shard.replay((batch, dict(self.entries(changes))) for batch, changes in batches)

    @staticmethod
    def entries(changes: State) -> dict[bytes, bytes | None]:
        return {str(key).encode(): json.dumps(value).encode() for key, value in changes.items()}

    def checkpoint(self, cut: int, follow: bool = False) -> Files:
        place = self.folder / str(next(_unique))
        files = self.shard.snapshot(place, cut, follow=follow).files()
        return {name: path.read_bytes() for name, path in files.items()}

    def close(self) -> None:
        self.shard.destroy()

    @classmethod
    def state_of(cls, files: Files) -> State:
        shard = cls(files, -1)
        try:
            state = {key: shard.fetch(key) for key in range(KEYS)}
        finally:
            shard.close()
        return {key: value for key, value in state.items() if value}


def test_the_promises_are_kept_whatever_happens() -> None:
    run_state_machine_as_test(Machine, settings=always_kept(25, LENGTH))


def test_the_promises_are_kept_with_real_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealShard, "memory", Memory(32 << 20), raising=False)
    monkeypatch.setattr(RealShard, "folder", tmp_path, raising=False)

    class RealMachine(Machine):
        shard = RealShard
        state = staticmethod(RealShard.state_of)

    run_state_machine_as_test(RealMachine, settings=always_kept(3, LENGTH))


# --- does it find anything? ---------------------------------------------------------------------------------


def apply_before_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A batch does not wait for the snapshot, and what a shard holds later is taken for the state at the cut."""

    def ready(
        host: Host, orders: tuple[SnapshotOrder, ...], batch: int, query_id: str, shard: ShardId
    ) -> None:
        host.shards[query_id, shard].begin(batch)

    patch.setattr(Host, "ready", ready)
    patch.setattr(ShardBatches, "cut", lambda batches, batch: batches._promote(10**9))


def cut_two_shards_differently(patch: pytest.MonkeyPatch) -> None:
    """The hosts of one executor take their snapshots one batch earlier than the others."""
    right = Host.accept

    def accept(host: Host, order: SnapshotOrder) -> Task:
        earlier = host.name[0] == "b"
        return right(host, attrs.evolve(order, cut=order.cut - 1) if earlier else order)

    patch.setattr(Host, "accept", accept)


def choose_the_cut_of_a_writer_before_that_of_its_reader(patch: pytest.MonkeyPatch) -> None:
    right = "for query in choose.queries:\n        begun"
    mutate(
        patch, CheckpointJobs, "choose_cut", right, right.replace("choose.queries", "choose.queries[::-1]")
    )


def overlook_a_query_that_stops_while_its_cut_is_chosen(patch: pytest.MonkeyPatch) -> None:
    right = "(batch := self._progress.current_batch(query)) is not None"
    mutate(patch, CheckpointJobs, "choose_cut", right, "False")


def keep_no_record_of_an_id(patch: pytest.MonkeyPatch) -> None:
    right = "self._store.create(trigger_key(choose.checkpoint), note.encode())"
    mutate(patch, CheckpointJobs, "_take_place", right, "pass")


def name_in_a_manifest_what_is_being_deleted(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, CheckpointJobs, "finalize", "self._protocol.doomed(manifest)", "()")


def begin_a_batch_without_a_proof(patch: pytest.MonkeyPatch) -> None:
    mutate(patch, ConnectedHosts, "ask_once", "self._proof.check()", "pass")


def take_what_lies_in_changelogs_for_its_origin(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint does not wait for shards whose state is more than what they were restored from."""
    patch.setattr(ShardAssignment, "complete", True)


def leave_out_a_batch_of_a_changelog(patch: pytest.MonkeyPatch) -> None:
    right = Host.open

    def open_without(
        host: Host,
        query_id: str,
        shard: ShardId,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
    ) -> None:
        fewer = attrs.evolve(resume_point, after=resume_point.after + 1) if resume_point else None
        right(host, query_id, shard, source, fewer)

    patch.setattr(Host, "open", open_without)


def let_something_in_that_is_no_event(patch: pytest.MonkeyPatch) -> None:
    """The first delay of the schedule is not that of the event."""
    right = Admission.start_schedule

    def start(admission: Admission, chance: float, now: float) -> None:
        right(admission, chance, now + next(_unique))

    patch.setattr(Admission, "start_schedule", start)


def resume_one_query_without_the_other(patch: pytest.MonkeyPatch) -> None:
    def resume_points(runs: Mapping[str, resume.Candidate]) -> dict[str, ResumePoint]:
        found = {query: resume.resume_point(run) for query, run in runs.items()}
        return {query: where for query, where in found.items() if isinstance(where, ResumePoint)}

    patch.setattr(resume, "resume_points", resume_points)


def take_checkpoints_while_going_back(patch: pytest.MonkeyPatch) -> None:
    """Checkpoints of the state that is given up go on."""
    patch.setattr(life.Life, "takes_checkpoints", property(lambda one: not one.is_over))


def give_up_a_verified_checkpoint_for_an_unverified_one(patch: pytest.MonkeyPatch) -> None:
    """Retention counts checkpoints, whatever is known of them."""
    right = retained_module.dropped

    def dropped(
        verified: list[int], retained: int, in_use: set[int], unverified: list[int]
    ) -> tuple[int, ...]:
        return right([*verified, *unverified], retained, in_use)

    patch.setattr(retained_module, "dropped", dropped)


def take_what_nobody_has_read_for_whole(patch: pytest.MonkeyPatch) -> None:
    """A shard that a host has claimed counts as read."""
    right = ShardAssignment.claim

    def claim(assignment: ShardAssignment, host: str, wanted: list[ShardId], *more: Any) -> Any:
        assignment.read(wanted)
        return right(assignment, host, wanted, *more)

    patch.setattr(ShardAssignment, "claim", claim)


def keep_what_was_read_before_going_back(patch: pytest.MonkeyPatch) -> None:
    """What a run that is over has read counts for the one that takes its place."""
    right = CheckpointStateMachine._add_query

    def add_query(machine: CheckpointStateMachine, added: on.QueryAdded) -> None:
        earlier = machine.queries.get(added.name)
        right(machine, added)
        if earlier is not None and not earlier.unread():
            machine.queries[added.name].verified()

    patch.setattr(CheckpointStateMachine, "_add_query", add_query)


def never_forget_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    right = RetainedCheckpoints.deleted

    def deleted(retained: RetainedCheckpoints, ids: tuple[int, ...], remaining: Collection[Manifest]) -> None:
        doomed = retained._deleting[ids]
        right(retained, ids, remaining)
        retained._deleting[()] = retained._deleting.get((), frozenset()) | doomed

    patch.setattr(RetainedCheckpoints, "deleted", deleted)


def let_a_stop_wait_for_a_pipeline_that_must_go_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "suspend", lambda admission, cause: None)


def let_a_stop_wait_between_two_attempts_to_go_back(patch: pytest.MonkeyPatch) -> None:
    """Its savepoint is a request like any other."""
    right = Admission.new_request

    def new_request(
        admission: Admission,
        kind: CheckpointKind,
        now: float,
        target: str | None = None,
        *,
        is_final: bool = False,
    ) -> Request:
        return right(admission, kind, now, target)

    patch.setattr(Admission, "new_request", new_request)


BUGS = [
    keep_what_was_read_before_going_back,
    never_forget_what_was_deleted,
    delete_what_a_manifest_may_name,
    let_a_stop_wait_for_a_pipeline_that_must_go_back,
    let_a_stop_wait_between_two_attempts_to_go_back,
    keep_on_restarting_in_place,
    take_checkpoints_while_going_back,
    apply_before_the_snapshot,
    cut_two_shards_differently,
    apply_a_batch_twice,
    apply_what_a_left_over_attempt_has_made,
    snapshot_a_shard_before_the_staged_batch,
    leave_out_a_shard_of_an_order,
    build_on_whatever_was_stored_last,
    place_a_barrier_before_a_batch_that_has_passed,
    change_the_answer_for_a_batch,
    cut_upstream_first,
    delete_what_others_need,
    announce_before_the_manifest_is_durable,
    use_ids_again,
    forget_a_request_that_waits,
    take_what_lies_in_changelogs_for_its_origin,
    leave_out_a_batch_of_a_changelog,
    let_something_in_that_is_no_event,
]


@pytest.mark.parametrize("bug", sampled(BUGS, 3), ids=lambda bug: bug.__name__)
def test_the_machine_finds(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    # A shard may notice first that its state is not what it must be.
    with pytest.raises((AssertionError, KeyError, ShardRefusedError)):
        run_state_machine_as_test(Machine, settings=until_found(LENGTH))


# --- bugs that random examples show late: each has a schedule of its own -------------------------------------


def nobody_reads_what_the_next_driver_restores(machine: Machine) -> None:
    world = machine.world
    machine.asked(world.life, "")
    world.cached = True
    machine.another_coordinator_takes_over(False, 1, False, "", False)
    for query in SHARDS:
        machine.shards_are_opened_ahead(NEWEST, query, 0)
    for _ in range(3):
        world.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
    world.life.quiet("manifests")
    # The driver comes to read what is left only afterwards.
    world.life.quiet("works")
    machine.everything_arrives(NEWEST, "")


def the_drivers_files_cannot_be_read_while_a_manifest_is_written(machine: Machine) -> None:
    life = machine.world.life
    machine.batches_run(NEWEST, [(query, 3) for query in SHARDS], 0, False)
    life.fails_late = True
    life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
    while not life.machine.checkpoints.pending.keys() & machine.collecting(life):
        life.work(life.works, -1)
    late, life.works = life.works[-1:], life.works[:-1]
    life.quiet("manifests")
    write_a_part_of_the_manifest(life)
    life.works += late
    life.quiet("manifests")
    machine.everything_arrives(NEWEST, "")


def a_host_declines_while_a_manifest_is_written(machine: Machine) -> None:
    life = machine.world.life
    machine.asked(life, "manifests")
    write_a_part_of_the_manifest(life)
    for checkpoint, query_id in list(life.cuts):
        life.receive(Decline("a", checkpoint, query_id, "no answer to my word"))
    life.quiet("manifests")
    machine.everything_arrives(NEWEST, "")


def write_a_part_of_the_manifest(life: Life) -> None:
    """It is known what goes into it, and it is not there yet."""
    for _ in range(2):
        life.work(life.manifests, 0)


def a_checkpoint_is_overdue(machine: Machine) -> None:
    machine.a_checkpoint_is_overdue_while_its_manifest_is_written(2, 0)


def a_store_never_answers(machine: Machine) -> None:
    machine.a_store_hangs_at_its_manifests(0, True, "")
    machine.the_stores_let_go(True)


def more_is_asked_for_than_a_store_that_hangs_has_places(machine: Machine) -> None:
    machine.a_store_hangs_at_its_manifests(0, True, "")
    for _ in range(machine.world.life.machine.limits.max_concurrent):
        machine.asked(machine.world.life, "")
    machine.the_stores_let_go(True)


def one_query_has_got_further_when_all_hosts_die(machine: Machine) -> None:
    machine.all_hosts_die_and_die_again_when_one_query_has_got_further("totals", 0, True)


def one_host_acknowledges_twice(machine: Machine) -> None:
    life = machine.world.life
    machine.asked(life, "messages")
    while life.messages:
        message = life.messages.pop(0)
        if message.host[0] == "a":
            life.receive(message)
            life.receive(message)
    machine.everything_arrives(NEWEST, "")


def a_driver_has_a_successor_before_it_writes_its_manifest(machine: Machine) -> None:
    machine.another_coordinator_takes_over_in_a_checkpoint("manifests", "", False, 0)


def a_driver_has_a_successor_before_it_claims_its_checkpoint(machine: Machine) -> None:
    machine.another_coordinator_takes_over_in_a_checkpoint("works", "", False, 0)


def queries_go_on_between_their_cuts(machine: Machine) -> None:
    life = machine.world.life
    life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
    while life.works:
        life.work(life.works, 0)
        for query in SHARDS:
            life.batch(query, 2, 0)
    machine.everything_arrives(NEWEST, "")


def a_query_stops_at_each_step_of_choosing_its_cut(machine: Machine) -> None:
    life = machine.world.life
    run = life.runs["orders"]
    for steps in range(16):
        life.plan(run, 3)
        life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        for _ in range(steps):
            life.work(life.works, 0)
        run.stands = True
        life.handle(on.QueryStopped("orders", run.committed))
        life.quiet()
        assert not life.unanswered, "a checkpoint waits for a batch that never commits"
        run.stands = False
        life.batch("orders", 3, 0)


def a_driver_has_a_successor_after_it_has_chosen_a_cut(machine: Machine) -> None:
    life = machine.world.life
    life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
    while not machine.world.cut_by:
        life.work(life.works, 0)
    machine.another_coordinator_takes_over(True, 1, False, "", True)


def tasks_of_a_driver_that_has_a_successor_go_on(machine: Machine) -> None:
    zombie = machine.world.life
    machine.another_coordinator_takes_over(True, 1, False, "", False)
    zombie.batch("orders", 3, 0)


def a_table_comes_again_while_it_is_deleted(machine: Machine) -> None:
    life = machine.world.life
    machine.world.repeats = True
    late: list[Work] = []
    while not late:
        machine.asked(life, "works")
        while life.works and not late:
            life.work(life.works, 0)
            life.quiet("works")
            late = [work for work in life.works if isinstance(work.job.instruction, do.Discard)]
    life.works = [work for work in life.works if work not in late]
    (deletion,) = late
    manifests = {manifest_key(one.id) for one in deletion.job.instruction.dropped}
    while manifests & set(machine.world.open(ROOT).list()):
        life.work(late, 0)
    # It looks for other manifests, then decides what goes with these, and has not begun with it.
    for _ in range(2):
        life.work(late, 0)
    for _ in range(2):
        machine.asked(life, "")
    life.works += late
    machine.everything_arrives(NEWEST, "")


NEWEST = 7
"""Lets the newest life do what a rule says."""
RARE: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[Machine], None]]] = [
    (give_up_a_verified_checkpoint_for_an_unverified_one, nobody_reads_what_the_next_driver_restores),
    (take_what_nobody_has_read_for_whole, nobody_reads_what_the_next_driver_restores),
    (abort_whatever_fails_late, the_drivers_files_cannot_be_read_while_a_manifest_is_written),
    (abort_a_checkpoint_whose_manifest_is_being_written, a_host_declines_while_a_manifest_is_written),
    (abort_an_overdue_checkpoint, a_checkpoint_is_overdue),
    (wait_for_a_manifest_for_ever, a_store_never_answers),
    (wait_for_a_place_for_ever, more_is_asked_for_than_a_store_that_hangs_has_places),
    (resume_one_query_without_the_other, one_query_has_got_further_when_all_hosts_die),
    (count_an_acknowledgement_twice, one_host_acknowledges_twice),
    (never_look_for_a_successor, a_driver_has_a_successor_before_it_writes_its_manifest),
    (delete_a_successors_objects, a_driver_has_a_successor_before_it_claims_its_checkpoint),
    (choose_the_cut_of_a_writer_before_that_of_its_reader, queries_go_on_between_their_cuts),
    (overlook_a_query_that_stops_while_its_cut_is_chosen, a_query_stops_at_each_step_of_choosing_its_cut),
    (keep_no_record_of_an_id, a_driver_has_a_successor_after_it_has_chosen_a_cut),
    (name_in_a_manifest_what_is_being_deleted, a_table_comes_again_while_it_is_deleted),
    (begin_a_batch_without_a_proof, tasks_of_a_driver_that_has_a_successor_go_on),
]


@pytest.mark.parametrize("schedule", {schedule: None for _, schedule in RARE}, ids=lambda one: one.__name__)
def test_a_schedule_keeps_the_promises(schedule: Callable[[Machine], None]) -> None:
    run_schedule(schedule)


@pytest.mark.parametrize(("bug", "schedule"), RARE, ids=lambda one: one.__name__)
def test_a_schedule_finds(
    bug: Callable[[pytest.MonkeyPatch], None],
    schedule: Callable[[Machine], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ShardRefusedError)):
        run_schedule(schedule)


@pytest.mark.skipif(not IS_FULL, reason="takes minutes: CHANDY_FULL=1 does it")
@pytest.mark.parametrize("bug", [bug for bug, _ in RARE], ids=lambda bug: bug.__name__)
def test_the_machine_finds_in_the_end(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test_the_machine_finds(bug, monkeypatch)


def run_schedule(schedule: Callable[[Machine], None]) -> None:
    machine = Machine()
    machine.start()
    schedule(machine)
    machine.the_promises_are_kept()
    machine.teardown()
