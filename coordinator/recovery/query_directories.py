"""The coordinator's own directory on the driver's machine: the queries' working checkpoint directories."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from ...state.local.directories import private_directory, runtime_directory
from ...state.local.workspace import Workspace

WORKING_DIRECTORY = "checkpoint"
"""Name of the working checkpoint directory in the folder of a run."""
RECORD = "run.json"
"""Name of the file beside it that says whose it was: then the next life of the pipeline may want it."""


class QueryDirectories:
    """A directory that lives as long as its coordinator, or until the next one if that is killed."""

    def __init__(self, base: Path | None, pipeline: str) -> None:
        """Make the directory below ``base``; None: where Chandy keeps what lives on this machine only."""
        self.base = base or private_directory(runtime_directory()) / "queries"
        self._workspace = Workspace.create(
            self.base,
            f"{pipeline}-{uuid.uuid4().hex[:12]}",
            keep=lambda place: any(place.glob(f"*/{RECORD}")),
        )
        self._runs = 0

    def new_run(self, query: str) -> Path:
        """A path for the working checkpoint directory of a query; nothing is there yet."""
        self._runs += 1
        folder = self._workspace.path / f"{self._runs}-{query}"
        folder.mkdir()
        return folder / WORKING_DIRECTORY

    def ticks(self) -> Path:
        """The folder for what sources of ticks watch."""
        folder = self._workspace.path / "ticks"
        folder.mkdir(exist_ok=True)
        return folder

    def initial_state(self, uid: str) -> Path:
        """A folder for the rows that an operator's state begins with."""
        folder = self._workspace.path / "initial" / uid
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove(self, run: Path) -> None:
        """Delete the working directory of a run that is over."""
        shutil.rmtree(run.parent, ignore_errors=True)

    def close(self) -> None:
        """Delete everything."""
        self._workspace.remove()
