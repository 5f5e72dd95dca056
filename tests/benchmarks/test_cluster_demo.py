"""The demo on a cluster: when machines come and go, and what is told of shards; here without Spark."""

from __future__ import annotations

import io
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.cluster_demo import plan
from benchmarks.cluster_demo.__main__ import Story, act, shard_table
from benchmarks.demo import Course, DemoScreen, checkpoint_table
from benchmarks.flights import Day
from chandy.coordinator import AssignedShard

COURSE = Course(tuple(Day(f"2013-01-{number:02}", 100) for number in range(1, 11)), 1, kill_after=500)


def assigned(shard: int, machine: str | None, executor: str | None) -> AssignedShard:
    return AssignedShard("q", "op", shard, machine, executor)


def test_a_machine_is_told_by_its_name_or_by_its_folder_and_a_shard_of_nobody_is_left_out() -> None:
    found = plan.by_machine(
        [
            assigned(3, "m2", "m2:/tmp/work.x/app/0"),
            assigned(1, "m2", "m2:/tmp/work.x/app/0"),
            assigned(0, "host", "host:/tmp/chy-x/m1/work.x/app/1"),
            assigned(2, None, None),
        ],
        ("m1", "m2", "m3"),
    )
    assert found == {"m1": [0], "m2": [1, 3]}


def test_shards_are_shown_as_ranges() -> None:
    assert plan.shown([]) == "-"
    assert plan.shown([0, 1, 2, 3, 5, 7, 8]) == "0-3, 5, 7-8"


@given(st.sets(st.integers(0, 40)).map(sorted))
def test_what_is_shown_is_what_there_is(shards: list[int]) -> None:
    read: list[int] = []
    for part in plan.shown(shards).split(", ") if shards else ():
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == shards


@attrs.define
class Machine:
    name: str
    killed: bool = False

    def kill(self) -> None:
        self.killed = True


@attrs.define
class Machines:
    machines: list[Machine]
    workers: list[str] = attrs.field(factory=list)

    def add(self, name: str) -> Machine:
        self.machines.append(Machine(name))
        return self.machines[-1]

    def start_worker(self, machine: Machine) -> None:
        self.workers.append(machine.name)


def screen() -> DemoScreen:
    return DemoScreen(Console(file=io.StringIO(), width=200), COURSE)


def test_a_machine_joins_and_one_is_lost_at_half_once_the_newcomer_has_shards() -> None:
    machines: Any = Machines([Machine("m1"), Machine("m2"), Machine("m3")])
    story, shown = Story(executors=3), screen()
    history = []
    for days, executors, newcomer in ((0, 3, 0), (1, 3, 0), (5, 3, 0), (6, 4, 0), (7, 4, 1), (7, 3, 1)):
        story.days, story.executors = days, executors
        story.shards = {"m1": [0], "m3": [1, 2, 3], **({"m4": [4, 5, 6, 7]} if newcomer else {})}
        act(story, COURSE, machines, machines, shown)
        history.append((len(machines.machines), story.lost))
    assert history == [(3, ""), (4, ""), (4, ""), (4, ""), (4, "m3"), (4, "m3")]
    assert machines.workers == ["m4"]
    assert [one.name for one in machines.machines if one.killed] == ["m3"]
    assert list(story.moments) == ["before m4 joined", "before m3 was lost"]


def test_a_machine_is_lost_in_time_also_if_the_newcomer_gets_no_shard() -> None:
    machines: Any = Machines([Machine("m1"), Machine("m4"), Machine("m2"), Machine("m3")])
    story, shown = Story(executors=4, shards={"m1": [0], "m3": [1, 2]}), screen()
    for days, lost in ((8, ""), (9, "m3")):
        story.days = days
        act(story, COURSE, machines, machines, shown)
        assert story.lost == lost


def test_many_checkpoints_alike_are_shown_by_the_first_and_the_last() -> None:
    def taken(id: int, status: str = "completed") -> tuple[str, dict[str, Any]]:
        sizes = {"size": 1, "new_bytes": 1, "shards": 1}
        return "driver", {"kind": "periodic", "status": status, "id": id, "seconds": float(id), **sizes}

    def ids(*some: tuple[str, dict[str, Any]]) -> list[str]:
        return list(checkpoint_table(some).columns[3].cells)

    assert ids(*map(taken, range(5))) == ["0", "1", "2", "3", "4"]
    many = [*map(taken, range(20)), taken(20, "failed"), taken(21)]
    assert ids(*many) == ["0", "1", "16 more", "18", "19", "20", "21"]
    assert list(checkpoint_table(many).columns[4].cells)[2] == "median 9.50 s"


def test_the_time_of_a_loss_ends_with_the_first_batch_after_it() -> None:
    story, shown = Story(lost="m1", lost_at=100.0), screen()
    for at, batch in ((112.5, 7), (113.0, 8)):
        story.take({"event": "batch", "at": at, "batch": batch, "days": batch}, shown)
    assert story.next_batch_at == 112.5
    assert shown.console.file.getvalue().count("goes on after 12.5 s") == 1  # type: ignore[attr-defined]


def test_who_had_which_shards_is_shown_for_every_machine_that_ever_had_one() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(shard_table({"before": {"m1": [0, 1], "m2": [2]}, "after": {"m1": [0, 1, 2]}}))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("m1" in line and "0-1" in line and "0-2" in line for line in lines)
    assert any("m2" in line and "2" in line and "-" in line for line in lines)


def test_a_machine_that_is_spared_is_not_lost_even_if_it_is_the_only_one() -> None:
    with pytest.raises(ValueError, match="empty"):
        plan.most_loaded({"m4": [1]}, spared="m4")
