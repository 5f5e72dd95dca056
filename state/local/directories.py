"""Directories of this user alone, and the one for what lives on this machine only."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ...storage.private import make_private_folder
from ..errors import UnsafeDirectoryError


def private_directory(path: Path) -> Path:
    """Return the directory; make it, and missing parents, with mode 0700.

    Raises:
        UnsafeDirectoryError: it belongs to another user, others may enter it, or it is a link.
    """
    make_private_folder(path)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UnsafeDirectoryError(str(path), f"{stat.filemode(found.st_mode)} of user {found.st_uid}")
    return path


def runtime_directory() -> Path:
    """Return this user's private directory for sockets, caches and working directories.

    It is short, because the path of a socket has at most 107 bytes. ``CHANDY_RUNTIME_DIR`` moves it.
    """
    given = os.environ.get("CHANDY_RUNTIME_DIR")
    return Path(given) if given else Path(tempfile.gettempdir()) / f"chandy-{os.getuid()}"
