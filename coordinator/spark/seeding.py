"""Makes a fresh working directory out of the files of a checkpoint, for a new Spark query to go on from."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from ..errors import TargetNotEmptyError
from .listing import files_below, link_or_copy
from .progress import METADATA

_OPERATOR_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")
# What precedes it is the working directory in which Spark wrote the path.
_SCHEMA_FOLDER = re.compile(r"/state/\d+/_stateSchema/")


def seed(files: Path, target: Path, *, query_id: str | None = None) -> str:
    """Fill a new working directory, from which a query goes on with the batch after the checkpoint's cut.

    Args:
        files: folder with the restored files by their names in the working directory; linked or copied, never
            changed. A folder that does not exist or is empty (cut -1) makes a query that begins anew.
        target: the working directory; must not exist or be empty.
        query_id: Spark's id for the new query, a UUID; None: a random one. Starting a query with the id of
            one that runs would stop that one.

    Returns:
        The new query's id.

    Raises:
        TargetNotEmptyError: there is something at ``target``.
    """
    if target.exists() and any(target.iterdir()):
        raise TargetNotEmptyError(str(target))
    target.mkdir(parents=True, exist_ok=True)
    new_id = query_id or str(uuid.uuid4())
    for name in files_below(files):
        if name.removesuffix(".crc") == METADATA:
            continue
        if _OPERATOR_METADATA.fullmatch(name):
            _write(target / name, moved((files / name).read_text(), f"file:{target.absolute()}"))
        elif not _OPERATOR_METADATA.fullmatch(name.removesuffix(".crc")):
            link_or_copy(files / name, target / name)
    # Last: without it Spark refuses a directory that was seeded by halves.
    _write(target / METADATA, json.dumps({"id": new_id}))
    return new_id


def moved(operator_metadata: str, root: str) -> str:
    """Rewrite the paths in an operator's metadata to another working directory.

    Args:
        operator_metadata: a file of ``state/<operator>/_metadata/v2``: a version line, then a JSON object.
        root: the new working directory, as Hadoop writes it (``file:/...``).
    """
    version, text = operator_metadata.split("\n", 1)
    record = json.loads(text)
    for store in record.get("stateStoreInfo", ()):
        paths = store.get("stateSchemaFilePaths") or ()
        store["stateSchemaFilePaths"] = [_moved_path(path, root) for path in paths]
    return f"{version}\n{json.dumps(record, separators=(',', ':'))}"


def _moved_path(path: str, root: str) -> str:
    # The last match: a working directory may itself be inside something that looks like one.
    found = list(_SCHEMA_FOLDER.finditer(path))
    return root + path[found[-1].start() :] if found else path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
