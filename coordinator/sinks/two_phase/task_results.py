"""What the tasks of a batch have written that have ended well, known on the driver although the batch fails."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

from .contract import Staged

if TYPE_CHECKING:
    from pyspark import SparkContext

_Results = list[tuple[int, bytes]]
"""What tasks have written, pickled, each with the number of its batch's attempt."""


class TaskResults:
    """Collects on the driver what the tasks of one query have written."""

    def __init__(self) -> None:
        self._results: Accumulator[_Results] | None = None
        self._numbers = itertools.count()

    def attempt(self) -> Attempt:
        """Return what collects for one attempt at a batch, and for no other."""
        return Attempt(self, next(self._numbers))

    def begin(self, context: SparkContext) -> Accumulator[_Results]:
        """Forget what there is, and return what collects on. Spark takes one result of each partition."""
        if self._results is None:
            # Spark never forgets an accumulator, so there is one for all batches.
            self._results = context.accumulator([], _Joined())
        self._results.value = []
        return self._results

    def of(self, number: int) -> tuple[Staged, ...]:
        """Return what the tasks of an attempt have written that have ended well."""
        found = [] if self._results is None else self._results.value
        return tuple(pickle.loads(staged) for one, staged in found if one == number)


class Attempt:
    """One attempt at a batch. A run that is stopped may still be in one when the next run is in its own."""

    def __init__(self, finished: TaskResults, number: int) -> None:
        self._finished = finished
        self._number = number

    def begin(self, context: SparkContext) -> Callable[[bytes], None]:
        """Return what a task calls with its pickled result."""
        return _Add(self._finished.begin(context), self._number)

    def results(self) -> tuple[Staged, ...]:
        """Return what tasks have written that have ended well."""
        return self._finished.of(self._number)


class _Joined(AccumulatorParam[_Results]):
    def zero(self, value: _Results) -> _Results:
        return []

    def addInPlace(self, value1: _Results, value2: _Results) -> _Results:  # noqa: N802 (Spark's name)
        return value1 + value2


class _Add:
    def __init__(self, results: Accumulator[_Results], number: int) -> None:
        self._results = results
        self._number = number

    def __call__(self, staged: bytes) -> None:
        self._results.add([(self._number, staged)])
