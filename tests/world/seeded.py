"""A bug that is put into the product's text."""

from __future__ import annotations

from types import ModuleType

import attrs
import pytest

from ..mutation import mutate


@attrs.frozen
class SeededBug:
    """A bug, and the seed from which runs find it."""

    name: str
    seed: int
    owner: type | ModuleType
    method: str
    right: str
    wrong: str

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """Put it into the product."""
        mutate(patch, self.owner, self.method, self.right, self.wrong)
