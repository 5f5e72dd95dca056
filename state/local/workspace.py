"""A host's working directory on its machine, and the removal of those that dead hosts left."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from ...storage.logs import logger
from .directories import private_directory
from .locks import FileLock, acquire, locked, remove_unless_held

_log = logger(__name__)
ALIVE: Final = "alive"
"""The lock file that a living host holds in a directory of its own."""


@attrs.frozen
class Workspace:
    """A directory, mode 0700, that is this process's alone until it dies."""

    path: Path
    _alive: FileLock

    @classmethod
    def create(cls, base: Path, name: str, keep: Callable[[Path], bool] = lambda _: False) -> Workspace:
        """Make ``base/name`` and hold it; remove what no living process holds in ``base``.

        Args:
            base: the directory of all of this kind.
            name: a new one.
            keep: says what is to stay although nobody holds it.

        Raises:
            UnsafeDirectoryError: ``base`` is not this user's alone.
        """
        private_directory(base)
        with locked(base / ".lock"):
            for other in base.iterdir():
                if other.is_dir() and not keep(other) and remove_unless_held(other, ALIVE):
                    _log.info("removed what a dead host left", directory=str(other))
            path = private_directory(base / name)
            return cls(path, acquire(path / ALIVE))

    def remove(self) -> None:
        """Delete the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._alive.release()
