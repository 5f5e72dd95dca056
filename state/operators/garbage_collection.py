"""Makes Python's garbage collection take less of a task's time, and none of the time between tasks."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 50_000
"""New objects before a collection. With Python's 700 the collector visits each row again and again, which takes a third
of a task's time. Garbage in cycles is still found, only later."""

_tasks = itertools.count()
"""Numbers the tasks of this process."""


def spare_loaded_modules() -> None:
    """Leave the objects of loaded modules out of all further garbage collections; every task calls it first.

    PySpark's worker collects garbage after each task, before it takes the next one. That visits every object of every
    module: 30 ms for PySpark, NumPy and pyarrow, which is most of a small task's time. The first task of a process
    loads the modules, and after it nothing is left that is garbage. So the second one freezes all objects
    (``gc.freeze``).
    """
    if next(_tasks) == 1:
        gc.freeze()


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Collect garbage less often in this context, and in the whole process, which runs one task at a time."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
