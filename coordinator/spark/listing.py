"""Lists folders that Spark writes into meanwhile, and links what must not vanish."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers that name files of a folder, in any order; none if there is no folder."""
    try:
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]
    except FileNotFoundError:
        return []


def folders_in(folder: Path) -> list[str]:
    """Return the names of a folder's folders, sorted; none if there is no folder."""
    try:
        return sorted(path.name for path in folder.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def files_below(root: Path) -> Iterator[str]:
    """Yield the files at any depth below ``root`` relative to it, without hidden ones.

    Hidden are Hadoop's checksums, which go stale when files are moved, and Spark's temporary files.
    """
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                yield (Path(folder) / name).relative_to(root).as_posix()


def link_or_copy(source: Path, target: Path) -> None:
    """Make an immutable file appear at ``target`` too, by a hard link where the file systems allow.

    Raises:
        FileNotFoundError: ``source`` is gone.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
