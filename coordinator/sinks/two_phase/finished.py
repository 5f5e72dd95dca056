"""What the tasks of a batch have written that have ended well, known on the driver although the batch fails."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.accumulators import Accumulator, AccumulatorParam

from .contract import Staged

if TYPE_CHECKING:
    from pyspark import SparkContext


class Finished:
    """Collects on the driver what tasks have written, of one batch at a time."""

    def __init__(self) -> None:
        self._found: Accumulator[list[bytes]] | None = None

    def begin(self, context: SparkContext) -> Callable[[bytes], None]:
        """Forget what there is; return what a task calls with its result. Spark takes one result of each partition."""
        if self._found is None:
            # Spark never forgets an accumulator, so there is one for all batches.
            self._found = context.accumulator([], _Joined())
        self._found.value = []
        return _Add(self._found)

    def take(self) -> tuple[Staged, ...]:
        """Return what was written, and forget it."""
        if self._found is None:
            return ()
        found, self._found.value = self._found.value, []
        return tuple(pickle.loads(one) for one in found)


class _Joined(AccumulatorParam[list[bytes]]):
    def zero(self, value: list[bytes]) -> list[bytes]:
        return []

    def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 (Spark's names)
        return value1 + value2


class _Add:
    def __init__(self, found: Accumulator[list[bytes]]) -> None:
        self._found = found

    def __call__(self, staged: bytes) -> None:
        self._found.add([staged])
