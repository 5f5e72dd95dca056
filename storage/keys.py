"""What may be a key, the name of a file in a snapshot, or a name that becomes part of a path."""

from __future__ import annotations

import re

from .errors import InvalidKeyError, InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def validate_key(key: str) -> str:
    """Return ``key`` if it is a relative path that stays below its root.

    Raises:
        InvalidKeyError: it is empty, absolute, or has an empty, ``.`` or ``..`` part, a backslash or a NUL.
    """
    if any(part in ("", ".", "..") for part in key.split("/")) or "\\" in key or "\0" in key:
        raise InvalidKeyError(key)
    return key


def validate_name(what: str, name: str) -> str:
    """Return ``name`` if it can be a part of a path in every store; ``what`` says what it names.

    Raises:
        InvalidNameError: it has other characters than letters, digits, ``.``, ``_`` and ``-``, or too many.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(what, name)
    return name
