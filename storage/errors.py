"""The base of every error that Chandy raises on purpose, and the errors of durable bytes."""

from __future__ import annotations

import attrs


class ChandyError(Exception):
    """Base of all of Chandy's errors.

    A subclass is an attrs class whose fields are the facts, and whose ``__str__`` says what was expected,
    what was found and what to do.
    """


class StorageError(ChandyError):
    """Something about durable bytes is not as it must be."""


@attrs.define(eq=False)
class ObjectMissingError(StorageError):
    """An object that must be there is not."""

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

    store: str
    key: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"{self.key!r} in {self.store} is damaged: expected {self.expected}, found {self.found}; "
            "restore another checkpoint (`chandy list` shows them, `chandy verify` checks them)"
        )
