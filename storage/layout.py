"""Every path inside a pipeline's storage, in one place."""

from __future__ import annotations

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints/"
GENERATIONS = "generations/"
SHARED = "shared/"


def generation_key(generation: int) -> str:
    """Key of the record that fences all generations below ``generation``."""
    return f"{GENERATIONS}{generation}.json"


def manifest_key(checkpoint: int) -> str:
    """Key of a checkpoint's manifest."""
    return f"{CHECKPOINTS}{checkpoint}/{MANIFEST}"


def pack_key(checkpoint: int, writer: str) -> str:
    """Key of the object into which ``writer`` packs its small files of a checkpoint."""
    return f"{CHECKPOINTS}{checkpoint}/{writer}.pack"


def shared_key(sha256: str) -> str:
    """Key of an immutable file that checkpoints share."""
    return f"{SHARED}{sha256[:2]}/{sha256}.sst"
