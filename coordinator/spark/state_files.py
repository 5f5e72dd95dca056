"""Chooses the files of Spark's own state stores that restore them as of a batch.

The format is that of Spark 4.1 to 4.3. The version of a store after batch N is N+1. Each store has a directory
``state/<operator>/<partition>/[<store>/]`` with full snapshots (``.snapshot`` of the HDFS-backed provider,
``.zip`` of RocksDB) and deltas (``.delta``, ``.changelog``). In state format v2 a file is called
``<version>_<unique id>.<kind>``, and the commit log lists the ids that a batch committed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from ...storage.ids import BatchId
from ..errors import incomplete
from .listing import files_below, numbers_in

_VERSIONED = re.compile(
    r"(?P<version>\d+)(?:_(?P<id>[^.]+))?\.(?P<kind>delta|changelog|snapshot|zip)(?P<checksum>\.crc)?"
)
STATE = "state"
"""Name of the folder with the stores of all operators."""
_SNAPSHOTS = frozenset({"snapshot", "zip"})
# Files that transformWithState writes when a query starts are named by the batch, with or without a unique id.
_BY_BATCH = re.compile(r"\d+/(?:_metadata/v2|_stateSchema/[^/]+)/(?P<batch>\d+)(?:_[^/]+)?")


@attrs.frozen
class StateFile:
    """A versioned file of one of Spark's state stores, as its name describes it."""

    name: str
    version: int
    unique_id: str | None
    """The id in the name in state format v2."""
    full: bool
    """Whether it is a snapshot, not a delta."""
    checksum: bool
    """Whether it is Spark's checksum of the file with the same name without ``.crc``."""

    @staticmethod
    def parse(name: str) -> StateFile | None:
        """Parse a file name; return None if it is not that of a versioned file."""
        found = _VERSIONED.fullmatch(name)
        if found is None:
            return None
        full, checksum = found["kind"] in _SNAPSHOTS, found["checksum"] is not None
        return StateFile(name, int(found["version"]), found["id"], full, checksum)


def choose(
    files: Iterable[StateFile], version: int, ids: Mapping[int, frozenset[str]]
) -> list[StateFile] | None:
    """Choose the files that restore a state store at ``version``: the latest snapshot up to it, and later deltas.

    Args:
        files: the store's versioned files.
        version: the version to restore, 1 or more.
        ids: the committed unique ids by version, as far as the commit log still has them. For other versions all
            files are committed ones: the directory was filled with these alone.

    Returns:
        The files; None if one of the chain is missing.
    """
    by_version: defaultdict[int, list[StateFile]] = defaultdict(list)
    for file in files:
        if file.unique_id is None or file.version not in ids or file.unique_id in ids[file.version]:
            by_version[file.version].append(file)
    chosen: list[StateFile] = []
    for at in range(version, 0, -1):
        snapshots = [file for file in by_version[at] if file.full]
        if any(not file.checksum for file in snapshots):
            return chosen + snapshots
        deltas = [file for file in by_version[at] if not file.full]
        if all(file.checksum for file in deltas):
            return None
        chosen += deltas
    return chosen


def state_files_at(
    directory: Path,
    batch: BatchId,
    *,
    names: Iterable[str] | None = None,
    fetch: Callable[[list[str]], None] = lambda names: None,
) -> list[str]:
    """Return the files that restore all of Spark's state stores after ``batch``, relative to the directory.

    Args:
        directory: the working directory.
        names: the files of the stores, relative to ``state``; None: those that the directory has.
        fetch: called with files, relative to the directory, that it must have from then on. In the end it has been
            called with all that are returned.

    Raises:
        IncompleteDirectoryError: a store cannot be restored at that batch.
    """
    root = directory / STATE
    listed = list(files_below(root) if names is None else names)
    found: list[str] = []
    snapshots: list[str] = []
    stores: defaultdict[str, list[StateFile]] = defaultdict(list)
    for name in listed:
        folder, _, last = name.rpartition("/")
        if folder.endswith(("/SSTs", "/logs")):
            continue
        versioned = StateFile.parse(last)
        if versioned is not None:
            stores[folder].append(versioned)
        elif _was_there(name, batch):
            found.append(name)
    committed = _read_ids(directory / "commits", batch)
    for folder, files in stores.items():
        operator, partition = folder.split("/")[:2]
        chosen = choose(files, batch + 1, _ids_of(committed, operator, int(partition)))
        if chosen is None:
            raise incomplete(str(directory), batch, f"{STATE}/{folder} at version {batch + 1}")
        found += [f"{folder}/{file.name}" for file in chosen]
        snapshots += [f"{folder}/{file.name}" for file in chosen if file.name.endswith(".zip")]
    fetch([f"{STATE}/{name}" for name in found])
    known = frozenset(listed)
    shared = [other for name in snapshots for other in _shared_files(root, name, known)]
    fetch([f"{STATE}/{name}" for name in shared])
    return [f"{STATE}/{name}" for name in dict.fromkeys(found + shared)]


def _was_there(name: str, batch: BatchId) -> bool:
    found = _BY_BATCH.fullmatch(name.removesuffix(".crc"))
    return found is None or int(found["batch"]) <= batch


def _shared_files(root: Path, snapshot: str, known: frozenset[str]) -> Iterator[str]:
    """Yield the immutable files that a RocksDB snapshot shares with other snapshots.

    The file ``metadata`` in the zip is a version line and a JSON object that lists files of ``SSTs/`` and ``logs/``.
    """
    folder = snapshot.rpartition("/")[0]
    with zipfile.ZipFile(root / snapshot) as archive:
        record = json.loads(archive.read("metadata").split(b"\n", 1)[1])
    shared = [f"SSTs/{file['dfsSstFileName']}" for file in record.get("sstFiles") or ()]
    shared += [f"logs/{file['dfsLogFileName']}" for file in record.get("logFiles") or ()]
    for name in shared:
        yield f"{folder}/{name}"
        checksum = f"{folder}/{name}.crc"
        if checksum in known or (root / checksum).exists():
            yield checksum


_Ids = dict[str, list[list[str]]]
"""The ids of the stores of each partition, by operator."""


def _read_ids(commits: Path, batch: BatchId) -> dict[int, _Ids]:
    """Return the ids in the commit log by state version, up to the version after ``batch``."""
    found: dict[int, _Ids] = {}
    for number in numbers_in(commits):
        if number > batch:
            continue
        try:
            lines = (commits / str(number)).read_text().splitlines()
        except FileNotFoundError:
            # Spark has just deleted it, together with the state of that batch.
            continue
        ids = json.loads(lines[1]).get("stateUniqueIds") if len(lines) > 1 else None
        if ids:
            found[number + 1] = ids
    return found


def _ids_of(committed: Mapping[int, _Ids], operator: str, partition: int) -> dict[int, frozenset[str]]:
    return {
        version: frozenset(ids[operator][partition])
        for version, ids in committed.items()
        if partition < len(ids.get(operator, ()))
    }
