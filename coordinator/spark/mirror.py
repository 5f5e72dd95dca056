"""The mirror of a query's working directory that is on a store: what is read of it, in a local directory.

Spark writes the directory on the store, and everything that reads one reads local files. Spark never changes a file
that has its name, so a file is fetched once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

from ...storage.ids import BatchId
from .hadoop_folder import HadoopFolder
from .listing import files_below
from .progress import METADATA
from .state_files import STATE, state_files_at

_LOGS: Final = ("commits", "offsets")
"""In the order in which they are looked at: a batch whose commit is seen has its offsets seen, too."""


@attrs.define(eq=False)
class Mirror:
    """A working directory on a store, and its mirror. All methods may be called from any thread."""

    remote: HadoopFolder
    local: Path
    _logs: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _state: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    """Another one: tasks ask for the logs while gigabytes of state are fetched."""
    _before: frozenset[str] = attrs.field(default=frozenset(), init=False)
    """Files of state that the last cut had. They may be being linked."""

    @property
    def location(self) -> str:
        """The URI of the working directory, for Spark."""
        return self.remote.uri

    def publish(self) -> None:
        """Make the working directory what the local directory is; until that is done, Spark refuses it."""
        names = [name for name in files_below(self.local) if name != METADATA]
        self.remote.upload(names, self.local)
        self.remote.upload([METADATA], self.local)

    def has_metadata(self) -> bool:
        """Return whether the working directory still says which query it belongs to."""
        return self.remote.exists(METADATA)

    def is_committed(self, batch: BatchId) -> bool:
        """Return whether a batch has committed; False, too, once Spark has deleted its record."""
        return self.remote.exists(f"commits/{batch}")

    def logs(self) -> Path:
        """Return the local directory, once its offset log and its commit log are as Spark's are."""
        with self._logs:
            for log in _LOGS:
                names = {f"{log}/{name}" for name in _visible(self.remote.names(log))}
                self._follow(names)
                self._drop(log, names)
        return self.local

    def planned_logs(self) -> Path:
        """Return the local directory, once it has all that Spark has logged, also of the sources."""
        found = self.logs()
        with self._logs:
            self._follow(f"sources/{name}" for name in _visible(self.remote.files_below("sources")))
        return found

    def log_of(self, batch: BatchId) -> Path:
        """Return the local directory, once its offset log has a planned batch and the one before, if there is one."""
        return self.local if (self.local / "offsets" / str(batch)).exists() else self.logs()

    def files_at(self, batch: BatchId) -> Path:
        """Return the local directory, once it has what a query needs to go on with batch ``batch`` + 1.

        Raises:
            FileNotFoundError: Spark deleted a file meanwhile; call it again.
            IncompleteDirectoryError: Spark's own state at that batch is not there.
        """
        with self._state:
            names = set(_visible(self.remote.files_below()))
            with self._logs:
                for folder in (*_LOGS, "sources"):
                    self._follow(name for name in names if name.startswith(f"{folder}/"))
            self._drop("sources", names)
            state = [name.removeprefix(f"{STATE}/") for name in names if name.startswith(f"{STATE}/")]
            needed = frozenset(state_files_at(self.local, batch, names=state, fetch=self._follow))
            self._drop(STATE, needed | self._before)
            self._before = needed
        return self.local

    def _follow(self, names: Iterable[str]) -> None:
        self.remote.download([name for name in names if not (self.local / name).exists()], self.local)

    def _drop(self, folder: str, kept: set[str] | frozenset[str]) -> None:
        for name in [f"{folder}/{one}" for one in files_below(self.local / folder)]:
            if name not in kept:
                (self.local / name).unlink(missing_ok=True)


def _visible(names: Iterable[str]) -> Iterable[str]:
    """Leave out Spark's temporary files, as ``files_below`` does."""
    return (name for name in names if not any(part.startswith(".") for part in name.split("/")))
