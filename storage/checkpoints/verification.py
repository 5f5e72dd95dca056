"""Verification: finding what is damaged or missing among the objects of checkpoints."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import attrs

from .. import runtime
from ..errors import DamagedError, InvalidNameError, ObjectMissingError
from ..ids import CheckpointId
from ..keys import validate_key
from ..store import Store
from ..verified import verified
from .catalog import Catalog
from .files import CHUNK
from .layout import is_shared
from .manifest import FileRef, Handle, Manifest


@attrs.frozen
class DamagedFile:
    """A file of a checkpoint that is damaged or missing."""

    key: str
    """The object that should hold it."""
    file: str
    """The query or shard that it belongs to, and its name in the snapshot."""
    expected: str
    found: str

    def error(self, store: str) -> DamagedError:
        """Return the error about it in the store of this URI."""
        return DamagedError(store, self.key, f"{self.expected} for {self.file}", self.found)

    def __str__(self) -> str:
        return f"{self.key}: expected {self.expected} for {self.file}, found {self.found}"


@attrs.frozen
class DamagedObject:
    """An object that is damaged or missing, and the checkpoints that need it."""

    key: str
    found: tuple[str, ...]
    """What was found instead of its files, without repetitions."""
    checkpoints: tuple[int, ...]
    """The checkpoints that need it, ascending."""

    def __str__(self) -> str:
        checkpoints = ", ".join(map(str, self.checkpoints))
        return f"{self.key}: {'; '.join(self.found)}; needed by checkpoints {checkpoints}"


@attrs.frozen
class Report:
    """What a verification found."""

    files: int
    """Files of the checkpoint. One that several snapshots share is checked once, and counted for each."""
    bytes: int
    """Bytes of the intact files."""
    problems: tuple[DamagedFile, ...]

    @property
    def ok(self) -> bool:
        """Whether the checkpoint is intact, byte for byte."""
        return not self.problems


def verify(store: Store, manifest: Manifest, threads: int = 4) -> Report:
    """Read every object that a manifest references and check the SHA-256 of every file.

    Args:
        store: the store that the manifest's keys are relative to.
        manifest: the manifest of a checkpoint or a savepoint.
        threads: files that are read at a time.
    """
    return verify_all(store, [manifest], threads)[0]


def verify_all(store: Store, manifests: Sequence[Manifest], threads: int = 4) -> list[Report]:
    """Like ``verify``, for each of several manifests. What they share is read once."""
    places = [_places(manifest) for manifest in manifests]
    distinct = dict.fromkeys(place for users in places for place in users)
    with runtime.pool(threads, "chandy-verify") as pool:
        found = dict(zip(distinct, pool.map(partial(_difference, store), distinct), strict=True))
    reports = [_report(users, found) for users in places]
    return [
        attrs.evolve(report, problems=(*_misnamed(manifest), *report.problems))
        for report, manifest in zip(reports, manifests, strict=True)
    ]


def damaged_objects(reports: Mapping[CheckpointId, Report]) -> list[DamagedObject]:
    """Return the damaged objects in the reports of checkpoints, which are given by id. Sorted by key."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    needed_by: defaultdict[str, set[CheckpointId]] = defaultdict(set)
    for checkpoint, report in reports.items():
        for problem in report.problems:
            found[problem.key][problem.found] = None
            needed_by[problem.key].add(checkpoint)
    return [DamagedObject(key, tuple(found[key]), tuple(sorted(needed_by[key]))) for key in sorted(found)]


def check(store: Store, file: FileRef) -> None:
    """Read every byte of a file in a store.

    Raises:
        DamagedError: the bytes are not those that were written.
        ObjectMissingError: there is no such object.
        StoreFailedError: the store does not answer.
    """
    verified(store, file.key, partial(_check, file=file))


def newest_intact(catalog: Catalog) -> Manifest | None:
    """Return the newest completed checkpoint that is intact, byte for byte; None if there is none."""
    return next(
        (manifest for manifest in reversed(catalog.readable()) if verify(catalog.store, manifest).ok), None
    )


def missing_object(store: Store, manifest: Manifest) -> str | None:
    """Return the key of an object that a manifest references and that is missing; None if all are there.

    This is a quick check before a restore, not a verification. It takes two lists, and one ``stat`` for each object
    that they do not have.
    """
    needed = manifest.keys()
    prefixes = {key.partition("/")[0] + "/" for key in needed}
    for key in sorted(needed.difference(*(store.list(prefix) for prefix in prefixes))):
        try:
            verified(store, key, lambda store: store.stat(key))  # noqa: B023 (it is called at once)
        except ObjectMissingError:
            return key
    return None


_Users = dict[FileRef, list[str]]
"""The files in each place, by the place: a ``FileRef`` without a name."""


def _places(manifest: Manifest) -> _Users:
    users: defaultdict[FileRef, list[str]] = defaultdict(list)
    for owner, handle in _handles(manifest):
        for file in handle.files:
            users[attrs.evolve(file, name="")].append(f"{owner} {file.name}")
    return users


def _report(users: _Users, found: Mapping[FileRef, str | None]) -> Report:
    problems = [
        DamagedFile(place.key, file, f"{place.size} bytes with SHA-256 {place.sha256}", difference)
        for place, files in users.items()
        if (difference := found[place])
        for file in files
    ]
    whole = sum(place.size * len(files) for place, files in users.items() if not found[place])
    return Report(sum(map(len, users.values())), whole, tuple(problems))


def _handles(manifest: Manifest) -> list[tuple[str, Handle]]:
    handles = [(f"query {query.name}", query.files) for query in manifest.queries]
    handles += [
        (f"query {query.name} epoch {epoch.id} of sink {output.sink}", epoch.staged)
        for query in manifest.queries
        for output in query.outputs
        for epoch in output.epochs
    ]
    handles += [
        (f"operator {operator.uid} shard {shard}", handle)
        for operator in manifest.operators
        for shard, handle in enumerate(operator.shards)
        if handle
    ]
    return handles


def _misnamed(manifest: Manifest) -> Iterator[DamagedFile]:
    """Find the files that no restore would write, because their names lead out of its folder."""
    for owner, handle in _handles(manifest):
        for file in handle.files:
            try:
                validate_key(file.name)
            except InvalidNameError as error:
                yield DamagedFile(file.key, owner, error.expected, error.found)


def _difference(store: Store, file: FileRef) -> str | None:
    """Return what is found instead of a file; None if the file is intact."""
    try:
        check(store, file)
    except DamagedError as error:
        return error.found
    except (ObjectMissingError, InvalidNameError):
        return "no such object"
    return None


def _check(store: Store, file: FileRef) -> None:
    digest = hashlib.sha256()
    size = 0
    # One byte more is read, because a shared object must end where the file does.
    end = file.size + 1 if is_shared(file.key) else file.size
    while size < end and (chunk := store.read(file.key, file.offset + size, min(CHUNK, end - size))):
        digest.update(chunk)
        size += len(chunk)
    if not file.size:
        store.read(file.key, file.offset, 0)
    file.check(size, digest.hexdigest())
