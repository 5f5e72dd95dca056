"""The store protocol: the five operations on durable bytes that every backend brings."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

import attrs

from .transfer import PART, download_in_parts


@attrs.frozen
class ObjectStat:
    """What a store knows about an object without reading it."""

    size: int
    """Bytes of the object."""
    modified: float | None
    """Seconds since 1970 when it was last written or uploaded, the store's clock; None: it cannot say."""


class Store(ABC):
    """Durable objects under one URI, each named by a key: a relative path with ``/`` between its parts.

    What an operation wrote is durable when it returns. Operations may be called from many threads.
    """

    uri: str
    """Where the store is, as a URI that opens it again from another process or machine."""
    fenced: bool = True
    """Whether ``create`` is exclusive, as far as the backend knows; that it is so in fact the probe finds out."""

    def within(self, seconds: float) -> Store:
        """Return this store with a deadline: what is tried again is given up so many seconds from now."""
        return self

    @abstractmethod
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``: fewer where the object ends.

        Raises:
            ObjectMissingError: there is no such object.
        """

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Write an object whole, in place of any that is there; readers see the old bytes or the new."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not exist yet; of several that race, exactly one wins.

        Args:
            key: the object.
            data: not empty, and not what anybody else writes there: by its bytes a creator knows its object
                again when the answer was lost.

        Raises:
            ObjectExistsError: the object exists; its bytes are as they were.
        """

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with ``prefix``, sorted. Correctness never hangs on this being fresh."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""

    def upload(self, path: Path, key: str) -> None:
        """Store a local file that will never change again under ``key``, a name that follows from its bytes.

        An upload counts as a fresh write for ``stat`` even where the object is there already: what collects
        garbage must see that somebody wants the object again.
        """
        self.write(key, path.read_bytes())

    def download(self, key: str, path: Path, size: int | None = None) -> str | None:
        """Bring an object to a new local file, a few parts of a large one at a time.

        Args:
            key: the object.
            path: the file; made, or written over if it is left from an attempt that failed.
            size: how many bytes the object should have; where it has more, at least one more is in the file.

        Returns:
            The SHA-256 of the file in hex, None if the bytes did not come by (a hard link).

        Raises:
            ObjectMissingError: there is no such object.
        """
        if size is not None and size > PART:
            return download_in_parts(lambda offset, length: self.read(key, offset, length), size, path)
        data = self.read(key, 0, None if size is None else size + 1)
        path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def copy(self, source: Store, source_key: str, key: str) -> bool:
        """Copy an object of another place of the same service into this one, inside the service.

        As with ``upload`` the copy is a fresh write. The bytes are not looked at.

        Returns:
            Whether that was possible; if not, nothing was done.

        Raises:
            ObjectMissingError: there is no such object in ``source``.
        """
        return False

    def delete_all(self, keys: Collection[str]) -> None:
        """Delete objects, in any order; those that are not there are no error."""
        for key in keys:
            self.delete(key)

    def scan(self, prefix: str = "") -> dict[str, ObjectStat]:
        """Return what is known of each object whose key begins with ``prefix``, by key, sorted.

        May be older than what ``stat`` says.
        """
        return {key: ObjectStat(-1, None) for key in self.list(prefix)}

    def stat(self, key: str) -> ObjectStat:
        """Return size and age of an object.

        Raises:
            ObjectMissingError: there is no such object.
        """
        return ObjectStat(len(self.read(key)), None)

    def sweep(self, before: float) -> None:  # noqa: B027 (most stores leave nothing)
        """Delete what interrupted writes have left that is no object, if last touched before ``before``.

        Args:
            before: seconds since 1970, the store's clock.
        """
