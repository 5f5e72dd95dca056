"""Lists directories while Spark writes into them, and links files that Spark may delete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def numbers_in(folder: Path) -> list[int]:
    """Return the file names of a directory that are numbers, in any order; nothing if there is no directory."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []


def folders_in(folder: Path) -> list[str]:
    """Return the names of the subdirectories of a directory, sorted; nothing if there is no directory."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def files_below(root: Path) -> Iterator[str]:
    """Yield the files at any depth below ``root``, relative to it, except hidden ones.

    Hidden files are Hadoop's checksums, which are wrong once files move, and Spark's temporary files.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield (Path(folder) / name).relative_to(root).as_posix()


def link_or_copy(source: Path, target: Path) -> None:
    """Make an immutable file available at ``target`` too: by a hard link, or by a copy where links are impossible.

    Raises:
        FileNotFoundError: ``source`` no longer exists.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
