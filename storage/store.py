"""The store protocol: what every backend implements to keep durable bytes."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import attrs

from . import runtime
from .errors import NotDeletedError, StoreFailedError
from .transfer import PART, download_in_parts

_UNREACHABLE = 3
"""Failures in passing, one right after the other, after which a store is taken for unreachable."""


@attrs.define
class StoreRequests:
    """How often this process has asked a store. Several threads count."""

    attempts: int = 0
    """Attempts of operations, the first ones and the repeated ones."""
    retries: int = 0
    """Attempts that repeated an operation because the store had failed for a moment."""
    failures: int = 0
    """Operations that have failed, whatever was tried."""
    _lock: runtime.Lock = attrs.field(factory=runtime.lock, init=False, repr=False, eq=False)

    def count(self, attempts: int = 0, retries: int = 0, failures: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.attempts += attempts
            self.retries += retries
            self.failures += failures


@attrs.frozen
class ObjectStat:
    """The size and age of an object."""

    size: int
    """Bytes of the object."""
    modified: float | None
    """When it was last written or uploaded, in seconds since 1970 by the store's clock; None if that is not known."""


class Store(ABC):
    """Durable objects under one URI. An object is named by its key, a relative path with ``/`` between its parts.

    Five operations are abstract: read, write, create, list and delete. The others have defaults, which a backend
    overrides if it can do better. When an operation returns, what it wrote is durable. All operations may be called
    from several threads.
    """

    uri: str
    """Opens the store again, from any process or machine."""
    fenced: bool = True
    """Whether the backend says that ``create`` is exclusive. The module ``probe`` checks it."""
    asked: StoreRequests | None = None
    """What was asked of it by way of this object; None if nobody counts, as for the disk of this machine."""

    def within(self, seconds: float) -> Store:
        """Return this store with a deadline for all operations together: retries end after so many seconds."""
        return self

    def afresh(self) -> Store:
        """Return this store for a second look: with connections of its own, if the backend keeps any."""
        return self

    @abstractmethod
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``, fewer if the object ends before.

        Raises:
            ObjectMissingError: there is no such object.
        """

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Write an object, replacing any old one. Readers see all old bytes or all new ones."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet. If several callers race, exactly one wins.

        Args:
            key: the object.
            data: its bytes. They must not be empty, and nobody else may write the same ones there: if the answer is
                lost, the creator recognises its object by them.

        Raises:
            ObjectExistsError: the object exists, and is unchanged.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with ``prefix``, sorted. Correctness never depends on this being fresh."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""

    def upload(self, path: Path, key: str) -> None:
        """Store a local file that never changes again under ``key``, a name that follows from its bytes.

        ``stat`` must show an upload as a fresh write even if the object exists already, so that garbage collection
        sees that the object is needed again.
        """
        self.write(key, path.read_bytes())

    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Download an object to a local file, a large one in parts.

        Args:
            key: the object.
            path: the file. It is created, or overwritten if a failed attempt left it behind.
            size: how many bytes the object should have. If it has more, at least one more is in the file.

        Returns:
            The SHA-256 of the file in hex; None if the bytes were not seen (a hard link).

        Raises:
            ObjectMissingError: there is no such object.
        """
        if size is not None and size > PART:
            return download_in_parts(lambda offset, length: self.read(key, offset, length), size, path)
        data = self.read(key, 0, None if size is None else size + 1)
        path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def is_same_file(self, key: str, path: Path) -> bool:
        """Return whether a local file is the object itself, so that who reads the one has read the other."""
        return False

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        """Copy an object from another store into this one without downloading it.

        Like an ``upload``, the copy counts as a fresh write. The bytes are not verified.

        Returns:
            Whether the service could do that. If not, nothing was done.

        Raises:
            ObjectMissingError: there is no such object in ``source``.
        """
        return False

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects, in any order. Those that are not there are ignored.

        Raises:
            NotDeletedError: some could not be deleted. All others are gone.
        """
        delete_each(self.uri, keys, self.delete)

    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        """Return the size and age of the objects whose keys begin with ``prefix``, by key, sorted.

        They may be older than what ``stat`` returns.
        """
        return {key: ObjectStat(-1, None) for key in self.list(prefix)}

    def stat(self, key: str) -> ObjectStat:
        """Return the size and age of an object.

        Raises:
            ObjectMissingError: there is no such object.
        """
        return ObjectStat(len(self.read(key)), None)

    def sweep(self, before: float) -> None:  # noqa: B027 (most stores leave nothing behind)
        """Delete what interrupted writes left behind besides objects.

        Args:
            before: seconds since 1970 by the store's clock. What was touched later is kept.

        Raises:
            NotDeletedError: some of it could not be deleted. All else is gone.
        """


def delete_each(uri: str, keys: Iterable[str], delete: Callable[[str], object]) -> None:
    """Delete one after the other, and go on after one that fails.

    If several in a row fail in passing, it is the store that cannot be reached, and the rest is left to a retry.

    Args:
        uri: of the store.
        keys: what to delete.
        delete: deletes one of them, or raises a ``StoreFailedError``.

    Raises:
        NotDeletedError: some are left. All others are gone.
    """
    failed: dict[str, StoreFailedError] = {}
    in_a_row = 0
    for key in keys:
        if in_a_row == _UNREACHABLE:
            failed[key] = next(reversed(failed.values()))
            continue
        try:
            delete(key)
            in_a_row = 0
        except StoreFailedError as error:
            failed[key] = error
            in_a_row = in_a_row + 1 if error.transient else 0
    if failed:
        raise NotDeletedError.of(uri, failed)
