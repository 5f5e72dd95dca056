"""The errors of keyed state: shards, state hosts and the way between them."""

from __future__ import annotations

import attrs

from ..storage.errors import ChandyError, FailureCode, RefusedError


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


class DefinitionError(RefusedError, StateError):
    """The user declared an operator, a key, a schema, a state or the order of queries in a way that cannot work."""


def invalid_argument(argument: str, expected: str, found: str, advice: str = "") -> DefinitionError:
    """Return the error for an argument that an operator, or the state reader, cannot be built from."""
    return DefinitionError(f"invalid argument {argument}", expected, found, advice)


class StateSchemaError(RefusedError, StateError):
    """The checkpoint has values of a state that its declared schema cannot read."""


class StateTypeError(RefusedError, StateError):
    """A value does not fit the schema of its state, or of the key."""


class StateUseError(RefusedError, StateError):
    """A processor used a state or a timer where there is none."""


class NoSuchStateError(RefusedError, StateError):
    """A checkpoint does not have the operator or the state that is to be read."""


class UnreadableFileError(RefusedError, StateError):
    """A file that Spark or the driver wrote for the operators is missing, or its content is not as expected."""


class MisplacedTaskError(RefusedError, StateError):
    """A task of an operator does not run where the operator's shards are served."""


# --- what a user's code or data did: it would do the same again -----------------------------------------------


class UserError(StateError):
    """A user's code or data made a task fail; it would do so again."""


@attrs.define(eq=False)
class ProcessorError(UserError):
    """A processor raised an exception."""

    operator: str
    batch: int
    where: str
    """The key as text, or the name of the method if no key was being processed."""
    traceback: str

    def __str__(self) -> str:
        return (
            f"the processor of operator {self.operator!r} raised an exception at {self.where} in batch {self.batch}, "
            f"and no change of this batch was kept. The exception:\n{self.traceback}"
        )


@attrs.define(eq=False)
class OutputTypeError(UserError):
    """What a processor yielded or returned does not fit the declared schema."""

    operator: str
    part: str
    """The part at fault, e.g. a column of the output or a state."""
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"the processor of operator {self.operator!r} gave a wrong result: {self.part}: "
            f"expected {self.expected}, found {self.found}"
        )


@attrs.define(eq=False)
class AggregateOverflowError(UserError):
    """The value of an aggregate no longer fits into its type."""

    operator: str
    aggregate: str
    """The function and its column."""
    type: str
    """The type that cannot hold the value, as Spark writes it."""

    def __str__(self) -> str:
        return (
            f"{self.aggregate} of operator {self.operator!r} no longer fits into {self.type}, and no change of this "
            "batch was kept: cast the column to a wider type, or to double"
        )
