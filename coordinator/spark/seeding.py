"""Makes a new working checkpoint directory from the files of a checkpoint, for a Spark query to go on from."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from ...storage import runtime
from ..errors import RestoreError
from .listing import files_below, folders_in, link_or_copy
from .logs.compact_log import DEFAULT_INTERVAL, entry_number, entry_to_compact, mended
from .progress import METADATA

_OPERATOR_METADATA = re.compile(r"state/\d+/_metadata/v2/\d+")
# Before it in a path is the working directory in which Spark wrote the path.
_SCHEMA_FOLDER = re.compile(r"/state/\d+/_stateSchema/")


def seed(
    files: Path,
    target: Path,
    *,
    compact_interval: int = DEFAULT_INTERVAL,
    root: Path | None = None,
    location: str | None = None,
) -> str:
    """Fill a new working directory, from which a query goes on with the batch after the checkpoint's cut.

    Args:
        files: directory with the restored files by their names in the working directory. They are linked or copied,
            never changed. If it is empty or does not exist (cut -1), the query begins with its first batch.
        target: the working directory; it must be empty or not exist.
        compact_interval: every how many batches Spark's settings say that the log of a file source is compacted.
        root: where the working directory will be when Spark opens it; None: where it is made.
        location: the same as a URI, as Hadoop writes it, if that is not on the local file system.

    Returns:
        Spark's id for the new query. It is random: a query with the id of a running one would stop that one.

    Raises:
        RestoreError: ``target`` is not empty.
    """
    if target.exists() and any(target.iterdir()):
        raise RestoreError(
            "a query's working directory cannot be created",
            f"{target} to be empty or not to exist",
            "files in it",
            "set CheckpointConfig.work_dir to a directory that only Chandy writes to",
        )
    target.mkdir(parents=True, exist_ok=True)
    new_id = str(uuid.UUID(runtime.token()))
    place = location or f"file:{(root or target).absolute()}"
    for name in files_below(files):
        if name.removesuffix(".crc") == METADATA:
            continue
        if _OPERATOR_METADATA.fullmatch(name):
            _write(target / name, moved((files / name).read_text(), place))
        elif not _OPERATOR_METADATA.fullmatch(name.removesuffix(".crc")):
            link_or_copy(files / name, target / name)
    for source in folders_in(target / "sources"):
        mend(target / "sources" / source, compact_interval)
    # Written last: without it Spark refuses a directory that is only partly filled.
    _write(target / METADATA, json.dumps({"id": new_id}))
    return new_id


def mend(log: Path, compact_interval: int) -> None:
    """Make a file source's log one that Spark reads as it was meant. Its files may be links of others.

    Args:
        log: the folder ``sources/<source>``. No query runs on it.
        compact_interval: as for ``seed``.
    """
    names = [path.name for path in log.iterdir() if entry_number(path.name) is not None]
    if entry_to_compact(names, compact_interval) is None:
        return
    entries = mended({name: (log / name).read_bytes() for name in names}, compact_interval)
    for name in names:
        (log / name).unlink()
    for name, content in entries.items():
        # Hadoop would compare the entry with what was there before.
        (log / f".{name}.crc").unlink(missing_ok=True)
        (log / name).write_bytes(content)


def moved(operator_metadata: str, root: str) -> str:
    """Return an operator's metadata with its paths changed to another working directory.

    Args:
        operator_metadata: content of a file of ``state/<operator>/_metadata/v2``: a version line, then a JSON object.
        root: the new working directory, as Hadoop writes it (``file:/...``).
    """
    version, text = operator_metadata.split("\n", 1)
    record = json.loads(text)
    for store in record.get("stateStoreInfo", ()):
        paths = store.get("stateSchemaFilePaths") or ()
        store["stateSchemaFilePaths"] = [_moved_path(path, root) for path in paths]
    return f"{version}\n{json.dumps(record, separators=(',', ':'))}"


def _moved_path(path: str, root: str) -> str:
    # The last match: a parent of the working directory may look the same.
    found = list(_SCHEMA_FOLDER.finditer(path))
    return root + path[found[-1].start() :] if found else path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
