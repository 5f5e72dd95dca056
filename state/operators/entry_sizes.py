"""Refuses entries of state that are too large to be sent to a state host."""

from __future__ import annotations

import attrs
import numpy as np

from ..errors import StateTooLargeError
from ..format.keys import KeyCodec
from ..format.keyspace import owner_of
from ..rpc import wire
from ..rpc.access import Entries
from .chunks import lengths


@attrs.frozen
class EntrySizes:
    """The sizes of an operator's entries."""

    operator: str
    """Its uid."""
    codec: KeyCodec
    """Of its keys, to name one."""

    def check(self, entries: Entries) -> None:
        """Refuse changes one of which no message can hold.

        Raises:
            StateTooLargeError: a key with its value is larger than ``wire.LARGEST``.
        """
        if entries.keys.nbytes + entries.values.nbytes <= wire.LARGEST:
            return
        sizes = lengths(entries.keys) + lengths(entries.values)
        largest = int(np.argmax(sizes))
        if sizes[largest] > wire.LARGEST:
            raise self._too_large(entries.keys[largest].as_py(), int(sizes[largest]))

    def check_one(self, key: bytes, value: bytes | None) -> None:
        """Refuse one change, as ``check`` does."""
        size = len(key) + len(value or b"")
        if size > wire.LARGEST:
            raise self._too_large(key, size)

    def _too_large(self, where: bytes, size: int) -> StateTooLargeError:
        state, key = owner_of(where)
        return StateTooLargeError(self.operator, state, self.codec.shown(key), size, wire.LARGEST)
