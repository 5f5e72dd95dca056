"""Files in a store, for tests of what is deleted."""

from __future__ import annotations

from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.manifest import FileRef, Handle


def files(store: LocalStore, *keys: str) -> Handle:
    for key in keys:
        store.write(key, key.encode())
    return Handle(tuple(FileRef(key, key, len(key), "ab") for key in keys))
