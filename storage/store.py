"""The store protocol: the five operations on durable bytes that every backend brings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


class Store(ABC):
    """Durable objects under one URI, each named by a key: a relative path with ``/`` between its parts.

    What an operation wrote is durable when it returns. Operations may be called from many threads.
    """

    uri: str
    """Where the store is, as a URI that opens it again from another process or machine."""

    @abstractmethod
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object's bytes, or ``length`` of them from ``offset``.

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
        """Store a local file that will never change again under ``key``."""
        self.write(key, path.read_bytes())

    def download(self, key: str, path: Path) -> None:
        """Bring an object to a new local file.

        Raises:
            ObjectMissingError: there is no such object.
        """
        path.write_bytes(self.read(key))
