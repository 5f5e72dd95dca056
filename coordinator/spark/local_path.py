"""Local directories by the names that users and Spark give them."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import RemotePathError

_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?=/(?!/)))")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_local(location: str) -> bool:
    """Say whether a path or URI names the local file system; one without a scheme does."""
    return _LOCAL.match(location) is not None or _SCHEME.match(location) is None


def local_path(location: str, *, role: str) -> Path:
    """Return the absolute path of a local directory given as a path, ``file:/...`` or ``file:///...``.

    As in Hadoop, nothing in it is percent-decoded.

    Raises:
        RemotePathError: it is on another file system; ``role`` says what it is for.
    """
    if not is_local(location):
        raise RemotePathError(location, role)
    return Path(_LOCAL.sub("", location, count=1)).absolute()
