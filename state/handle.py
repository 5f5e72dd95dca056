"""PySpark's StatefulProcessorHandle over values that were fetched ahead.

A kind of state is a class with a ``prefix``, ``enter`` and ``leave``: the run of a processor enters every
state with what the shard holds for a key, lets the processor work, and takes from ``leave`` what the shard
is to hold.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, NoReturn

import msgpack
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from . import schema as schemas
from .errors import DeclarationError, NoKeyError, UnsupportedStateError
from .schema import Schemas
from .values import StateName, ValueCodec


class _Outside(enum.Enum):
    """Stands for the state of no key."""

    KEY = "outside of any key"


class HeldValue(ValueState):
    """One value for each key. What a processor got or gave is a copy: changing it later changes no state."""

    def __init__(self, schema: StructType, name: StateName) -> None:
        """Declare the state.

        Raises:
            UnsupportedStateError: a field has a type that a state cannot hold.
        """
        self.schema = schema
        self.prefix: bytes = msgpack.packb(name.state)
        """What a key's bytes are appended to for the state's key in the shard. As msgpack text it is
        self-delimiting and never begins with a zero byte, so no two states share a key, nor has one a
        shard's own."""
        self._name = name
        self._codec = ValueCodec(schema, name)
        self._data: bytes | _Outside | None = _Outside.KEY

    def enter(self, data: bytes | None) -> None:
        """Turn to another key, for which the shard holds ``data``."""
        self._data = data

    def leave(self) -> bytes | None:
        """Turn away from the key; return what the shard is to hold for it."""
        data = self._current()
        self._data = _Outside.KEY
        return data

    def exists(self) -> bool:
        """Whether the key has a value."""
        return self._current() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Return the key's value, None if it has none."""
        data = self._current()
        return None if data is None else self._codec.decode(data)

    def update(self, newValue: tuple[Any, ...]) -> None:  # noqa: N803 (PySpark's name)
        """Set the key's value.

        Raises:
            StateTypeError: the value does not fit the state's schema.
        """
        self._current()
        self._data = self._codec.encode(newValue)

    def clear(self) -> None:
        """Remove the key's value."""
        self._current()
        self._data = None

    def _current(self) -> bytes | None:
        if isinstance(self._data, _Outside):
            raise NoKeyError(self._name.operator, self._name.state)
        return self._data


class StateHandle(StatefulProcessorHandle):
    """What a processor declares its states with, in ``init``."""

    def __init__(self, operator: str, schemas: Schemas) -> None:
        # PySpark's own constructor takes a connection to the JVM; every method of it is overridden here.
        self._operator = operator
        self._schemas = schemas
        self._open = True
        self.states: dict[str, HeldValue] = {}
        """The declared states by name, in order of declaration."""

    def seal(self) -> None:
        """End the declarations: ``init`` is over."""
        self._open = False

    def declared(self) -> dict[str, str]:
        """Return the schema of each state by its name, as Spark's JSON."""
        return {name: schemas.to_json(state.schema) for name, state in self.states.items()}

    def getValueState(  # noqa: N802 (PySpark's name)
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ValueState:
        """Declare a value state, or return the one that was declared with this name and schema.

        Raises:
            DeclarationError: it is declared with another schema, without a name, or after ``init``.
            SchemaError: the schema is not one of a struct.
            UnsupportedStateError: with a time to live, or a type that a state cannot hold.
        """
        if ttlDurationMs is not None:
            self._unsupported("a time to live of states")
        if not self._open:
            raise DeclarationError(stateName, self._operator, "states are declared in init, and init is over")
        if not isinstance(stateName, str) or not stateName:
            raise DeclarationError(str(stateName), self._operator, "a state needs a name")
        resolved = self._schemas.resolve(schema, f"state {stateName!r} of operator {self._operator!r}")
        known = self.states.get(stateName)
        if known is None:
            known = self.states[stateName] = HeldValue(resolved, StateName(self._operator, stateName))
        elif known.schema != resolved:
            detail = f"it has schema {known.schema.simpleString()} already, and now {resolved.simpleString()}"
            raise DeclarationError(stateName, self._operator, detail)
        return known

    def getListState(self, *args: Any, **kwargs: Any) -> ListState:  # noqa: N802
        """Refuse: there is no list state."""
        self._unsupported("list state")

    def getMapState(self, *args: Any, **kwargs: Any) -> MapState:  # noqa: N802
        """Refuse: there is no map state."""
        self._unsupported("map state")

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Refuse: there are no timers."""
        self._unsupported("timers")

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Refuse: there are no timers."""
        self._unsupported("timers")

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Refuse: there are no timers."""
        self._unsupported("timers")

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """Refuse: a state cannot be dropped as a whole."""
        self._unsupported("deleteIfExists")

    def _unsupported(self, feature: str) -> NoReturn:
        raise UnsupportedStateError(self._operator, feature)


def declared_states(processor: StatefulProcessor, operator: str, schemas: Schemas) -> dict[str, str]:
    """Return the schema of each state that a processor declares, as Spark's JSON by name.

    Runs ``init`` and ``close`` of the processor, as Spark does on the driver, so give it a copy. What
    ``schemas`` learns of DDL has to travel to the tasks.

    Raises:
        DeclarationError, SchemaError, UnsupportedStateError: as ``StateHandle`` says.
    """
    handle = StateHandle(operator, schemas)
    try:
        processor.init(handle)
    finally:
        processor.close()
    return handle.declared()
