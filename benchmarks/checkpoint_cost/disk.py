"""Reads what state hosts have used from the operating system, and what RocksDB did from its own logs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

_PROC: Final = Path("/proc")
_HOST: Final = b"chandy.state.host.process"
_COMPACTED: Final = b'"event": "compaction_finished"'


def host_processes(cache: Path) -> list[int]:
    """Return the state hosts with open files below a ``cache_dir``. Without ``/proc`` none are found."""
    found = []
    for process in _PROC.glob("[0-9]*"):
        # Processes of other users cannot be read, and any process may end meanwhile.
        with contextlib.suppress(OSError):
            if _HOST in (process / "cmdline").read_bytes().split(b"\0") and _has_open(process, cache):
                found.append(int(process.name))
    return found


@attrs.frozen
class Used:
    """The resources that processes have used since they started."""

    written: int
    """Bytes written to a disk."""
    processor_seconds: float

    def minus(self, earlier: Used) -> Used:
        """Return what was used since ``earlier``."""
        return Used(self.written - earlier.written, self.processor_seconds - earlier.processor_seconds)


def used_by(processes: Sequence[int]) -> Used | None:
    """Return the sum over processes. None if there are none, or the system does not count it."""
    try:
        counted = [_used(_PROC / str(process)) for process in processes]
    except OSError:
        return None
    if not counted:
        return None
    return Used(sum(one.written for one in counted), sum(one.processor_seconds for one in counted))


def compactions(cache: Path) -> int:
    """Return the number of finished compactions in the RocksDB logs below a state host's directory."""
    return sum(log.read_bytes().count(_COMPACTED) for log in _existing(cache.glob("hosts/*/shards/*/LOG")))


def bytes_below(folder: Path) -> int:
    """Return the size of all files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def _has_open(process: Path, folder: Path) -> bool:
    return any(descriptor.readlink().is_relative_to(folder) for descriptor in (process / "fd").iterdir())


def _existing(paths: Iterable[Path]) -> Iterator[Path]:
    return (path for path in paths if path.exists())


def _used(process: Path) -> Used:
    counts = dict(line.split(": ") for line in (process / "io").read_text().splitlines())
    # Split after the process name, which may contain any character; see proc(5).
    times = (process / "stat").read_text().rpartition(")")[2].split()
    user, system = int(times[11]), int(times[12])
    return Used(int(counts["write_bytes"]), (user + system) / os.sysconf("SC_CLK_TCK"))
