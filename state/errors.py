"""The errors of keyed state: shards, state hosts and the way between them."""

from __future__ import annotations

from typing import Any

import attrs

from ..storage.errors import ChandyError, FailureCode, RefusedError
from .shards import CopyId


class StateError(ChandyError):
    """Something about keyed state is not as it must be."""


# --- shards and hosts ---------------------------------------------------------------------------------------


@attrs.define(eq=False)
class CannotGoBackError(StateError):
    """A batch was begun on a shard that no longer has the state before it."""

    code = FailureCode.STATE_UNUSABLE

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

    code = FailureCode.STATE_UNUSABLE

    shard: str
    host: str

    def __str__(self) -> str:
        return f"state host {self.host} does not hold shard {self.shard}; begin the batch first"


@attrs.define(eq=False)
class CopyGivenUpError(StateError):
    """A move of a shard has ended before the shard was here, or a standby of it before it was needed."""

    copy_id: CopyId

    def __str__(self) -> str:
        return f"move or standby {self.copy_id} was given up; its shard stays where it was"


@attrs.define(eq=False)
class ShardMovingError(StateError):
    """A task wants a shard that is getting another owner."""

    uid: str
    shard: int

    def __str__(self) -> str:
        return (
            f"shard {self.shard} of operator {self.uid!r} is getting another state host: run the task again, unless "
            "its batch is over"
        )


@attrs.define(eq=False)
class ShardClosedError(StateError):
    """A shard was used after it was closed."""

    shard: str

    def __str__(self) -> str:
        return f"shard {self.shard} is closed: its query has ended or its state host is stopping"


@attrs.define(eq=False)
class ShardBrokenError(StateError):
    """A shard has lost changes that it had accepted. Its state cannot be used any more."""

    code = FailureCode.STATE_UNUSABLE

    shard: str
    batch: int
    detail: str

    def __str__(self) -> str:
        return (
            f"shard {self.shard} could not write the changes of batch {self.batch} ({self.detail}): the pipeline "
            "must go back to a checkpoint; check the disk of the machine"
        )


@attrs.define(eq=False)
class ShardUnreadableError(StateError):
    """A shard's local files are not what was written."""

    code = FailureCode.STATE_UNUSABLE

    shard: str
    detail: str

    def __str__(self) -> str:
        return (
            f"shard {self.shard} could not be read ({self.detail}): the pipeline must go back to a checkpoint; check "
            "the disk of the machine"
        )


@attrs.define(eq=False)
class ChangelogBrokenError(StateError):
    """A shard's changelog lacks a batch that is needed to resume its query."""

    code = FailureCode.STATE_UNUSABLE

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
    fields: dict[str, Any] | None = attrs.field(default=None, repr=False)
    """What the error has on a side that knows its class: this one may stand between the two. None: not known."""

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

    code = FailureCode.HOST_LOST

    def __str__(self) -> str:
        return (
            f"the state host at {self.address} does not answer ({self.detail}): it was killed, or it runs on "
            "another machine; run the task again"
        )


@attrs.define(eq=False)
class HostDismissedError(StateError):
    """A state host that was taken for lost is back."""

    code = FailureCode.HOST_LOST

    host: str

    def __str__(self) -> str:
        return (
            f"state host {self.host} was silent for longer than host_timeout, or its connection broke, and was taken "
            "for lost; nothing that it does counts, and it ends by itself"
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
class HostUnreachableError(RefusedError, StateError):
    """A state host is not where it says that it is."""


@attrs.define(eq=False)
class NoPortError(RefusedError, StateError):
    """A process cannot listen: all ports that it may use are taken."""


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
    summary: str
    """The exception and where it was raised, in one line."""
    traceback: str

    def __str__(self) -> str:
        return (
            f"{self.summary}\n{self.where}, batch {self.batch}, operator {self.operator!r}; no change of this batch "
            f"was kept\n{self.traceback}"
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
class StateTooLargeError(UserError):
    """The value of one key, or one part of a large list or map, is too large to be stored."""

    operator: str
    state: str
    key: str
    """The key as text."""
    size: int
    """Bytes of the key and the value."""
    limit: int
    """The most bytes that a key may have with its value."""

    def __str__(self) -> str:
        return (
            f"state {self.state!r} of operator {self.operator!r} cannot be stored: key {self.key} has a value of "
            f"{self.size:,} bytes, more than {self.limit:,}; no change of this batch was kept. Keep less for the key, "
            "or split the value over several keys or the elements of a list or map"
        )


@attrs.define(eq=False)
class TooManyDeadLettersError(UserError):
    """A user's code fails for more keys than the operator's ``DeadLetters`` allow."""

    operator: str
    found: str
    """How many, and more than what."""
    key: str
    """The last key that failed, as text."""
    last: UserError
    """How it failed."""

    def __str__(self) -> str:
        return (
            f"operator {self.operator!r} wrote {self.found}, and no change of this batch was kept: mend the code and "
            f"start again, or allow more by DeadLetters(...). The last of them is of key {self.key}: {self.last}"
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
