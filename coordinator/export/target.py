"""The directory that an export is written into: nothing in it can be used before all of it is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..spark.local_path import is_local, local_path
from .errors import ExportError

UNFINISHED: Final = "unfinished"
"""The folder in which an export is written. A directory that has it holds no whole export."""


def directory_of(to: str | Path) -> Path:
    """Return the local directory that a user names, as an absolute path.

    Raises:
        ExportError: it is on another file system.
    """
    if not is_local(str(to)):
        raise ExportError(
            "the checkpoint cannot be exported",
            "a directory on the local file system (a path or file://...)",
            repr(str(to)),
            "export to a local directory, and copy its folders to where Spark is to find them",
        )
    return local_path(str(to), role="export")


def check_empty(directory: Path) -> None:
    """Check that there is no such directory, or that it is empty.

    Raises:
        ExportError: something is there.
    """
    if not os.path.lexists(directory):
        return
    if not directory.is_dir():
        raise _occupied(directory, "a file")
    names = sorted(path.name for path in directory.iterdir())
    if UNFINISHED in names:
        raise _unfinished(directory)
    if names:
        raise _occupied(directory, f"{len(names)} files or folders, such as {names[0]!r}")


@contextmanager
def filled(directory: Path, last: str) -> Iterator[Path]:
    """Give a folder to write an export into. When the ``with`` ends, what is in it becomes the directory's contents.

    If the ``with`` raises, the folder is deleted. If the process is killed, the folder stays, and tells that this is no
    whole export.

    Args:
        directory: empty or missing.
        last: the name of the entry that comes into the directory last.

    Raises:
        ExportError: something is in the directory.
    """
    check_empty(directory)
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / UNFINISHED
    try:
        folder.mkdir()
    except FileExistsError:
        raise _unfinished(directory) from None
    try:
        if others := sorted(path.name for path in directory.iterdir() if path != folder):
            raise _occupied(directory, f"{others[0]!r}, which somebody has just put there")
        yield folder
        _sync(folder)
        for entry in sorted(folder.iterdir(), key=lambda path: (path.name == last, path.name)):
            entry.rename(directory / entry.name)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new and not any(directory.iterdir()):
            directory.rmdir()
        raise
    folder.rmdir()
    _sync_path(directory)


def _sync(root: Path) -> None:
    """Make sure that everything below a folder is on the disk, so that no name is there without its contents."""
    for folder, _, names in os.walk(root):
        for name in names:
            _sync_path(Path(folder) / name)
        _sync_path(Path(folder))


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _occupied(directory: Path, found: str) -> ExportError:
    return ExportError(
        f"the checkpoint cannot be exported to {directory}",
        "a new or empty directory",
        found,
        "choose another directory",
    )


def _unfinished(directory: Path) -> ExportError:
    return ExportError(
        f"the checkpoint cannot be exported to {directory}",
        "a new or empty directory",
        f"an export that is being written, or was killed, in its folder {UNFINISHED!r}",
        f"if no export runs there now, delete {directory} and export again; nothing in it is whole",
    )
