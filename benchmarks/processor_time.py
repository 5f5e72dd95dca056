"""The processor time of a run: that of all its processes, which other work on the machine does not change."""

from __future__ import annotations

import psutil


def processor_seconds(process: int | None = None) -> float:
    """Return the processor time, in seconds, that a process and all that it has started have taken so far.

    Children that have ended count as soon as their parents have waited for them.

    Args:
        process: its id; None: this one.
    """
    total = 0.0
    top = psutil.Process(process)
    for one in (top, *top.children(recursive=True)):
        try:
            times = one.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total
