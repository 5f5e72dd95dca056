"""Which files of Spark's native state stores restore them after a batch.

The format is Spark 4.3's: a store's version after batch N is N+1, and each store has a folder
``state/<operator>/<partition>/[<store>/]`` with full snapshots (``.snapshot`` of the HDFS-backed provider,
``.zip`` of RocksDB) and deltas (``.delta``, ``.changelog``). With state format v2 a file's name is
``<version>_<unique id>.<kind>``, and the commit log says which ids a batch committed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from ..errors import IncompleteDirectoryError
from .listing import files_below, numbers_in

_VERSIONED = re.compile(
    r"(?P<version>\d+)(?:_(?P<id>[^.]+))?\.(?P<kind>delta|changelog|snapshot|zip)(?P<checksum>\.crc)?"
)
_SNAPSHOTS = frozenset({"snapshot", "zip"})
# What transformWithState writes when a query starts is named by the batch, with a unique id or without.
_BY_BATCH = re.compile(r"\d+/(?:_metadata/v2|_stateSchema/[^/]+)/(?P<batch>\d+)(?:_[^/]+)?")


@attrs.frozen
class StateFile:
    """A versioned file of a native state store, read from its name."""

    name: str
    version: int
    unique_id: str | None
    """The id that state format v2 puts into the name."""
    full: bool
    """A snapshot, as opposed to a delta."""
    checksum: bool
    """Spark's own checksum of the file with the same name without ``.crc``."""

    @staticmethod
    def parse(name: str) -> StateFile | None:
        """Return what a file name says, None if it is no versioned file's."""
        found = _VERSIONED.fullmatch(name)
        if found is None:
            return None
        full, checksum = found["kind"] in _SNAPSHOTS, found["checksum"] is not None
        return StateFile(name, int(found["version"]), found["id"], full, checksum)


def choose(
    files: Iterable[StateFile], version: int, ids: Mapping[int, frozenset[str]]
) -> list[StateFile] | None:
    """Choose what restores a state store at ``version``: the latest snapshot up to it, and the deltas after.

    Args:
        files: the store's versioned files.
        version: the version to restore, 1 or more.
        ids: by version the unique ids that committed, where the commit log still says. A version that is not
            in it has only files that committed, as the directory was seeded with just these.

    Returns:
        The files, None if something in the chain is missing.
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


def state_files_at(directory: Path, batch: int) -> list[str]:
    """Return the state files that restore all native operators after ``batch``, relative to the directory.

    Raises:
        IncompleteDirectoryError: some store cannot be restored at that batch.
    """
    root = directory / "state"
    names: list[str] = []
    stores: defaultdict[str, list[StateFile]] = defaultdict(list)
    for name in files_below(root):
        folder, _, last = name.rpartition("/")
        if folder.endswith(("/SSTs", "/logs")):
            continue
        versioned = StateFile.parse(last)
        if versioned is not None:
            stores[folder].append(versioned)
        elif _was_there(name, batch):
            names.append(name)
    committed = _read_ids(directory / "commits", batch)
    for folder, files in stores.items():
        operator, partition = folder.split("/")[:2]
        chosen = choose(files, batch + 1, _ids_of(committed, operator, int(partition)))
        if chosen is None:
            missing = f"state/{folder} at version {batch + 1}"
            raise IncompleteDirectoryError(str(directory), batch, missing)
        for file in chosen:
            names.append(f"{folder}/{file.name}")
            if file.name.endswith(".zip"):
                names += _shared_files(root, folder, file.name)
    return [f"state/{name}" for name in dict.fromkeys(names)]


def _was_there(name: str, batch: int) -> bool:
    found = _BY_BATCH.fullmatch(name.removesuffix(".crc"))
    return found is None or int(found["batch"]) <= batch


def _shared_files(root: Path, folder: str, snapshot: str) -> Iterator[str]:
    """Yield the immutable files that a RocksDB snapshot shares with others.

    The zip's ``metadata`` is a version line and a JSON object that lists files in ``SSTs/`` and ``logs/``.
    """
    with zipfile.ZipFile(root / folder / snapshot) as archive:
        record = json.loads(archive.read("metadata").split(b"\n", 1)[1])
    shared = [f"SSTs/{file['dfsSstFileName']}" for file in record.get("sstFiles") or ()]
    shared += [f"logs/{file['dfsLogFileName']}" for file in record.get("logFiles") or ()]
    for name in shared:
        yield f"{folder}/{name}"
        if (root / folder / f"{name}.crc").exists():
            yield f"{folder}/{name}.crc"


_Ids = dict[str, list[list[str]]]
"""By operator, for each partition, the ids of its stores."""


def _read_ids(commits: Path, batch: int) -> dict[int, _Ids]:
    """Return by state version the ids that the commit log has, up to the version after ``batch``."""
    found: dict[int, _Ids] = {}
    for number in numbers_in(commits):
        if number > batch:
            continue
        try:
            lines = (commits / str(number)).read_text().splitlines()
        except FileNotFoundError:
            # Spark has just purged it, together with the state that it speaks of.
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
