"""What processes say to each other arrives, late or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.storage import runtime

from .choices import Choices
from .machines import Machine
from .network import Loss, Network
from .runtime import SimulatedRuntime
from .scheduler import Scheduler, SimulatedProcess


class LostError(Exception):
    pass


class TwoCallers:
    """Two machines, with a process each, of which one calls the other."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(Choices(0))
        self.network = Network(self.scheduler)
        self.machines = [Machine(self.scheduler, name, Path("disk")) for name in "ab"]
        self.caller, self.target = (machine.start(machine.name) for machine in self.machines)
        self.called: list[str] = []

    def say(self) -> str:
        self.called.append(self.scheduler.here.name)
        return "said"

    def call(self, seconds: float = 0.0) -> str:
        def act() -> str:
            runtime.sleep(seconds)
            return self.say()

        return self.scheduler.call(self.caller, lambda: self.network.call(self.target, act, "say", LostError))

    def soon(self, process: SimulatedProcess, power: bool = False) -> None:
        def end() -> None:
            runtime.sleep(1)
            if power:
                process.machine.lose_power()
            else:
                self.scheduler.kill(process)

        self.scheduler.spawn(self.scheduler.world, end, "ends it")


@pytest.fixture
def pair() -> Iterator[TwoCallers]:
    pair = TwoCallers()
    with runtime.used(SimulatedRuntime(pair.scheduler)):
        yield pair
        pair.scheduler.end()


def test_a_call_is_carried_out_by_the_other_process(pair: TwoCallers) -> None:
    assert (pair.call(), pair.called) == ("said", ["b"])


def test_what_it_raises_is_raised(pair: TwoCallers) -> None:
    def act() -> None:
        raise KeyError("key")

    with pytest.raises(KeyError):
        pair.scheduler.call(pair.caller, lambda: pair.network.call(pair.target, act, "act", LostError))


@pytest.mark.parametrize(("is_answer", "called"), [(True, ["b"]), (False, [])])
def test_a_connection_breaks_before_or_after_the_act(
    pair: TwoCallers, is_answer: bool, called: list[str]
) -> None:
    pair.network.losses.append(Loss("say", is_answer))
    with pytest.raises(LostError, match="broke"):
        pair.call()
    assert pair.called == called
    assert pair.call() == "said"


def test_the_caller_of_a_killed_process_hears_so_at_once_and_of_one_without_power_late(
    pair: TwoCallers,
) -> None:
    pair.soon(pair.target)
    with pytest.raises(LostError, match="broke"):
        pair.call(10)
    assert pair.scheduler.now < 5
    with pytest.raises(LostError, match="refused"):
        pair.call()
    pair.target = pair.machines[1].start("b2")
    pair.soon(pair.target, power=True)
    with pytest.raises(LostError, match="nothing was heard"):
        pair.call(10)
    assert pair.called == []


def test_a_call_ends_with_its_time_and_while_machines_are_cut_off(pair: TwoCallers) -> None:
    with pytest.raises(LostError, match="in 2 s"):
        pair.scheduler.call(
            pair.caller,
            lambda: pair.network.call(pair.target, lambda: runtime.sleep(60), "sleep", LostError, 2.0),
        )
    pair.network.cut.add(frozenset("ab"))
    with pytest.raises(LostError, match="nothing was heard"):
        pair.call()


def test_a_stream_ends_with_its_server_and_is_closed_with_its_caller(pair: TwoCallers) -> None:
    closed: list[str] = []

    def numbers() -> Iterator[int]:
        try:
            for number in range(1000):
                yield number
                runtime.sleep(0.5)
        finally:
            closed.append(pair.scheduler.here.name)

    def listen(upto: int) -> list[int]:
        found: list[int] = []
        try:
            for number in pair.network.stream(pair.target, numbers, "numbers", LostError):
                found.append(number)
                if number == upto:
                    break
        except LostError:
            found.append(-1)
        return found

    assert pair.scheduler.call(pair.caller, lambda: listen(3)) == [0, 1, 2, 3]
    pair.scheduler.run(lambda: bool(closed))
    pair.soon(pair.target)
    assert pair.scheduler.call(pair.caller, lambda: listen(1000))[-1] == -1
    assert closed == ["b"]
    pair.target = pair.machines[1].start("b2")
    pair.scheduler.spawn(pair.caller, lambda: listen(1000), "listens")
    pair.soon(pair.caller)
    pair.scheduler.run(lambda: closed == ["b", "b2"])
