"""The manifest of a checkpoint, and the handles to snapshot files that it holds.

Writing the manifest is the commit point of a checkpoint. It holds references, sizes and SHA-256, but no state. All
object keys in it are relative to its root, which is ``<storage>/<pipeline>/`` for a checkpoint and the savepoint's own
folder for a savepoint. So both can be moved as a whole.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import attrs

from ..errors import UnfitError
from ..ids import NO_BATCH, BatchId, CheckpointId
from ..keys import named

SCHEMA_VERSION = 5
"""The newest manifest schema that this version of Chandy writes and reads."""

# The type of attrs' validators would make an int of each id.
_COUNT: Final[Any] = attrs.validators.ge(0)
_COUNT_IF_KNOWN: Final[Any] = attrs.validators.optional(_COUNT)
_BATCH: Final[Any] = attrs.validators.ge(NO_BATCH)
_BATCHES: Final[Any] = attrs.validators.deep_mapping(attrs.validators.instance_of(str), _COUNT)
_QUERY: Final = named("query")
_SINK: Final = named("sink uid")


class CheckpointKind(enum.StrEnum):
    """Why a checkpoint was taken."""

    PERIODIC = "periodic"
    MANUAL = "manual"
    SAVEPOINT = "savepoint"


@attrs.frozen
class FileRef:
    """One file of a snapshot, and the object that holds its bytes."""

    name: str
    """Path of the file inside the snapshot's folder, with ``/`` between parts."""
    key: str
    """Key of the object that holds the bytes, relative to the manifest's root."""
    size: int = attrs.field(validator=_COUNT)
    """Bytes of the file."""
    sha256: str
    """SHA-256 of the file's bytes, in hex."""
    offset: int = attrs.field(default=0, validator=_COUNT)
    """Where the file begins in its object. Above 0 only in a pack."""

    def check(self, size: int, sha256: str) -> None:
        """Check what was read of the file.

        Raises:
            UnfitError: these are other bytes than were written.
        """
        if (size, sha256) != (self.size, self.sha256):
            expected = f"{self.size} bytes with SHA-256 {self.sha256} for the file {self.name!r}"
            found = "more bytes" if size > self.size else f"{size} bytes with SHA-256 {sha256}"
            raise UnfitError(expected, found)


@attrs.frozen
class Handle:
    """Restores one snapshot: it references all its files."""

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
    """The description of one state variable of an operator."""

    versions: tuple[str, ...]
    """Schemas of its values (a list's elements, a map's values) as Spark's JSON, oldest first. The last one is written
    now. A stored value says which of them it has."""
    kind: StateKind = StateKind.VALUE
    map_key: str | None = None
    """Schema of a map's keys as Spark's JSON."""
    ttl_ms: int | None = None
    """Milliseconds after which a value expires; None if it never does."""


@attrs.frozen
class OperatorRecord:
    """A keyed operator at the cut."""

    uid: str = attrs.field(validator=named("operator uid"))
    query: str = attrs.field(validator=attrs.validators.or_(attrs.validators.in_(("",)), _QUERY))
    """Name of the query that it is part of; empty as long as it is in none."""
    key_schema: str
    """Schema of the key columns, as Spark's JSON."""
    states: dict[str, StateRecord]
    """The state variables that are kept for each key, by name."""
    shards: tuple[Handle | None, ...]
    """One handle per shard, in shard order; None if the shard has never held anything."""
    deleting: dict[str, BatchId] = attrs.field(factory=dict, validator=_BATCHES)
    """The states whose values from before are deleted, each with the batch that does so. In a checkpoint, that batch is
    behind the cut, and shards still have what ``states`` says."""

    def states_of(self, names: Iterable[str]) -> dict[str, StateRecord]:
        """Return some of its states. It may have others, which are no longer declared."""
        return {name: self.states[name] for name in names}

    def deleting_after(self, cut: BatchId) -> dict[str, BatchId]:
        """Return the deletions that a checkpoint with this cut does not have yet."""
        return {name: batch for name, batch in self.deleting.items() if batch > cut}


@attrs.frozen
class EpochRecord:
    """Output that a checkpoint has closed off and that was not known to be published at its cut."""

    id: CheckpointId = attrs.field(validator=_COUNT)
    """The checkpoint that closed it. Ids ascend, also across restores."""
    rows: int = attrs.field(validator=_COUNT)
    staged: Handle = Handle()
    """The files with its rows."""
    note: str = ""
    """What the sink's pre-commit has returned: its own, small."""


@attrs.frozen
class OutputRecord:
    """The output of one transactional sink of a query, as far as it is not published."""

    sink: str = attrs.field(validator=_SINK)
    """Uid of the sink."""
    epochs: tuple[EpochRecord, ...]
    """What is still to be published, oldest first."""
    published: CheckpointId | None = attrs.field(default=None, validator=_COUNT_IF_KNOWN)
    """The newest epoch that was known to be published at the cut; None: none ever was."""


@attrs.frozen
class QueryRecord:
    """A query at the cut."""

    name: str = attrs.field(validator=_QUERY)
    batch: BatchId = attrs.field(validator=_BATCH)
    """The last batch whose effects belong to the checkpoint; -1 if there is none."""
    files: Handle
    """The files of the working checkpoint directory, and under ``sink/`` what a sink wants kept."""
    outputs: tuple[OutputRecord, ...] = ()
    """The output of its transactional sinks."""


@attrs.frozen
class UnreadFiles:
    """Files of a directory that a query could see at the cut and had not read."""

    files: int = attrs.field(validator=_COUNT)
    bytes: int = attrs.field(validator=_COUNT)
    rows: int | None = attrs.field(default=None, validator=_COUNT_IF_KNOWN)
    """None: not all files say how many they have."""


@attrs.frozen
class TopicPartition:
    """A partition of a topic of Kafka between two queries. Not every offset is a row: ends of transactions have one."""

    topic: str
    partition: int = attrs.field(validator=_COUNT)
    published: int | None = attrs.field(validator=_COUNT_IF_KNOWN)
    """Offset behind the last committed record, of whatever writer; None: not known."""
    read: int | None = attrs.field(validator=_COUNT_IF_KNOWN)
    """Offset with which the reader goes on; None if it has not read there, or that is not known."""

    @property
    def unread(self) -> int | None:
        """How many offsets are between the two; None: not known."""
        if self.published is None or self.read is None:
            return None
        return max(0, self.published - self.read)


@attrs.frozen
class ChannelRecord:
    """What was between two queries at the cut: the writer's part of the checkpoint has it, the reader's has not.

    It consists of what readers could see and the reader had not read, which lies in the target, and of what was still
    to be published, which the checkpoint has itself (``OutputRecord.epochs``).
    """

    writer: str = attrs.field(validator=_QUERY)
    """The query that writes."""
    sink: str | None = attrs.field(validator=attrs.validators.optional(_SINK))
    """Uid of its transactional sink. None: Spark's own file sink."""
    reader: str = attrs.field(validator=_QUERY)
    """The query that reads."""
    target: str
    """The directory or topic between them."""
    published: int | None = attrs.field(validator=_COUNT_IF_KNOWN)
    """The writer's newest epoch, or for Spark's own file sink its newest batch, that readers could see; None: none."""
    rows_to_publish: int = attrs.field(validator=_COUNT)
    """Rows of later epochs."""
    files: UnreadFiles | None = None
    """What of a directory was not read; None: not known, or no directory."""
    partitions: tuple[TopicPartition, ...] = ()
    """The partitions of a topic."""


@attrs.frozen
class Manifest:
    """A completed checkpoint."""

    id: CheckpointId = attrs.field(validator=_COUNT)
    kind: CheckpointKind
    pipeline: str = attrs.field(validator=named("pipeline"))
    generation: int = attrs.field(validator=_COUNT)
    triggered_at: float
    """Seconds since 1970 by the driver's clock."""
    completed_at: float
    queries: tuple[QueryRecord, ...]
    operators: tuple[OperatorRecord, ...]
    new_bytes: int = attrs.field(validator=_COUNT)
    """Bytes that this checkpoint wrote, without those that it shares with earlier ones."""
    versions: dict[str, str] = attrs.field(factory=dict)
    """Versions of chandy, pyspark, rocksdict and python that wrote it."""
    unverified: bool = False
    """Whether it holds bytes that were taken over from a restored checkpoint, and that nobody had read in the store
    since then. If they are damaged, so is this checkpoint."""
    channels: tuple[ChannelRecord, ...] = ()
    """What was between its queries. It is for people: a restore does not need it."""

    @property
    def schema(self) -> int:
        """The schema that it is written in: the oldest that can say it, so that older versions can read most."""
        if any(operator.deleting for operator in self.operators):
            return 5
        if self.channels:
            return 4
        if any(query.outputs for query in self.queries):
            return 3
        return 2 if self.unverified else 1

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(handle.size for handle in self._handles())

    @property
    def shard_count(self) -> int:
        """Shards of all operators together."""
        return sum(len(operator.shards) for operator in self.operators)

    def keys(self) -> frozenset[str]:
        """Return the keys of all objects that a restore needs, without the manifest itself."""
        return self._keys

    @cached_property
    def _keys(self) -> frozenset[str]:
        # Each checkpoint that completes is compared with all that are kept: a large pipeline has 100,000 files.
        return frozenset(file.key for handle in self._handles() for file in handle.files)

    def _handles(self) -> list[Handle]:
        shards = [handle for operator in self.operators for handle in operator.shards if handle]
        outputs = [output for query in self.queries for output in query.outputs]
        staged = [epoch.staged for output in outputs for epoch in output.epochs]
        return [query.files for query in self.queries] + staged + shards
