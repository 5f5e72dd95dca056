"""The protocol hears of each executor that is gone, once."""

from __future__ import annotations

from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.hosts.executor_losses import ExecutorLosses
from chandy.coordinator.protocol import events


class ToldProtocol:
    """Stands for the protocol: it keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.handle = self.events.append


def test_each_executor_that_is_gone_is_told_once() -> None:
    told, executors = ToldProtocol(), [{"0", "1"}, {"0", "1", "2"}, {"2"}, {"2", "3"}, {"2", "3"}, set()]
    protocol: LockedProtocol = told  # type: ignore[assignment]
    losses = ExecutorLosses(protocol, lambda: frozenset(executors.pop(0)))
    while executors:
        losses.look()
    assert told.events == [
        events.ExecutorsGone(frozenset({"0", "1"})),
        events.ExecutorsGone(frozenset({"2", "3"})),
    ]
