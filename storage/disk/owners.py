"""Records of owners: a directory says by one of its files who wrote it, and only what says so is ever deleted.

Users name the folders that Chandy's directories lie in, and other programs may have theirs beside them, with files of
any names. So neither a place nor a name tells whose a directory is. One without a record stays, whatever it has.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from ..codec import from_json_of_any_version, to_json
from ..errors import CodecError

_PROGRAM: Final = "chandy"
_LARGEST: Final = 1 << 16
"""Bytes that a record has at most."""


@attrs.frozen
class OwnerRecord:
    """What a directory says of itself."""

    kind: str
    """What sort of process has written it, such as "driver"."""
    of: str = ""
    """What it was written for, such as a pipeline."""
    program: str = _PROGRAM


def write_owner(path: Path, record: OwnerRecord) -> None:
    """Write a record, unless the file is there already. One that is killed in between leaves what nobody deletes."""
    with suppress(FileExistsError), path.open("xb") as file:
        file.write(to_json(record))


def owner_of(path: Path) -> OwnerRecord | None:
    """Return the record in a file; None if the file is not there, another program's or another user's."""
    try:
        found = path.lstat()
        # Opening anything else may wait for ever.
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_size > _LARGEST:
            return None
        record = from_json_of_any_version(OwnerRecord, path.read_bytes())
    except (OSError, CodecError):
        return None
    return record if record.program == _PROGRAM else None


def remove_owned(directory: Path, name: str) -> None:
    """Delete a directory, its record last: what is left of it when this process is killed is still known by it."""
    with suppress(OSError):
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != name:
                Path(entry.path).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)
