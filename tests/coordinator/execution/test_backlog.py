"""Checkpoints keep to another interval while a query is behind its sources."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from chandy.coordinator.execution.backlog import Backlog

from .one_life import Setup


@attrs.define
class Query:
    behind: bool = False

    def is_behind(self) -> bool:
        return self.behind


def test_one_query_that_is_behind_changes_the_interval_until_all_have_caught_up(
    make: Callable[..., Setup],
) -> None:
    machine = make(interval="10 s", interval_during_backlog="60 s").executor.machine
    first, second = Query(), Query()
    backlog = Backlog(machine, lambda: [first, second])

    def interval() -> float | None:
        backlog.look()
        return machine.read(lambda machine: machine.admission.schedule.current)

    events = len(machine.events)
    assert interval() == 10
    assert len(machine.events) == events, "nothing has changed"
    first.behind = second.behind = True
    assert interval() == 60
    first.behind = False
    assert interval() == 60
    assert len(machine.events) == events + 1
    second.behind = False
    assert interval() == 10
