"""The base of all errors that Chandy raises on purpose, and the errors of the storage package."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar

import attrs


class FailureCode(enum.StrEnum):
    """What an error of a task means for its pipeline. It travels to the driver beside the error's text."""

    HOST_LOST = "HOST_LOST"
    """A state host is gone. What it held is lost, but its changelogs can be trusted."""
    STATE_UNUSABLE = "STATE_UNUSABLE"
    """A shard or its changelog is not what it must be."""
    UNREADABLE = "UNREADABLE"
    """A file of the checkpoint that state is restored from is missing or damaged."""


class ChandyError(Exception):
    """Base of all of Chandy's errors.

    An error has a class of its own if code catches it or reads its facts. All others are a ``RefusedError`` of their
    family.
    """

    code: ClassVar[FailureCode | None] = None
    """What the error means for the pipeline if it ends a task; None: nothing but that the task has failed."""


@attrs.define(eq=False)
class RefusedError(ChandyError):
    """Chandy cannot go on with what it was given or what it found, and has changed nothing."""

    what: str
    """What was wanted or what happened, as a short sentence without its full stop."""
    expected: str
    found: str
    advice: str = ""
    """What to do about it, in the imperative."""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.what}: expected {self.expected}, found {self.found}{advice}"


class StorageError(ChandyError):
    """Base of the errors about stores and what is in them."""


@attrs.define(eq=False)
class OperationInterruptedError(StorageError):
    """The read was cancelled: its result is no longer needed."""

    store: str

    def __str__(self) -> str:
        return (
            f"reading {self.store} was interrupted, because the pipeline is being stopped, has failed, or is another "
            "driver's by now; nothing was changed"
        )


@attrs.define(eq=False)
class ObjectMissingError(StorageError):
    """A store does not have an object that must be there."""

    code = FailureCode.UNREADABLE

    store: str
    key: str

    def __str__(self) -> str:
        return f"there is no object {self.key!r} in {self.store}"


@attrs.define(eq=False)
class ObjectExistsError(StorageError):
    """An exclusive create found the object already there."""

    store: str
    key: str

    def __str__(self) -> str:
        return f"cannot create {self.key!r} in {self.store}: it exists already"


@attrs.define(eq=False)
class UnfitError(StorageError):
    """Bytes are not what they must be. They may have come so from a store: ``verified`` reads them again."""

    expected: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


@attrs.define(eq=False)
class DamagedError(StorageError):
    """Bytes in a store differ from what was written. Nothing that depends on them may be used."""

    code = FailureCode.UNREADABLE

    store: str
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.key!r} in {self.store} is damaged: expected {self.expected}, found {self.found}; "
            "restore another checkpoint (`chandy list` shows them, `chandy verify` checks them)"
        )


@attrs.define(eq=False)
class DamagedCheckpointError(DamagedError):
    """The checkpoint to restore is damaged. The user decides which one to restore instead."""

    checkpoint: int | None
    """The damaged checkpoint; None if the damaged object belongs to no single one."""
    intact: int | None
    """The newest completed checkpoint of the pipeline that is intact, byte for byte."""

    def __str__(self) -> str:
        what = f"{self.key!r} in {self.store} is damaged: expected {self.expected}, found {self.found}; "
        if self.checkpoint is not None:
            what = f"checkpoint {self.checkpoint} cannot be restored: {what}"
        if self.intact is None:
            what += "no other checkpoint of the pipeline is intact: restore a savepoint by its URI"
        else:
            what += (
                f'the newest intact checkpoint is {self.intact}: start with restore="{self.intact}" to go on from '
                "it; the sources are then read again from there"
            )
        return what + "; `chandy verify` shows all that is damaged"


@attrs.define(eq=False)
class DamagedStartError(DamagedError):
    """The newest start record of a pipeline is damaged, so it is unknown which checkpoints count."""

    def __str__(self) -> str:
        return (
            f"{self.key!r} in {self.store} is damaged: expected {self.expected}, found {self.found}; it is the record "
            "of the driver that started last, which says what checkpoints of earlier drivers count; put an intact "
            "copy of it back, or stop every driver of this pipeline, delete this object and start again: the "
            "checkpoints themselves are not touched"
        )


@attrs.define(eq=False)
class StoreFailedError(StorageError):
    """A store could not carry out an operation: disk full, no permission, no connection."""

    store: str
    key: str
    operation: str
    reason: str
    transient: bool = False
    """Whether the operation may succeed if it is tried again. It may also have taken effect already."""
    attempts: int = 1
    """How often it was tried."""
    advice: str = ""
    """What to do about it, in the imperative."""

    def __str__(self) -> str:
        attempts = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"could not {self.operation} {self.key!r} in {self.store}: {self.reason}{attempts}{advice}"


@attrs.define(eq=False)
class OutcomeUnknownError(StoreFailedError):
    """An exclusive create may have succeeded: its answer was lost, and the store cannot be asked.

    Draw no conclusion from it: the files that the object would reference must not be deleted.
    """

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; {self.key!r} may have been created all the same, and nothing was concluded from "
            "that: try again once the store answers"
        )


_NAMED = 3
"""Objects that an error about many of them names."""


@attrs.define(eq=False)
class NotDeletedError(StoreFailedError):
    """Some of several objects could not be deleted. The others are gone."""

    failed: Mapping[str, StoreFailedError] = attrs.field(factory=dict)
    """Why each of them could not be deleted, by key."""

    @classmethod
    def of(cls, store: str, failed: Mapping[str, StoreFailedError]) -> NotDeletedError:
        """Return the error for objects of a store: at least one."""
        key, first = next(iter(failed.items()))
        transient = any(error.transient for error in failed.values())
        return cls(store, key, "delete", first.reason, transient, advice=first.advice, failed=failed)

    def __str__(self) -> str:
        if len(self.failed) == 1:
            return super().__str__()
        named = [f"{key!r} ({error.reason})" for key, error in list(self.failed.items())[:_NAMED]]
        if more := len(self.failed) - len(named):
            named.append(f"and {more} more")
        attempts = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"could not delete {len(self.failed)} objects in {self.store}: {', '.join(named)}{attempts}{advice}"


@attrs.define(eq=False)
class CodecError(StorageError):
    """JSON does not describe the value that it should."""

    type: str
    reason: str

    def __str__(self) -> str:
        return f"cannot read this JSON as a {self.type}: {self.reason}; run the same version of chandy everywhere"


@attrs.define(eq=False)
class SchemaTooNewError(StorageError):
    """A newer version of Chandy wrote a document."""

    store: str
    key: str
    found: int
    supported: int

    def __str__(self) -> str:
        return (
            f"cannot read {self.key!r} in {self.store}: it has schema {self.found}, and this version of chandy reads "
            f"schemas up to {self.supported}; upgrade chandy"
        )


@attrs.define(eq=False)
class FencedError(StorageError):
    """A higher generation has taken over the pipeline, so this one can no longer complete checkpoints."""

    store: str
    generation: int
    by: int
    owner: str
    """The driver that took over, as it describes itself."""

    def __str__(self) -> str:
        return (
            f"generation {self.generation} of the pipeline in {self.store} was fenced by generation {self.by} "
            f"({self.owner}): another driver runs this pipeline; stop one of the two"
        )


@attrs.define(eq=False)
class StorageReplacedError(FencedError):
    """A storage lacks what this pipeline has written there: it was wiped, or put back to an earlier state.

    ``by`` is the generation that is known from elsewhere, and ``owner`` says from where.
    """

    def __str__(self) -> str:
        return (
            f"the storage of the pipeline in {self.store} was wiped, or put back to an earlier state: it has nothing "
            f"of generation {self.by} ({self.owner}); no other driver needs to be stopped. Put its content back and "
            "start again; or, if it is lost, start over: with another storage or an empty one, and with outputs that "
            "are empty or sinks of another uid, because the sources are read from their beginning"
        )


class InvalidNameError(RefusedError, StorageError):
    """A name or key cannot be a path in every store."""


@attrs.define(eq=False)
class UnsafeDirectoryError(RefusedError):
    """A directory that must belong to this user alone does not."""


class InvalidPlaceError(RefusedError, StorageError):
    """A place that was given for a storage or a savepoint cannot be used."""


class NothingHereError(RefusedError, StorageError):
    """There is no such pipeline, checkpoint or savepoint at a place."""
