"""Savepoints in a pipeline's own folder that were begun and never completed."""

from __future__ import annotations

from collections.abc import Iterable

from .layout import CLAIM, MANIFEST, SAVEPOINTS, is_file


def unfinished_savepoints(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return what such savepoints have left, by folder in the pipeline's storage, each folder's claim last.

    A folder is one only if it has a claim and no manifest. Only objects are returned that a savepoint writes before its
    manifest: what somebody else has put there is none of them.

    Args:
        keys: of all objects in the pipeline's storage.
    """
    folders: dict[str, set[str]] = {}
    for key in keys:
        place, _, rest = key.partition("/")
        name, _, inner = rest.partition("/")
        if place == SAVEPOINTS and inner:
            folders.setdefault(f"{SAVEPOINTS}/{name}/", set()).add(inner)
    return {
        folder: [*(f"{folder}{key}" for key in sorted(found) if is_file(key)), f"{folder}{CLAIM}"]
        for folder, found in folders.items()
        if CLAIM in found and MANIFEST not in found
    }
