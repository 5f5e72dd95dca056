"""Stores that are only for tests: in memory, and those that fail on purpose."""

from __future__ import annotations

import threading
import time

from chandy.storage import ObjectExistsError, ObjectMissingError, ObjectStat, Store


class MemoryStore(Store):
    """Objects in memory, strongly consistent."""

    uri = "memory://test"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.written: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._lock:
            if key not in self.objects:
                raise ObjectMissingError(self.uri, key)
            return self.objects[key][offset : None if length is None else offset + length]

    def write(self, key: str, data: bytes) -> None:
        with self._lock:
            self.objects[key] = bytes(data)
            self.written[key] = time.time()

    def create(self, key: str, data: bytes) -> None:
        with self._lock:
            if key in self.objects:
                raise ObjectExistsError(self.uri, key)
            self.objects[key] = bytes(data)
            self.written[key] = time.time()

    def list(self, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        with self._lock:
            self.objects.pop(key, None)

    def stat(self, key: str) -> ObjectStat:
        with self._lock:
            if key not in self.objects:
                raise ObjectMissingError(self.uri, key)
            return ObjectStat(len(self.objects[key]), self.written[key])
