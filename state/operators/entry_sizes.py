"""Refuses entries of state that are too large to be sent to a state host."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..errors import StateTooLargeError
from ..format.keys import KeyCodec
from ..format.keyspace import owner_of
from ..rpc import wire
from ..rpc.access import Entries
from .chunks import lengths


def check_sizes(changes: Iterable[Entries], codec: KeyCodec, operator: str) -> None:
    """Refuse changes one of which no message can hold.

    Args:
        changes: what a task is about to apply.
        codec: of the operator's keys, to name the key.
        operator: its uid.

    Raises:
        StateTooLargeError: a key with its value is larger than ``wire.LARGEST``.
    """
    for entries in changes:
        if entries.keys.nbytes + entries.values.nbytes <= wire.LARGEST:
            continue
        sizes = lengths(entries.keys) + lengths(entries.values)
        largest = int(np.argmax(sizes))
        if sizes[largest] > wire.LARGEST:
            state, key = owner_of(entries.keys[largest].as_py())
            raise StateTooLargeError(
                operator, state, str(codec.decode(key)), int(sizes[largest]), wire.LARGEST
            )
