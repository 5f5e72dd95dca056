"""Watches the disks of state hosts, to warn of one that fills up while something can still be done about it."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from ...state.rpc.messages import DiskSpace, HostHello
from ...storage import runtime

_WINDOW_SECONDS: Final = 3600.0
"""How far back readings count."""
_LEAST_SECONDS: Final = 600.0
"""How long a disk must have been watched until its readings say how fast it fills up."""
_EACH_SECONDS: Final = 30.0
"""From one reading to the next."""
_SOON_SECONDS: Final = 6 * 3600.0
"""A disk that is full within this time is warned of."""


@attrs.frozen
class FreeSpace:
    """What was free on a disk at a time, in seconds since 1970."""

    at: float
    free: int


def seconds_until_full(readings: Sequence[FreeSpace]) -> float | None:
    """Return how long a disk lasts if it fills up as it has done, by linear regression over its readings.

    Args:
        readings: oldest first.

    Returns:
        Seconds from the newest reading on; None if the disk does not fill up, or nobody can tell yet.
    """
    if not readings or readings[-1].at - readings[0].at < _LEAST_SECONDS:
        return None
    times, free = [one.at - readings[0].at for one in readings], [float(one.free) for one in readings]
    slope, _ = statistics.linear_regression(times, free)
    return free[-1] / -slope if slope < 0 else None


@attrs.define
class _Disk:
    machine: str
    space: DiskSpace
    readings: deque[FreeSpace] = attrs.field(factory=deque)
    is_warned_of: bool = False

    def read(self, space: DiskSpace, now: float) -> bool:
        """Take in what is free now; return whether there is another reading."""
        self.space = space
        if self.readings and now - self.readings[-1].at < _EACH_SECONDS:
            return False
        self.readings.append(FreeSpace(now, space.free))
        while now - self.readings[0].at > _WINDOW_SECONDS:
            self.readings.popleft()
        return True


class DiskWatch:
    """Knows how much is free on the disks of state hosts. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._disks: dict[str, _Disk] = {}
        """By state host."""

    def heard(self, hello: HostHello, space: DiskSpace, now: float) -> float | None:
        """Take in what a host says of its disk.

        Args:
            hello: of the host.
            space: of its disk.
            now: seconds since 1970.

        Returns:
            In how many seconds the disk will be full, if people are to be warned of that now; else None.
        """
        with self._lock:
            disk = self._disks.setdefault(hello.host, _Disk(hello.machine, space))
            if not disk.read(space, now):
                return None
            left = seconds_until_full(disk.readings)
            is_soon = left is not None and left < _SOON_SECONDS
            is_new = is_soon and not disk.is_warned_of
            # A rate that goes up and down around the bound is told of once.
            disk.is_warned_of = is_soon or (
                disk.is_warned_of and left is not None and left < 2 * _SOON_SECONDS
            )
        return left if is_new else None

    def left(self, host: str) -> None:
        """Forget a host."""
        with self._lock:
            self._disks.pop(host, None)

    def by_machine(self) -> Mapping[str, DiskSpace]:
        """Return the disk of each machine, of several that with the least free space."""
        with self._lock:
            found = [(disk.machine, disk.space) for disk in self._disks.values()]
        return dict(sorted(found, key=lambda one: one[1].free, reverse=True))
