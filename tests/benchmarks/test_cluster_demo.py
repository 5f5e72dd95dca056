"""The demo on a cluster: when machines come and go, and what is told of shards; here without Spark."""

from __future__ import annotations

import io
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.cluster_demo import plan
from benchmarks.cluster_demo.__main__ import Story, act
from benchmarks.demo import Course, DemoScreen
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


@given(st.sets(st.integers(0, 40)).map(sorted))
def test_what_is_shown_is_what_there_is(shards: list[int]) -> None:
    read: list[int] = []
    for part in plan.shown(shards).split(", ") if shards else ():
        first, _, last = part.partition("-")
        read += range(int(first), int(last or first) + 1)
    assert read == shards


@attrs.define
class DemoMachine:
    name: str
    killed: bool = False

    def kill(self) -> None:
        self.killed = True


@attrs.define
class Machines:
    machines: list[DemoMachine]
    workers: list[str] = attrs.field(factory=list)

    def add(self, name: str) -> DemoMachine:
        self.machines.append(DemoMachine(name))
        return self.machines[-1]

    def start_worker(self, machine: DemoMachine) -> None:
        self.workers.append(machine.name)


def screen() -> DemoScreen:
    return DemoScreen(Console(file=io.StringIO(), width=200), COURSE)


def test_a_machine_joins_and_one_is_lost_at_half_once_the_newcomer_has_shards() -> None:
    machines: Any = Machines([DemoMachine("m1"), DemoMachine("m2"), DemoMachine("m3")])
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
    machines: Any = Machines([DemoMachine("m1"), DemoMachine("m4"), DemoMachine("m2"), DemoMachine("m3")])
    story, shown = Story(executors=4, shards={"m1": [0], "m3": [1, 2]}), screen()
    for days, lost in ((8, ""), (9, "m3")):
        story.days = days
        act(story, COURSE, machines, machines, shown)
        assert story.lost == lost
