"""Which texts may be an object's key, the name of a file in a snapshot, or a name that becomes part of a path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from . import runtime
from .errors import InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

TEMPORARY = ".tmp-"
"""How the names of files begin that are not objects yet, in stores that write to a temporary name first."""
_TEMPORARY = re.compile(re.escape(TEMPORARY) + "[0-9a-f]{32}")


def temporary_name() -> str:
    """Return a new name for a file that is not an object yet."""
    return f"{TEMPORARY}{runtime.token()}"


def is_temporary(name: str) -> bool:
    """Whether ``temporary_name`` makes such names. Only those may be deleted: others are not Chandy's."""
    return _TEMPORARY.fullmatch(name) is not None


def validate_key(key: str) -> str:
    """Return ``key`` if it is a relative path that stays below its root.

    Raises:
        InvalidNameError: it is empty, absolute, or has an empty, ``.`` or ``..`` part, a backslash or a NUL.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or "\\" in key or "\0" in key:
        raise InvalidNameError(
            "this key cannot be used",
            "a relative path with '/' between its parts, and no part that is empty, '.' or '..'",
            repr(key),
        )
    return key


def validate_final_key(key: str) -> str:
    """Return ``key`` if it is valid and not a temporary file's.

    Raises:
        InvalidNameError: it is not.
    """
    if any(part.startswith(TEMPORARY) for part in validate_key(key).split("/")):
        raise InvalidNameError(
            "this key cannot be used",
            f"no part that begins with {TEMPORARY!r}, as temporary files do",
            repr(key),
        )
    return key


def validate_name(what: str, name: str) -> str:
    """Return ``name`` if it can be a part of a path in every store.

    Args:
        what: what it names, such as "pipeline".

    Raises:
        InvalidNameError: it is empty, too long, or has a character other than letters, digits, ``.``, ``_`` and ``-``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(
            f"this {what} name cannot be part of a path",
            "1 to 128 letters, digits, '.', '_' and '-', with a letter or digit first",
            repr(name),
            "choose another name",
        )
    return name


def named(what: str) -> Callable[[Any, Any, str], None]:
    """Return an attrs validator that accepts what ``validate_name`` does.

    Stored records have it: a manifest may come from elsewhere, and its names become parts of paths, metrics and pages.
    """

    def check(_: Any, __: Any, name: str) -> None:
        validate_name(what, name)

    return check
