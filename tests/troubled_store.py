"""A store in memory that fails as a test says, at the manifests of checkpoints, where it counts most."""

from __future__ import annotations

import contextlib
from typing import Final

from chandy.storage.checkpoints.layout import MANIFEST
from chandy.storage.errors import ChandyError, ObjectExistsError, OutcomeUnknownError

from .builders import MemoryStore

TROUBLES: Final = (
    "refused",
    "refused, there",
    "unanswered",
    "unanswered, there",
    "unanswered, later",
    "broken",
    "broken, there",
    "broken, later",
)
"""What becomes of the next manifest. Its writer hears that it was refused, has no answer, or meets a bug of the client.
It is not there then, or it is all the same, or it appears later."""


class StoreDownError(ChandyError):
    def __str__(self) -> str:
        return "expected the store to answer, it does not"


class ClientBugError(Exception):
    """What no caller expects."""


class TroubledStore(MemoryStore):
    """Objects in memory, with failures on demand. It keeps what was deleted."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.deleted: dict[str, bytes] = {}
        self.version = 0
        """Counts what may change which checkpoints count, and what these have."""
        self.trouble: str | None = None
        """One of ``TROUBLES`` for the next manifest."""
        self.hangs = False
        """Whether it answers no call about a manifest."""
        self.later: dict[str, bytes] = {}
        """Manifests that are on their way."""

    def write(self, key: str, data: bytes) -> None:
        self.version += 1
        super().write(key, data)

    def create(self, key: str, data: bytes) -> None:
        trouble = ""
        if key.endswith(MANIFEST) and self.trouble:
            trouble, self.trouble = self.trouble, None
        what, _, there = trouble.partition(", ")
        if there == "later":
            self.later[key] = data
        elif there or not trouble:
            super().create(key, data)
            # An attempt is over by the time that a later one of the same writer has its answer.
            self.later.pop(key, None)
            self.version += 1
        if what == "refused":
            raise StoreDownError
        if what == "unanswered":
            raise OutcomeUnknownError(self.uri, key, "create", "no answer", transient=True)
        if what == "broken":
            raise ClientBugError

    def land(self) -> None:
        """Let the manifests that are on their way appear, each unless there is one."""
        for key, data in self.later.items():
            with contextlib.suppress(ObjectExistsError):
                super().create(key, data)
                self.version += 1
        self.later.clear()

    def delete(self, key: str) -> None:
        self.version += 1
        if key in self.objects:
            self.deleted[key] = self.objects[key]
        super().delete(key)
