"""The errors of keyed state: shards, state hosts and the way between them."""

from __future__ import annotations

import attrs

from ..storage.errors import ChandyError, RefusedError


class StateError(ChandyError):
    """Something about keyed state is not as it must be."""


# --- shards and hosts ---------------------------------------------------------------------------------------


@attrs.define(eq=False)
class CannotGoBackError(StateError):
    """A batch was begun on a shard that no longer has the state before it."""

    shard: str
    asked: int
    position: int
    """The last batch that has been applied to the shard, or that has begun on it."""

    def __str__(self) -> str:
        return (
            f"batch {self.asked} cannot begin on shard {self.shard}, which has gone on to batch {self.position}: "
            "the pipeline must be restored from a checkpoint"
        )


@attrs.define(eq=False)
class ShardRefusedError(RefusedError, StateError):
    """A shard refused what would have made its state wrong, and is as it was before."""


@attrs.define(eq=False)
class ShardMissingError(StateError):
    """A state host does not have a shard that it should have."""

    shard: str
    host: str

    def __str__(self) -> str:
        return f"expected state host {self.host} to have shard {self.shard}, but it does not; begin the batch first"


@attrs.define(eq=False)
class ShardClosedError(StateError):
    """A shard was used after it was closed."""

    shard: str

    def __str__(self) -> str:
        return f"shard {self.shard} is closed: its query has ended or its state host is stopping"


@attrs.define(eq=False)
class ShardBrokenError(StateError):
    """A shard has lost changes that it had accepted. Its state cannot be used any more."""

    shard: str
    batch: int
    detail: str

    def __str__(self) -> str:
        return (
            f"shard {self.shard} could not write the changes of batch {self.batch} ({self.detail}): the pipeline "
            "must go back to a checkpoint; check the disk of the machine"
        )


@attrs.define(eq=False)
class ChangelogBrokenError(StateError):
    """A shard's changelog lacks a batch that is needed to resume its query."""

    changelog: str
    batch: int
    found: str

    def __str__(self) -> str:
        return (
            f"changelog {self.changelog}: expected the changes of batch {self.batch}, found {self.found}; the "
            "pipeline goes back to the latest checkpoint; check the disk of the machine if this happens again"
        )


# --- processes and the way between them ---------------------------------------------------------------------


@attrs.define(eq=False)
class RemoteError(StateError):
    """A peer failed with an error that has no class on this side."""

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
        return f"{self.address} does not answer: the connection is lost ({self.detail})"


@attrs.define(eq=False)
class HostLostError(PeerLostError):
    """A task has lost its state host."""

    def __str__(self) -> str:
        return (
            f"the state host at {self.address} does not answer ({self.detail}): it was killed, or it runs on "
            "another machine; run the task again"
        )


@attrs.define(eq=False)
class CoordinatorLostError(PeerLostError):
    """A state host has lost its coordinator."""

    def __str__(self) -> str:
        return (
            f"the coordinator at {self.address} does not answer ({self.detail}): check that the driver is alive "
            "and can be reached from this machine"
        )


@attrs.define(eq=False)
class StateAccessError(RefusedError, StateError):
    """A task cannot use the shards of its batch, or cannot use them any more."""


@attrs.define(eq=False)
class HostStartError(RefusedError, StateError):
    """A state host could not be started."""


@attrs.define(eq=False)
class UnsafeDirectoryError(RefusedError, StateError):
    """A directory that must belong to this user alone does not."""


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
