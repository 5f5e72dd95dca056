"""The log of Spark's file sink in its output directory: read at a batch, and put back to one.

``<output>/_spark_metadata/<batch>`` names the files that the batch added, one JSON object a line after a
version line; every tenth or so is a ``<batch>.compact`` that repeats all before it. Spark reads the output
through this log, and skips a batch that is in it.
"""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from ...storage import runtime
from ...storage.checkpoints.proof import FenceProof
from ...storage.ids import NO_BATCH, BatchId
from ..errors import incomplete
from ..spark.logs.compact_log import entry_number, missing_entry, names_at
from ..spark.progress import Files

LOG = "_spark_metadata"
"""Spark's folder for the log."""
ASIDE = "_chandy_set_aside"
"""Folder in the output directory for data files of batches that a restore undid. Like the log's, its name
begins with an underscore, so that readers of the directory pass over it. Its files come back when a later
restore needs them; anyone who is sure that none will may delete them."""

_UNDONE = "log"


@attrs.frozen
class Rollback:
    """What putting back a log did."""

    undone: tuple[int, ...] = ()
    """Batches whose entries left the log."""
    set_aside: int = 0
    """Data files moved out of sight."""
    brought_back: int = 0
    """Data files that an earlier rollback had set aside and that the log names again."""
    missing: tuple[str, ...] = ()
    """Data files that the log names and that are nowhere: somebody else has removed them."""


def newest(output: Path) -> BatchId:
    """Return the newest batch in the log, -1 if there is none."""
    return _newest(_names(output))


def files_at(output: Path, batch: BatchId) -> Files:
    """Return the least log files that say what the output was after ``batch``; none for batch -1.

    The query may be running; ``hold`` keeps the files.

    Raises:
        IncompleteDirectoryError: the batch is not in the log, or entries before it are gone.
    """
    if batch < 0:
        return {}
    chosen = [name for name in names_at(_names(output), batch) if entry_number(name) is not None]
    if (missing := missing_entry(chosen, batch)) is not None:
        raise incomplete(str(output / LOG), batch, f"entry {missing}")
    return {name: output / LOG / name for name in chosen}


def contents(files: Mapping[str, Path]) -> dict[str, bytes]:
    """Read log files, such as those that a checkpoint has kept."""
    return {name: path.read_bytes() for name, path in files.items()}


def elsewhere(output: Path, contents: Iterable[bytes]) -> Path | None:
    """Return the directory of files that log files name outside of the output; None if there are none.

    Of a table with partitions this is the directory above them: above the folders such as ``day=5`` that files are in,
    not above those that the output is in.
    """
    folders = {
        str(path.parent)
        for content in contents
        for path in _added(content)
        if not path.is_relative_to(output)
    }
    if not folders:
        return None
    common = Path(os.path.commonpath(folders))
    while "=" in common.name:
        common = common.parent
    return common


def emptied(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a log of the same batches without any data file."""
    return {name: content.partition(b"\n")[0] for name, content in files.items()}


def restore(output: Path, files: Mapping[str, bytes], proof: FenceProof) -> Rollback:
    """Put the log back to exactly these files, while no query writes into the output.

    Data files that only entries named which have left are set aside, not deleted: those who read the
    directory without the log do not see them, and a restore of a later checkpoint brings them back. After a
    crash in between, the same call does what is left to do.

    Args:
        output: the sink's output directory; may not exist.
        files: the contents of the log's files by name, as ``files_at`` gave them; empty: before the first batch.
        proof: is checked before each file, because from its claim on a successor writes here.

    Raises:
        FencedError: there is a successor.
    """
    log, aside = output / LOG, output / ASIDE
    wanted = dict(files)
    data = _data_files(output, wanted.values())
    # All that was listed is this life's or older.
    found = _names(output)
    proof.check_now()
    brought_back = sum(
        _move(aside / name, output / name, proof) for name in sorted(data) if not (output / name).exists()
    )
    for name, content in sorted(wanted.items(), key=lambda item: _order(item[0])):
        if not _is(log / name, content):
            _undo(aside, log / name, proof)
            _write(log / name, content, proof)
    # Newest first: what is left is a log that was, at every moment.
    added = sorted((name for name in found if name not in wanted), key=_order, reverse=True)
    for name in added:
        _undo(aside, log / name, proof)
    set_aside = _set_aside(output, keep=data, proof=proof)
    undone = {number for name in added if (number := entry_number(name)) is not None}
    kept = _newest(wanted)
    return Rollback(
        undone=tuple(sorted(number for number in undone if number > kept)),
        set_aside=set_aside,
        brought_back=brought_back,
        missing=tuple(sorted(name for name in data if not (output / name).exists())),
    )


def data_files(content: bytes, output: Path) -> list[str]:
    """Return the data files that a log file adds, relative to ``output``; those elsewhere are left out."""
    return [path.relative_to(output).as_posix() for path in _added(content) if path.is_relative_to(output)]


def _added(content: bytes) -> list[Path]:
    entries = [json.loads(line) for line in content.decode().splitlines()[1:]]
    # The path is a URI: percent-encoded once over what the file is called.
    return [
        Path(urllib.parse.unquote(urllib.parse.urlsplit(entry["path"]).path))
        for entry in entries
        if entry["action"] == "add"
    ]


def _data_files(output: Path, contents: Iterable[bytes]) -> set[str]:
    return {name for content in contents for name in data_files(content, output)}


def _names(output: Path) -> list[str]:
    try:
        return [path.name for path in (output / LOG).iterdir() if not path.name.startswith(".")]
    except FileNotFoundError:
        return []


def _order(name: str) -> tuple[int, str]:
    number = entry_number(name.removesuffix(".crc"))
    return (-1 if number is None else number, name)


def _is(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except FileNotFoundError:
        return False


def _write(path: Path, content: bytes, proof: FenceProof) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.parent / f".{path.name}.{runtime.token()}.tmp"
    with new.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    _forget_checksum(path, proof)
    proof.check()
    new.rename(path)


def _undo(aside: Path, entry: Path, proof: FenceProof) -> None:
    """Take an entry out of the log; until its data files are set aside too, it waits beside them."""
    _forget_checksum(entry, proof)
    _move(entry, aside / _UNDONE / f"{entry.name}-{runtime.token()}", proof)


def _set_aside(output: Path, *, keep: set[str], proof: FenceProof) -> int:
    aside = output / ASIDE
    moved = 0
    for entry in sorted((aside / _UNDONE).glob("*")):
        # A successor does this as well, and the entry is gone then.
        proof.check()
        names = set() if ".crc-" in entry.name else set(data_files(entry.read_bytes(), output))
        moved += sum(_move(output / name, aside / name, proof) for name in sorted(names - keep))
        proof.check()
        entry.unlink()
    return moved


def _move(source: Path, target: Path, proof: FenceProof) -> bool:
    """Rename a file, and say whether it was there; Hadoop's checksum of it goes along."""
    if not source.exists():
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    checksum = source.with_name(f".{source.name}.crc")
    if checksum.exists():
        proof.check()
        checksum.rename(target.with_name(f".{target.name}.crc"))
    proof.check()
    source.rename(target)
    return True


def _forget_checksum(path: Path, proof: FenceProof) -> None:
    proof.check()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _newest(names: Iterable[str]) -> BatchId:
    numbers = (number for name in names if (number := entry_number(name)) is not None)
    return BatchId(max(numbers, default=NO_BATCH))
