"""Making folders that only this user can read."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents with mode 0700. Existing folders stay as they are.

    ``Path.mkdir`` would give the mode only to the folder itself, so others could read its parents.
    """
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            if folder.parent == folder:
                raise
            make_private_folder(folder.parent)
            folder.mkdir(mode=0o700)
