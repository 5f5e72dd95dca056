"""Checking every byte that a checkpoint references."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import attrs

from .errors import ObjectMissingError
from .files import CHUNK
from .layout import is_shared
from .manifest import FileRef, Handle, Manifest
from .store import Store


@attrs.frozen
class Problem:
    """A file of a checkpoint that cannot be restored."""

    key: str
    """The object that should hold it."""
    file: str
    """Whose file it is and its name in the snapshot."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.key}: expected {self.expected} for {self.file}, found {self.found}"


@attrs.frozen
class Report:
    """What a verification found."""

    files: int
    """Files of the checkpoint; one that several snapshots share is checked once and counted for each."""
    bytes: int
    """Bytes of the files that are whole."""
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether every byte is as it was written."""
        return not self.problems


def verify(store: Store, manifest: Manifest, threads: int = 4) -> Report:
    """Read every object that a manifest references and check the SHA-256 of every file.

    Args:
        store: what the manifest's keys are relative to.
        manifest: a checkpoint's or a savepoint's.
        threads: files that are read at a time.
    """
    users: defaultdict[tuple[str, int, int, str], list[str]] = defaultdict(list)
    for owner, handle in _handles(manifest):
        for file in handle.files:
            users[file.key, file.offset, file.size, file.sha256].append(f"{owner} {file.name}")

    def check(place: tuple[str, int, int, str]) -> str | None:
        key, offset, size, sha256 = place
        return _difference(store, FileRef("", key, size, sha256, offset))

    with ThreadPoolExecutor(threads, "chandy-verify") as pool:
        found = dict(zip(users, pool.map(check, users), strict=True))
    problems = [
        Problem(key, file, f"{size} bytes with SHA-256 {sha256}", difference)
        for (key, offset, size, sha256), difference in found.items()
        if difference
        for file in users[key, offset, size, sha256]
    ]
    whole = sum(place[2] * len(users[place]) for place, difference in found.items() if not difference)
    return Report(sum(map(len, users.values())), whole, tuple(problems))


def _handles(manifest: Manifest) -> list[tuple[str, Handle]]:
    handles = [(f"query {query.name}", query.files) for query in manifest.queries]
    handles += [
        (f"operator {operator.uid} shard {shard}", handle)
        for operator in manifest.operators
        for shard, handle in enumerate(operator.shards)
        if handle
    ]
    return handles


def _difference(store: Store, file: FileRef) -> str | None:
    """Return what a file is in place of what it should be; None if it is whole."""
    digest = hashlib.sha256()
    size = 0
    # One byte more than the file has: an object of its own must end where the file does.
    end = file.size + 1 if is_shared(file.key) else file.size
    try:
        while size < end and (chunk := store.read(file.key, file.offset + size, min(CHUNK, end - size))):
            digest.update(chunk)
            size += len(chunk)
        if not file.size:
            store.read(file.key, file.offset, 0)
    except ObjectMissingError:
        return "no such object"
    if (size, digest.hexdigest()) == (file.size, file.sha256):
        return None
    if size > file.size:
        return "more bytes"
    return f"{size} bytes with SHA-256 {digest.hexdigest()}"
