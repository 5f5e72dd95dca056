"""Directories for files of a moment, such as copies on their way from one store to another.

They lie in the runtime directory, and the process that uses one holds a lock in it. So what a killed process has left
is known by its place and its lock, and never by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .. import runtime
from .directories import runtime_directory
from .owners import OwnerRecord
from .workspace import Workspace

SCRATCH: Final = "scratch"
"""Name of the folder in the runtime directory with these directories."""


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Make an empty directory that is deleted at the end of the ``with``, or by the next one if this process dies.

    Args:
        purpose: what its name begins with, for people.

    Raises:
        OSError, UnsafeDirectoryError: it cannot be made.
    """
    name = f"{purpose}-{runtime.token()}"
    workspace = Workspace.create(runtime_directory() / SCRATCH, name, OwnerRecord(SCRATCH, purpose))
    try:
        files = workspace.path / "files"
        files.mkdir()
        yield files
    finally:
        workspace.remove()
