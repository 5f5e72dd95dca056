"""The errors of keyed state: shards, state hosts and the way between them."""

from __future__ import annotations

import attrs

from ..storage.errors import ChandyError, FailureCode


class StateError(ChandyError):
    """Something about keyed state is not as it must be."""


# --- shards and hosts ---------------------------------------------------------------------------------------


@attrs.define(eq=False)
class CannotGoBackError(StateError):
    """A shard was asked to begin a batch whose predecessor state it no longer has."""

    code = FailureCode.STATE_UNUSABLE

    shard: str
    asked: int
    position: int
    """The last batch whose effect is in the shard, or that has begun on it."""

    def __str__(self) -> str:
        return (
            f"shard {self.shard} was asked to begin batch {self.asked}, but it has gone on to batch "
            f"{self.position}: only a restore of the pipeline from a checkpoint leads back"
        )


@attrs.define(eq=False)
class NotAppliedError(StateError):
    """A batch has committed although a task of it never ran to its end on this shard."""

    shard: str
    batch: int
    begun: int

    def __str__(self) -> str:
        return (
            f"expected batch {self.batch} to have run to its end on shard {self.shard} before batch {self.begun} "
            "begins, but its task was left early or left out: the sink took only some of the batch's rows, as show(), "
            "take() and limit() in foreachBatch do; have it take them all"
        )


@attrs.define(eq=False)
class StaleBatchError(StateError):
    """Changes came for a batch that is not the one that the shard has begun."""

    shard: str
    found: int
    begun: int | None

    def __str__(self) -> str:
        return (
            f"changes of batch {self.found} came to shard {self.shard}, which expects those of batch "
            f"{self.begun}: "
            "they are from an attempt that Spark has given up, and nothing of them was kept"
        )


@attrs.define(eq=False)
class CutPassedError(StateError):
    """A snapshot was ordered at a cut that the shard has passed."""

    shard: str
    cut: int
    position: int

    def __str__(self) -> str:
        return (
            f"expected to snapshot shard {self.shard} as it is after batch {self.cut}, but batch "
            f"{self.position} "
            "is in it already: this checkpoint cannot complete, the next one can"
        )


@attrs.define(eq=False)
class ShardMissingError(StateError):
    """A shard that this host must have is not there."""

    code = FailureCode.STATE_UNUSABLE

    shard: str
    host: str

    def __str__(self) -> str:
        return (
            f"expected state host {self.host} to have shard {self.shard}, it has not; begin the batch first"
        )


@attrs.define(eq=False)
class ShardClosedError(StateError):
    """A shard was used after it was closed."""

    shard: str

    def __str__(self) -> str:
        return f"shard {self.shard} is closed: its query was released or its state host is stopping"


@attrs.define(eq=False)
class ShardBrokenError(StateError):
    """A shard lost changes that it had taken: its state cannot be used any more."""

    code = FailureCode.STATE_UNUSABLE

    shard: str
    batch: int
    detail: str

    def __str__(self) -> str:
        return (
            f"shard {self.shard} could not write the changes of batch {self.batch} ({self.detail}): look "
            "at the disk "
            "of its machine; the pipeline has to go back to a checkpoint"
        )


@attrs.define(eq=False)
class ChangelogBrokenError(StateError):
    """A shard's changelog does not lead to where its query stood."""

    code = FailureCode.STATE_UNUSABLE

    changelog: str
    batch: int
    found: str

    def __str__(self) -> str:
        return (
            f"{self.changelog} should have what batch {self.batch} has changed, found {self.found}: the pipeline goes "
            "back to the latest checkpoint; look at the disk of its machine if this happens again"
        )


@attrs.define(eq=False)
class ReservedKeyError(StateError):
    """A change names the key under which a shard keeps its position."""

    shard: str
    key: str

    def __str__(self) -> str:
        return (
            f"key {self.key} of shard {self.shard} is reserved: make keys with `chandy.state.format.keyspace`"
        )


@attrs.define(eq=False)
class RestoredTooFarError(StateError):
    """A restored shard holds more batches than its checkpoint says."""

    shard: str
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"shard {self.shard} was restored as of batch {self.expected}, but its files hold batch "
            f"{self.found}: "
            "the checkpoint is not what its manifest says; restore another one"
        )


# --- processes and the way between them ---------------------------------------------------------------------


@attrs.define(eq=False)
class RemoteError(StateError):
    """A peer failed with an error that has no type on this side."""

    error: str
    """Name of the error's class."""
    message: str

    def __str__(self) -> str:
        return f"{self.error}: {self.message}"


@attrs.define(eq=False)
class PeerLostError(StateError):
    """A process that should answer does not."""

    address: str
    detail: str

    def __str__(self) -> str:
        return f"expected an answer from {self.address}, the connection is lost: {self.detail}"


@attrs.define(eq=False)
class HostLostError(PeerLostError):
    """A task lost its state host."""

    code = FailureCode.HOST_LOST

    def __str__(self) -> str:
        return (
            f"the state host at {self.address} does not answer ({self.detail}): it was killed, or it runs "
            "on another "
            "machine; the task has to run again"
        )


@attrs.define(eq=False)
class CoordinatorLostError(PeerLostError):
    """A state host lost its coordinator."""

    def __str__(self) -> str:
        return (
            f"the coordinator at {self.address} does not answer ({self.detail}): look whether the driver "
            "lives and "
            "can be reached from this machine"
        )


@attrs.define(eq=False)
class RoutingError(StateError):
    """The owners of shards could not be found by following the hosts' answers."""

    uid: str
    shards: tuple[int, ...]

    def __str__(self) -> str:
        return (
            f"no state host says that it owns shards {list(self.shards)} of operator {self.uid!r}: each "
            "points to another; "
            "run the batch again"
        )


@attrs.define(eq=False)
class AppliedTwiceError(StateError):
    """A task used its access to a batch after it had applied its changes."""

    batch: int

    def __str__(self) -> str:
        return f"the changes of batch {self.batch} were applied or given up already: begin the batch again"


@attrs.define(eq=False)
class HostStartError(StateError):
    """A state host did not start."""

    directory: str
    detail: str
    log: str
    """The last lines that it logged."""

    def __str__(self) -> str:
        return (
            f"expected a state host to serve in {self.directory}, but {self.detail}. "
            f"Its log ends with:\n{self.log}"
        )


@attrs.define(eq=False)
class SocketPathError(StateError):
    """A path is too long for a Unix socket."""

    path: str
    limit: int

    def __str__(self) -> str:
        return (
            f"the path {self.path!r} has {len(self.path.encode())} bytes, a Unix socket's may have "
            f"{self.limit}: use a shorter runtime directory (environment variable CHANDY_RUNTIME_DIR)"
        )


@attrs.define(eq=False)
class UnsafeDirectoryError(StateError):
    """A directory that must belong to this user alone does not."""

    path: str
    found: str

    def __str__(self) -> str:
        return (
            f"expected {self.path!r} to be a directory of this user with mode 0700, found {self.found}: "
            "remove it"
        )


# --- operators: their definition, their processors and their states -----------------------------------------


@attrs.define(eq=False)
class DefinitionError(StateError):
    """An operator cannot be built from what it was given."""

    argument: str
    """The argument at fault."""
    expected: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.argument} to be {self.expected}, found {self.found}"


@attrs.define(eq=False)
class SchemaError(StateError):
    """A schema is not one that can be used where it was given."""

    what: str
    """Whose schema it is."""
    found: str
    detail: str

    def __str__(self) -> str:
        return f"the schema of {self.what} cannot be used: {self.detail}; found {self.found}"


@attrs.define(eq=False)
class KeyTypeError(StateError):
    """A key column has a type by which rows cannot be grouped."""

    column: str
    found: str
    detail: str

    def __str__(self) -> str:
        return (
            f"key column {self.column!r} has type {self.found}, which {self.detail}: "
            "give a key of numbers, strings, bytes, dates, timestamps, or structs and arrays of them"
        )


@attrs.define(eq=False)
class KeyValueError(StateError):
    """A key has values that its columns cannot have."""

    column: str
    """Path of the key column at fault; empty for the key as a whole."""
    expected: str
    found: str

    def __str__(self) -> str:
        column = f"key column {self.column!r}" if self.column else "the key"
        return f"expected {column} to be {self.expected}, found {self.found}"


@attrs.define(eq=False)
class NoSuchStateError(StateError):
    """A checkpoint does not have what is to be read of it."""

    checkpoint: int
    wanted: str
    there: tuple[str, ...]

    def __str__(self) -> str:
        there = ", ".join(map(repr, self.there)) or "none"
        return f"expected {self.wanted} in checkpoint {self.checkpoint}, which has {there}"


@attrs.define(eq=False)
class DeclarationError(StateError):
    """A processor declares a state in a way that cannot be carried out."""

    state: str
    operator: str
    detail: str

    def __str__(self) -> str:
        return f"state {self.state!r} of operator {self.operator!r} cannot be declared: {self.detail}"


@attrs.define(eq=False)
class UnsupportedStateError(StateError):
    """A processor uses a part of PySpark's handle that Chandy does not have."""

    operator: str
    feature: str

    def __str__(self) -> str:
        return f"operator {self.operator!r} uses {self.feature}, which Chandy does not support"


@attrs.define(eq=False)
class StateSchemaError(StateError):
    """A state is declared as something that what was written of it cannot be read as."""

    uid: str
    state: str
    expected: str
    found: str
    detail: str

    def __str__(self) -> str:
        return (
            f"expected state {self.state!r} of operator {self.uid!r} to be {self.expected} as in the checkpoint, or "
            f"what that may become, found {self.found}: {self.detail}; give the changed state another name"
        )


@attrs.define(eq=False)
class StateTypeError(StateError):
    """A value does not fit the schema of its state."""

    operator: str
    state: str
    field: str
    """Path of the field inside the schema; empty for the value as a whole."""
    expected: str
    found: str

    def __str__(self) -> str:
        field = f"field {self.field!r} of " if self.field else ""
        return (
            f"{field}state {self.state!r} of operator {self.operator!r}: "
            f"expected {self.expected}, found {self.found}"
        )


@attrs.define(eq=False)
class NoKeyError(StateError):
    """A processor used a state while no key was being processed."""

    operator: str
    state: str

    def __str__(self) -> str:
        return (
            f"state {self.state!r} of operator {self.operator!r} belongs to a key: use it in handleInputRows, "
            "handleExpiredTimer or handleInitialState, not in init, in close or after the key's turn"
        )


@attrs.define(eq=False)
class TimeModeError(StateError):
    """A processor uses timers in a time mode that has none."""

    operator: str
    call: str
    """The method of the handle."""
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.call} of operator {self.operator!r} expected time mode {self.expected}, found {self.found!r}: "
            "give time_mode where the operator is defined"
        )


@attrs.define(eq=False)
class InitialStateError(StateError):
    """The rows that an operator's state begins with cannot be read."""

    path: str
    detail: str

    def __str__(self) -> str:
        return (
            f"expected rows of an initial state in {self.path}: {self.detail}; on a cluster, set work_dir of the "
            "configuration to a directory that driver and executors share"
        )


@attrs.define(eq=False)
class OutputTypeError(StateError):
    """A row that a processor yielded does not fit the output schema."""

    operator: str
    column: str
    """The column at fault; empty for the row as a whole."""
    expected: str
    found: str

    def __str__(self) -> str:
        column = f"column {self.column!r} of " if self.column else ""
        return (
            f"{column}the output of operator {self.operator!r}: expected {self.expected}, found {self.found}"
        )


@attrs.define(eq=False)
class ProcessorError(StateError):
    """A processor raised."""

    operator: str
    batch: int
    where: str
    """The key as text, or the name of the method if no key was being processed."""
    traceback: str

    def __str__(self) -> str:
        return (
            f"the processor of operator {self.operator!r} raised at {self.where} in batch {self.batch}; "
            f"nothing of the batch was kept. It said:\n{self.traceback}"
        )


@attrs.define(eq=False)
class ArrowResultError(StateError):
    """What an Arrow processor returned does not fit."""

    operator: str
    part: str
    """The part at fault, e.g. a state by its name."""
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.part} that the Arrow processor of operator {self.operator!r} returned: "
            f"expected {self.expected}, found {self.found}"
        )


@attrs.define(eq=False)
class AggregateOverflowError(StateError):
    """An aggregate grew beyond its type."""

    operator: str
    aggregate: str
    """The function and its column."""
    type: str
    """The type that cannot hold it, as Spark writes it."""

    def __str__(self) -> str:
        return (
            f"{self.aggregate} of operator {self.operator!r} does not fit into {self.type} any more: nothing of "
            "the batch was kept; cast the column to a wider type, or to double"
        )


@attrs.define(eq=False)
class MisplacedTaskError(StateError):
    """An operator's task does not run where its shards are its own."""

    operator: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"operator {self.operator!r} expected {self.expected}, found {self.found}: start the query with "
            "coordinator.start, and put a repartition between the operator and a union or coalesce after it"
        )


@attrs.define(eq=False)
class BatchLogError(ChandyError):
    """A log of batches in a query's working checkpoint directory is not as Spark writes it."""

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.path}: expected {self.expected}, found {self.found}; nothing but Spark may write into a query's "
            "working directory, and this version reads the logs of Spark 4.3"
        )
