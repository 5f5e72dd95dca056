"""The keys of all objects in a pipeline's storage and in a savepoint's folder."""

from __future__ import annotations

import re

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints/"
GENERATIONS = "generations/"
SHARED = "shared/"
STAGED = "staged/"
"""Rows that tasks have written for transactional sinks, until they are published."""
OUTPUTS = "outputs/"
"""Records of what was committed to targets that keep none themselves. They are kept for ever."""
PACK = ".pack"
PROBES = "probes/"
SAVEPOINTS = "savepoints"
"""Folder in a pipeline's storage with the savepoints that were given no other place."""
CLAIM = "claim"
"""Key in a savepoint's folder of the record who writes it or wrote it."""

OWNER = "owner"
"""Key in a savepoint's folder of the record which pipeline has claimed it."""
CLAIMED = "claimed/"


def claimed_key(generation: int) -> str:
    """Key of the record which savepoint a generation was restored from and claimed."""
    return f"{CLAIMED}{generation}.json"


def generation_key(generation: int) -> str:
    """Key of the record that fences all generations below ``generation``."""
    return f"{GENERATIONS}{generation}.json"


def start_key(generation: int) -> str:
    """Key of the start record of a generation: what it found and which ids it may use."""
    return f"{GENERATIONS}{generation}.start.json"


def driver_key(generation: int) -> str:
    """Key of the record of the driver of a generation, which is there as long as its queries may write."""
    return f"{GENERATIONS}{generation}.driver.json"


def lease_key(generation: int) -> str:
    """Key of the lease that the driver of a generation renews, so that a standby sees that it lives."""
    return f"{GENERATIONS}{generation}.lease.json"


def manifest_key(checkpoint: int) -> str:
    """Key of a checkpoint's manifest."""
    return f"{CHECKPOINTS}{checkpoint}/{MANIFEST}"


def trigger_key(checkpoint: int) -> str:
    """Key of the record that this id was used, with the checkpoint's kind. It is created before anything else."""
    return f"{CHECKPOINTS}{checkpoint}/trigger"


def savepoint_key(checkpoint: int) -> str:
    """Key of the record that this id went to a savepoint. Its content is the savepoint's URI."""
    return f"{CHECKPOINTS}{checkpoint}/savepoint"


def pack_key(checkpoint: int, writer: str) -> str:
    """Key of the object into which ``writer`` packs its small files of a checkpoint."""
    return f"{CHECKPOINTS}{checkpoint}/{writer}{PACK}"


def shared_key(sha256: str) -> str:
    """Key of an immutable file that checkpoints may share."""
    return f"{SHARED}{sha256[:2]}/{sha256}.sst"


def staged_folder(query: str) -> str:
    """Prefix of the keys of the rows that a query has staged."""
    return f"{STAGED}{query}/"


def is_shared(key: str) -> bool:
    """Whether the object is one file, named by its SHA-256. Otherwise it is a pack."""
    return key.startswith(SHARED)


def generation_of(key: str) -> int | None:
    """Return the generation that has a record of any kind with this key; None if it is another object."""
    match = _GENERATION.fullmatch(key)
    return int(match[1]) if match else None


def started_by(key: str) -> int | None:
    """Return the generation whose start record has this key; None if it is another object."""
    match = _START.fullmatch(key)
    return int(match[1]) if match else None


def checkpoint_of(key: str) -> int | None:
    """Return the checkpoint whose folder has this key; None if it is another object."""
    match = _CHECKPOINT.match(key)
    return int(match[1]) if match else None


_GENERATION = re.compile(rf"{GENERATIONS}([1-9]\d*)(?:\.[a-z]+)?\.json")
_START = re.compile(rf"{GENERATIONS}([1-9]\d*)\.start\.json")
_CHECKPOINT = re.compile(rf"{CHECKPOINTS}([1-9]\d*)/")
