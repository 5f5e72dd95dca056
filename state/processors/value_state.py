"""Value state: one value for each key."""

from __future__ import annotations

import enum
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import ValueState

from ..format.packing import Packing, expiry_of
from ..format.values import StateName
from .variable import CurrentKey, is_live


class NoKey(enum.Enum):
    """Marks that no key is being processed; None is the state of a key without a value."""

    NO_KEY = "no key"


NO_KEY: Final = NoKey.NO_KEY


class KeyedValueState(ValueState):
    """One value for each key. A processor gets and gives copies: changing them later changes no state.

    A value with a time to live exists until the batch's timestamp reaches the update's timestamp plus the time to live.
    It keeps this expiry even if another time to live is declared later.
    """

    def __init__(
        self, name: StateName, prefix: bytes, packing: Packing, ttl_ms: int | None, current: CurrentKey
    ) -> None:
        self.prefix = prefix
        self.ttl_ms = ttl_ms
        self._name = name
        self._packing = packing
        self._current = current
        self._data: bytes | NoKey | None = NO_KEY

    # --- for the engine -------------------------------------------------------------------------------------

    def enter(self, held: bytes | None) -> None:
        """Enter the current key, for which the shard has stored ``held``."""
        self._data = held

    def leave(self) -> bytes | None:
        """Leave the key; return the value to store for it."""
        data = self._inside()
        self._data = NO_KEY
        return data

    def latest(self, data: bytes | None) -> int | None:
        """Return when the value expires, None if it never does."""
        return None if data is None else expiry_of(data)

    def clean(self) -> int | None:
        """Remove the value if it has expired, otherwise return when it expires."""
        data = self._inside()
        if data is None:
            return None
        if is_live(data, self._current.now):
            return expiry_of(data)
        self._data = None
        return None

    # --- for the processor ----------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Return whether the key has a value."""
        data = self._inside("checking value state exists")
        return data is not None and is_live(data, self._current.now)

    def get(self) -> tuple[Any, ...] | None:
        """Return the key's value, None if it has none."""
        data = self._inside("getting value state")
        if data is None or not is_live(data, self._current.now):
            return None
        return self._packing.unpack_row(data)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 (PySpark's name)
        """Set the key's value.

        Raises:
            StateTypeError: the value does not fit the state's schema.
        """
        self._inside("updating value state")
        expiry = None if self.ttl_ms is None else self._current.now + self.ttl_ms
        self._data = self._packing.pack_row(newValue, expiry)

    def clear(self) -> None:
        """Remove the key's value."""
        self._inside("clearing value state")
        self._data = None

    def _inside(self, doing: str = "getting state") -> bytes | None:
        if isinstance(self._data, NoKey):
            raise self._current.no_state(self._name.state, doing)
        return self._data
