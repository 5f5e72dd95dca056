"""The log of a directory of files as everybody reads it: the names of its entries, and the positions in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ...storage.codec import structure
from ...storage.errors import UnfitError
from .two_phase.contract import Position

FOLDER: Final = "_spark_metadata/"
"""Spark's folder for the log."""
COMPACTED: Final = 10
"""Every so many entries there is one that repeats all before it; Spark's default."""
FIRST: Final = 2 * COMPACTED - 1
"""The entry with which a log begins: a compact one, so that there can be another one before it."""
_NAME = re.compile(r"(\d+)(?:\.compact)?")
NOTE = "chandy"
"""The key of the line that is for Chandy: the positions."""
SHA256: Final = "sha256"
"""The key in that line for the hash of the entry without it. Earlier versions have written none."""


def key_of(number: int) -> str:
    """Return the key of an entry."""
    return f"{FOLDER}{number}{'.compact' if is_compacted(number) else ''}"


def is_compacted(number: int) -> bool:
    """Whether an entry repeats all before it."""
    return (number + 1) % COMPACTED == 0


def first_read(number: int) -> int:
    """Return the first of the entries that say all as of one of them: the newest compact one, or 0."""
    return max(0, (number + 1) // COMPACTED * COMPACTED - 1)


def following(number: int) -> int:
    """Return the number of the entry that comes after another one."""
    return FIRST if number < 0 else number + 1


def numbers_of(keys: Iterable[str]) -> list[int]:
    """Return the numbers of the entries among the keys of a directory, ascending."""
    names = [key.removeprefix(FOLDER) for key in keys if key.startswith(FOLDER)]
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def newest_of(keys: Iterable[str]) -> int:
    """Return the number of the newest entry among the keys of a directory, -1 if there is none."""
    return max(numbers_of(keys), default=-1)


def note_of(data: bytes) -> dict[str, Any] | None:
    """Return the line of an entry that is for Chandy; None if the entry is not Chandy's.

    Raises:
        UnfitError, ValueError: the entry is not as it was written.
    """
    *lines, last = data.decode().splitlines()
    document = json.loads(last) if last.startswith("{") else {}
    said = document.pop(SHA256, None)
    if said is not None and said != (found := hash_of([*lines, json.dumps(document)])):
        raise UnfitError("an entry", f"one with SHA-256 {found} that was written with {said}")
    return document if NOTE in document else None


def hash_of(lines: Sequence[str]) -> str:
    """Return the hash of an entry, whose last line is without it."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def positions_in(note: Mapping[str, Any]) -> dict[str, Position]:
    """Return the positions of all writers that the line for Chandy has."""
    return {name: structure(Position, one) for name, one in note[NOTE].items()}


def positions_of(data: bytes) -> dict[str, Position] | None:
    """Return the positions that an entry has; None if the entry is not Chandy's.

    Raises:
        CodecError, UnfitError, ValueError: the positions cannot be read.
    """
    note = note_of(data)
    return None if note is None else positions_in(note)
