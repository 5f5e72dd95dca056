"""The store protocol: the five operations on durable bytes that every backend brings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import attrs


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

    def download(self, key: str, path: Path) -> None:
        """Bring an object to a new local file.

        Raises:
            ObjectMissingError: there is no such object.
        """
        path.write_bytes(self.read(key))

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
