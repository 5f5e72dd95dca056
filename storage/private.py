"""Folders of this user alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700; what is there stays as it is.

    ``Path.mkdir`` would give its mode to the folder alone, and those above it would be open to others.
    """
    with suppress(FileExistsError):
        try:
            folder.mkdir(mode=0o700)
        except FileNotFoundError:
            if folder.parent == folder:
                raise
            make_private_folder(folder.parent)
            folder.mkdir(mode=0o700)
