"""The base of every error that Chandy raises on purpose, and the errors of durable bytes."""

from __future__ import annotations

import enum
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

    A class of its own is for an error that somebody catches or whose facts somebody reads. All others are a
    ``RefusedError`` of their family.
    """

    code: ClassVar[FailureCode | None] = None
    """What the error means for the pipeline if it ends a task; None: nothing but that the task has failed."""


@attrs.define(eq=False)
class RefusedError(ChandyError):
    """Chandy cannot go on with what it was given or has found, and has changed nothing."""

    what: str
    """What was wanted or has happened, as a short sentence without its full stop."""
    expected: str
    found: str
    advice: str = ""
    """What to do about it, in the imperative."""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.what}: expected {self.expected}, found {self.found}{advice}"


class StorageError(ChandyError):
    """Something about durable bytes is not as it must be."""


@attrs.define(eq=False)
class ObjectMissingError(StorageError):
    """An object that must be there is not."""

    code = FailureCode.UNREADABLE

    store: str
    key: str

    def __str__(self) -> str:
        return f"expected an object {self.key!r} in {self.store}, found none"


@attrs.define(eq=False)
class ObjectExistsError(StorageError):
    """An exclusive create found the object already there."""

    store: str
    key: str

    def __str__(self) -> str:
        return f"expected to be the first to create {self.key!r} in {self.store}, but it exists already"


@attrs.define(eq=False)
class DamagedError(StorageError):
    """Bytes differ from what their record says; nothing that depends on them may go on."""

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
    """The checkpoint that is to be restored is damaged; which one to take in its place is for people to say."""

    checkpoint: int | None
    """The damaged checkpoint; None if what is damaged belongs to no single one."""
    intact: int | None
    """The newest completed checkpoint of the pipeline of which every byte is as it was written."""

    def __str__(self) -> str:
        what = f"{self.key!r} in {self.store} is damaged: expected {self.expected}, found {self.found}; "
        if self.checkpoint is not None:
            what = f"checkpoint {self.checkpoint} cannot be restored: {what}"
        if self.intact is None:
            return what + "no other checkpoint of the pipeline is intact: restore a savepoint by its URI"
        return (
            what
            + f'the newest intact checkpoint is {self.intact}: start with restore="{self.intact}" to go on from it, '
            "which reads the sources again from there"
        )


@attrs.define(eq=False)
class StoreFailedError(StorageError):
    """The store could not carry out an operation: disk full, no permission, no connection."""

    store: str
    key: str
    operation: str
    reason: str
    transient: bool = False
    """Whether the same operation may succeed a little later. What it did may have been done all the same."""
    attempts: int = 1
    """How often it was tried."""

    def __str__(self) -> str:
        often = f" ({self.attempts} attempts)" if self.attempts > 1 else ""
        return f"could not {self.operation} {self.key!r} in {self.store}: {self.reason}{often}"


@attrs.define(eq=False)
class CredentialsError(StoreFailedError):
    """The client of a store found no credentials to use, or could not use what it found."""

    sources: str = attrs.field(kw_only=True)
    """Where it looks for them, as a list in words."""

    def __str__(self) -> str:
        return f"{super().__str__()}; give credentials by {self.sources}"


@attrs.define(eq=False)
class OutcomeUnknownError(StoreFailedError):
    """An exclusive create may have succeeded: its answer was lost, and the store cannot be asked.

    Nothing may be concluded from it: what the object would reference must not be deleted.
    """

    def __str__(self) -> str:
        return (
            f"{super().__str__()}; whether {self.key!r} was created is not known: nothing of it is deleted, "
            "and whoever reads the store next will see"
        )


@attrs.define(eq=False)
class InvalidKeyError(StorageError):
    """A key or the name of a file that would lead out of its folder, or that a store cannot hold."""

    key: str

    def __str__(self) -> str:
        return (
            f"expected a relative path with '/' between its parts and neither '.', '..' nor empty parts, "
            f"found {self.key!r}"
        )


@attrs.define(eq=False)
class InvalidNameError(StorageError):
    """A name cannot be a part of a path in every store."""

    what: str
    """What is named, e.g. ``pipeline``."""
    name: str

    def __str__(self) -> str:
        return (
            f"expected a {self.what} name of 1 to 128 letters, digits, '.', '_' and '-' that begins with "
            f"a letter or digit, found {self.name!r}; choose another name"
        )


@attrs.define(eq=False)
class InvalidUriError(StorageError):
    """A storage URI that names no place."""

    uri: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.uri!r} is no storage URI: {self.reason}; "
            "write for example file:///var/lib/chandy, /var/lib/chandy or s3://bucket/prefix"
        )


@attrs.define(eq=False)
class UnknownStoreError(StorageError):
    """A storage URI whose scheme has no backend here."""

    uri: str
    scheme: str
    supported: tuple[str, ...]
    extra: str | None
    """The extra of this distribution that installs what the backend needs; None if there is none."""
    missing: str | None = None
    """The module that could not be imported, or what the backend says is missing; None: there is no backend."""

    def __str__(self) -> str:
        supported = ", ".join(f"{scheme}://" for scheme in self.supported)
        if self.missing is None:
            return f"no store for {self.scheme}:// (in {self.uri!r}); supported: {supported}, and what fsspec has"
        install = (
            f'`pip install "chandy[{self.extra}]"`' if self.extra else "install what fsspec needs for it"
        )
        return (
            f"the store for {self.scheme}:// (in {self.uri!r}) cannot be used: no {self.missing!r}; {install}"
        )


@attrs.define(eq=False)
class CodecError(StorageError):
    """JSON is not the value that it should be."""

    type: str
    reason: str

    def __str__(self) -> str:
        return (
            f"expected JSON of a {self.type}, found otherwise: {self.reason}; do both sides run one version?"
        )


@attrs.define(eq=False)
class SchemaTooNewError(StorageError):
    """A document was written by a newer version of Chandy."""

    store: str
    key: str
    found: int
    supported: int

    def __str__(self) -> str:
        return (
            f"{self.key!r} in {self.store} has schema {self.found}, this version of Chandy reads up to "
            f"schema {self.supported}: upgrade chandy"
        )


@attrs.define(eq=False)
class FencedError(StorageError):
    """A higher generation has taken the pipeline over; this one may complete nothing any more."""

    store: str
    generation: int
    by: int
    owner: str
    """Who took over, in its own words."""

    def __str__(self) -> str:
        return (
            f"generation {self.generation} of the pipeline in {self.store} was fenced by generation "
            f"{self.by} ({self.owner}): another driver runs this pipeline; stop one of the two"
        )


@attrs.define(eq=False)
class NothingHereError(StorageError):
    """A storage URI with no such pipeline, checkpoint or savepoint."""

    uri: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"expected {self.wanted} in {self.uri}, found {self.found}"


@attrs.define(eq=False)
class UnfencedStoreError(StorageError):
    """Of two creates that raced for one key not exactly one won."""

    store: str
    winners: int

    def __str__(self) -> str:
        return (
            f"expected exactly one of two racing creates to win in {self.store}, found {self.winners}: "
            "on this store two drivers could both complete checkpoints; use another store, or "
            "allow_unfenced=True if only one driver can ever run"
        )


@attrs.define(eq=False)
class SavepointPlaceError(StorageError):
    """A savepoint's folder holds something already."""

    place: str
    found: str
    """One of its objects."""
    count: int

    def __str__(self) -> str:
        return (
            f"expected an empty or new folder for the savepoint, found {self.count} objects in {self.place}, "
            f"{self.found!r} among them; say another place"
        )


@attrs.define(eq=False)
class SavepointClaimedError(StorageError):
    """A savepoint belongs to another pipeline."""

    place: str
    owner: str
    """URI of the pipeline that it belongs to."""

    def __str__(self) -> str:
        return (
            f"expected a savepoint in {self.place} that no other pipeline has claimed, but it belongs to {self.owner}, "
            "which will delete it: restore without a claim, from a copy of it"
        )
