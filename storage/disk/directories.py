"""Directories that belong to this user alone, and the runtime directory of this machine."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..errors import UnsafeDirectoryError

QUERIES: Final = "queries"
"""Name of the folder in the runtime directory with the working directories of coordinators."""
CACHE: Final = "cache"
"""Name of the folder in the runtime directory with what state hosts, changelogs and the file cache keep."""
HOSTS: Final = "hosts"
"""Name of the folder in the cache directory with the working directories of state hosts."""
HOST_CHANGELOGS: Final = "changelogs"
"""Name of the folder in the cache directory with the changelogs that state hosts of a cluster keep for each other."""


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


def private_directory(path: Path) -> Path:
    """Return a directory. It is created with mode 0700 if it is missing, and so are its parents.

    Raises:
        UnsafeDirectoryError: it belongs to another user, others can enter it, or it is a link.
    """
    make_private_folder(path)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & 0o077:
        raise UnsafeDirectoryError(
            f"the directory {str(path)!r} is not safe to use",
            "a directory of this user with mode 0700",
            f"{stat.filemode(found.st_mode)} of user {found.st_uid}",
            f"run `chmod 700 {path}` if nobody else has put anything there"
            if is_own
            else "name another one, or one below it that there is not yet: it is created with that mode",
        )
    return path


def size_and_age(path: Path) -> tuple[int, float]:
    """Return the bytes of all files in a directory, and when the newest of them was written."""
    size, newest = 0, path.stat().st_mtime
    for folder, _, files in os.walk(path):
        for name in files:
            # A living process deletes files meanwhile.
            with suppress(FileNotFoundError):
                status = (Path(folder) / name).lstat()
                size, newest = size + status.st_size, max(newest, status.st_mtime)
    return size, newest


def runtime_directory() -> Path:
    """Return this user's private directory for sockets, caches and working directories.

    Its path is short, because that of a socket has at most 107 bytes. ``CHANDY_RUNTIME_DIR`` chooses another one.
    """
    given = os.environ.get("CHANDY_RUNTIME_DIR")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"chandy-{os.getuid()}"
