"""The coordinator's private directory on the driver's machine, with the queries' working checkpoint directories."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...storage import runtime
from ...storage.disk.directories import (
    QUERIES,
    make_private_folder,
    private_directory,
    runtime_directory,
)
from ...storage.disk.owners import OwnerRecord
from ...storage.disk.workspace import Workspace
from ..spark.mirror import Mirror
from .remote_directories import RemoteDirectories

WORKING_DIRECTORY = "checkpoint"
"""Name of the working checkpoint directory in the directory of a run."""
RECORD = "run.json"
"""Name of the file next to it that says which run it belongs to. A directory with one is kept for local recovery."""


class QueryDirectories:
    """The directory of one coordinator. If its driver is killed, the next coordinator deletes it."""

    def __init__(self, base: Path | None, pipeline: str) -> None:
        """Create the directory below ``base``; None: below Chandy's runtime directory."""
        self.base = base or private_directory(runtime_directory()) / QUERIES
        self._workspace = Workspace.create(
            self.base,
            f"{pipeline}-{runtime.token()[:12]}",
            OwnerRecord(QUERIES, pipeline),
            keep=lambda place: any(place.glob(f"*/{RECORD}")),
        )
        self._runs = 0
        self._remote: RemoteDirectories | None = None
        self._is_left = False

    @property
    def path(self) -> Path:
        """The directory, which exists as long as the coordinator."""
        return self._workspace.path

    def new_run(self, query: str) -> Path:
        """Return a path for the working checkpoint directory of a query; it does not exist yet."""
        self._runs += 1
        return self._folder(f"{self._runs}-{query}") / WORKING_DIRECTORY

    def place_on(self, remote: RemoteDirectories) -> None:
        """Have the working directories that executors must reach on a store."""
        self._remote = remote

    def mirror(self, run: Path) -> Mirror | None:
        """Return the working directory on a store that a path of ``new_run`` mirrors; None: the path is one itself."""
        return None if self._remote is None else self._remote.mirror(run)

    def ticks(self) -> Path:
        """Return the directory for the files that tell sources of ticks what to watch."""
        return self._folder("ticks")

    def initial_state(self, uid: str) -> Path:
        """Return a directory for the rows of an operator's initial state."""
        return self._folder("initial", uid)

    def adopted(self) -> Path:
        """Return the directory for the state that is being adopted from plain Spark."""
        return self._folder("adopted")

    def _folder(self, *names: str) -> Path:
        folder = self._workspace.path.joinpath(*names)
        # With what is above it: a cleaner of /tmp may have deleted that.
        make_private_folder(folder)
        return folder

    def remove(self, run: Path) -> None:
        """Delete the working directory of a run that has ended."""
        shutil.rmtree(run.parent, ignore_errors=True)
        if self._remote is not None:
            self._remote.remove(run)

    def leave(self) -> None:
        """Let ``close`` leave everything to the next coordinator, which resumes the runs or deletes it."""
        self._is_left = True

    def close(self) -> None:
        """Delete everything, unless it is left to the next coordinator. It never resumes what is on a store."""
        if self._remote is not None:
            self._remote.close()
        if self._is_left:
            self._workspace.release()
        else:
            self._workspace.remove()
