"""What is known of the tasks of a batch that fails."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.accumulators import Accumulator

from chandy.coordinator.sinks.two_phase.contract import Staged
from chandy.coordinator.sinks.two_phase.task_results import TaskResults

ONE, TWO = Staged(1, note="one"), Staged(2, note="two")


class Context:
    """Makes accumulators as a SparkContext does, for tasks in the driver's own thread."""

    def __init__(self) -> None:
        self.made = 0

    def accumulator(self, value: Any, param: Any) -> Accumulator[Any]:
        self.made += 1
        return Accumulator(-1000 - self.made, value, param)


def test_an_attempt_has_the_results_of_its_own_tasks_alone() -> None:
    context: Any = Context()
    finished = TaskResults()
    first = finished.attempt()
    assert first.results() == ()
    late = first.begin(context)
    late(pickle.dumps(ONE))
    late(pickle.dumps(TWO))
    assert first.results() == (ONE, TWO)
    second = finished.attempt()
    add = second.begin(context)
    # A task of a run that is being stopped.
    late(pickle.dumps(ONE))
    add(pickle.dumps(TWO))
    assert second.results() == (TWO,)
    assert first.results() == (ONE,)
    assert context.made == 1
