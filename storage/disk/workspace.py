"""A process's working directory, and the removal of those that dead processes have left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from ..logs import logger
from .directories import private_directory
from .locks import FileLock, acquire, hold_directory, locked, try_acquire
from .owners import OwnerRecord, owner_of, remove_owned, write_owner

_log = logger(__name__)
ALIVE: Final = "alive"
"""The lock file that a living process holds in its directory. It has the directory's ``OwnerRecord``."""


@attrs.frozen
class Workspace:
    """A directory with mode 0700 that this process holds until it ends."""

    path: Path
    _alive: FileLock
    _held: FileLock | None
    """Keeps cleaners of temporary directories away."""

    @classmethod
    def create(
        cls,
        base: Path,
        name: str,
        owner: OwnerRecord,
        keep: Callable[[Path], bool] = lambda _: False,
    ) -> Workspace:
        """Create ``base/name`` and hold it. Remove the workspaces of its kind in ``base`` that no living process holds.

        Args:
            base: the directory of all workspaces of a kind. What else is in it stays.
            name: a new name.
            owner: says what it is.
            keep: says which directories to keep although no process holds them.

        Raises:
            UnsafeDirectoryError: ``base`` is not this user's alone.
        """
        private_directory(base)
        with locked(base / ".lock"):
            for other in workspaces(base, owner.kind):
                if not keep(other) and remove_unless_held(other, owner.kind, ALIVE):
                    _log.info("removed the directory of a dead process", directory=str(other))
            path = private_directory(base / name)
            write_owner(path / ALIVE, owner)
            return cls(path, acquire(path / ALIVE), hold_directory(path))

    def release(self) -> None:
        """Hold the directory no longer, and leave what is in it."""
        if self._held is not None:
            self._held.release()
        self._alive.release()

    def remove(self) -> None:
        """Delete the directory."""
        remove_owned(self.path, ALIVE)
        self.release()


def workspaces(base: Path, kind: str) -> list[Path]:
    """Return the directories in ``base`` that are workspaces of a kind, as their records say."""
    return sorted(path.parent for path in base.glob(f"*/{ALIVE}") if _is_owned(path, kind))


def remove_unless_held(directory: Path, kind: str, *locks: str) -> bool:
    """Delete a workspace of a kind unless one of these lock files in it is held; return whether it was deleted."""
    # Before anything is opened in it: it may be another program's.
    if not _is_owned(directory / ALIVE, kind):
        return False
    held: list[FileLock] = []
    try:
        for name in locks:
            lock = try_acquire(directory / name)
            if lock is None:
                return False
            held.append(lock)
        remove_owned(directory, ALIVE)
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    finally:
        for lock in held:
            lock.release()


def _is_owned(path: Path, kind: str) -> bool:
    owner = owner_of(path)
    return owner is not None and owner.kind == kind
