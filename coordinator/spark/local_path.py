"""Tells local paths from remote ones, in each way in which users and Spark write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..errors import WriterError

_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?=/(?!/)))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_local(location: str) -> bool:
    """Return whether a path or URI is on the local file system; a path without a scheme is."""
    return _LOCAL.match(location) is not None or _SCHEME.match(location) is None


def has_scheme(location: str) -> bool:
    """Return whether a location says on which file system it is; Hadoop looks for others on its default one."""
    return _SCHEME.match(location) is not None


def local_path(location: str, *, role: str) -> Path:
    """Return the absolute path of a local directory that is written as a path, ``file:/...`` or ``file:///...``.

    As in Hadoop, nothing is percent-decoded, and ``..`` takes away the name before it, also that of a symbolic link.

    Args:
        location: the path or URI.
        role: what the directory is for; the error names it.

    Raises:
        WriterError: it is on another file system.
    """
    if not is_local(location):
        raise WriterError(
            f"the {role} cannot be used",
            "a directory on the local file system (a path or file://...)",
            repr(location),
            "use a local path, or a file system that is mounted on the driver's machine",
        )
    return Path(os.path.normpath(Path(_LOCAL.sub("", location, count=1)).absolute()))
