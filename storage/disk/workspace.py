"""A process's working directory, and the removal of those that dead processes have left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from ..logs import logger
from .directories import private_directory
from .locks import FileLock, acquire, hold_directory, locked, remove_unless_held

_log = logger(__name__)
ALIVE: Final = "alive"
"""The lock file that a living process holds in its directory."""


@attrs.frozen
class Workspace:
    """A directory with mode 0700 that this process holds until it ends."""

    path: Path
    _alive: FileLock
    _held: FileLock | None
    """Keeps cleaners of temporary directories away."""

    @classmethod
    def create(cls, base: Path, name: str, keep: Callable[[Path], bool] = lambda _: False) -> Workspace:
        """Create ``base/name`` and hold it. Remove the workspaces in ``base`` that no living process holds.

        Args:
            base: the directory of all workspaces of a kind. What else is in it stays.
            name: a new name.
            keep: says which directories to keep although no process holds them.

        Raises:
            UnsafeDirectoryError: ``base`` is not this user's alone.
        """
        private_directory(base)
        with locked(base / ".lock"):
            for other in workspaces(base):
                if not keep(other) and remove_unless_held(other, ALIVE):
                    _log.info("removed the directory of a dead process", directory=str(other))
            path = private_directory(base / name)
            return cls(path, acquire(path / ALIVE), hold_directory(path))

    def release(self) -> None:
        """Hold the directory no longer, and leave what is in it."""
        if self._held is not None:
            self._held.release()
        self._alive.release()

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()


def workspaces(base: Path) -> list[Path]:
    """Return the directories in ``base`` that are workspaces: each has the lock file."""
    return sorted(lock.parent for lock in base.glob(f"*/{ALIVE}"))
