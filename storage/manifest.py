"""What a checkpoint is made of: handles to snapshot files, and the manifest that names them all.

The manifest's one write is the commit point of a checkpoint. It holds references, sizes and SHA-256, never
state bytes. Every object key in it is relative to its root: ``<storage>/<pipeline>/`` for a checkpoint, the
savepoint's own folder for a savepoint; so both can be moved as a whole.
"""

from __future__ import annotations

import enum

import attrs

SCHEMA_VERSION = 1
"""The newest manifest schema that this version of Chandy reads and the one it writes."""


class CheckpointKind(enum.StrEnum):
    """Why a checkpoint was taken."""

    PERIODIC = "periodic"
    MANUAL = "manual"
    SAVEPOINT = "savepoint"


@attrs.frozen
class FileRef:
    """One file of a snapshot and where its bytes are."""

    name: str
    """Path of the file inside the snapshot's folder, with ``/`` between parts."""
    key: str
    """Key of the object that holds the bytes, relative to the manifest's root."""
    size: int
    """Bytes of the file."""
    sha256: str
    """SHA-256 of the file's bytes, in hex."""
    offset: int = 0
    """Where the file begins inside its object; above 0 only in a pack."""


@attrs.frozen
class Handle:
    """What restores one snapshot: its files."""

    files: tuple[FileRef, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


class StateKind(enum.StrEnum):
    """How a state variable is kept for each key."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"


@attrs.frozen
class StateRecord:
    """What is known of one state variable of an operator."""

    versions: tuple[str, ...]
    """Schemas of its values (of a list's elements, of a map's values) as Spark's JSON: those that were written
    before, oldest first, and last the one that is written now. A stored value says which of them it has."""
    kind: StateKind = StateKind.VALUE
    map_key: str | None = None
    """Schema of a map's keys as Spark's JSON."""
    ttl_ms: int | None = None
    """Milliseconds after which a value expires, None if it does not."""


@attrs.frozen
class OperatorRecord:
    """A keyed operator at the cut."""

    uid: str
    query: str
    """Name of the query that it is part of."""
    key_schema: str
    """Schema of the key columns, as Spark's JSON."""
    states: dict[str, StateRecord]
    """What is kept for each key, by name."""
    shards: tuple[Handle | None, ...]
    """One handle a shard, in shard order; None where the shard has never held anything."""


@attrs.frozen
class QueryRecord:
    """A query at the cut."""

    name: str
    batch: int
    """The last batch whose effects belong to the checkpoint; -1 if none."""
    files: Handle
    """The files of the working checkpoint directory, and under ``sink/`` the log of a native file sink."""


@attrs.frozen
class Manifest:
    """A completed checkpoint."""

    id: int
    kind: CheckpointKind
    pipeline: str
    generation: int
    triggered_at: float
    """Seconds since 1970, the driver's clock."""
    completed_at: float
    queries: tuple[QueryRecord, ...]
    operators: tuple[OperatorRecord, ...]
    new_bytes: int
    """Bytes that this checkpoint wrote, as opposed to those it shares with earlier ones."""
    versions: dict[str, str] = attrs.field(factory=dict)
    """Versions of what wrote it: chandy, pyspark, rocksdict, python."""

    @property
    def size(self) -> int:
        """Bytes that a restore of everything reads."""
        handles = [query.files for query in self.queries]
        handles += [handle for operator in self.operators for handle in operator.shards if handle]
        return sum(handle.size for handle in handles)

    @property
    def shard_count(self) -> int:
        """Shards of all operators together."""
        return sum(len(operator.shards) for operator in self.operators)

    def keys(self) -> frozenset[str]:
        """Keys of all objects that a restore needs, the manifest itself not counted."""
        handles = [query.files for query in self.queries]
        handles += [handle for operator in self.operators for handle in operator.shards if handle]
        return frozenset(file.key for handle in handles for file in handle.files)
