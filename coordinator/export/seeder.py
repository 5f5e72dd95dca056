"""The processor that writes an exported state into the state of Spark's own transformWithState; it runs in workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from ...state.format.schema import from_json
from ...state.reader.by_key import EXPIRES
from ...storage.manifest import StateKind, StateRecord


class Seeder(StatefulProcessor):
    """Declares the states of an operator, and puts into them what the rows of its initial state have."""

    def __init__(self, states: Mapping[str, StateRecord], columns: Mapping[str, str], timers: str) -> None:
        """Make it.

        Args:
            states: the state variables by name.
            columns: the column of each state variable in the initial state by name.
            timers: the column of the timers.
        """
        self._states = dict(states)
        self._columns = dict(columns)
        self._timers = timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        self._handle = handle
        self._variables = {name: _declared(handle, name, record) for name, record in self._states.items()}

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
        """Write what a key has, and has not expired. What has a time to live gets all of it again."""
        now = timerValues.getCurrentProcessingTimeInMs()
        for name, record in self._states.items():
            held, variable = initialState[self._columns[name]], self._variables[name]
            if held is None:
                continue
            items = [held] if record.kind is StateKind.VALUE else held
            alive = [one for one in items if one[EXPIRES] is None or now < one[EXPIRES]]
            values = from_json(record.versions[-1])
            if record.kind is StateKind.VALUE:
                for one in alive:
                    variable.update(plain(one["value"], values))
            elif record.kind is StateKind.LIST:
                # An empty list is an error.
                if alive:
                    variable.put([plain(one["value"], values) for one in alive])
            else:
                assert record.map_key is not None, "the record of a map says what its keys are"
                keys = from_json(record.map_key)
                for one in alive:
                    variable.updateValue(plain(one["key"], keys), plain(one["value"], values))
        for time in initialState[self._timers] or ():
            self._handle.registerTimer(time)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Yield nothing; there are no rows."""
        return iter(())


def plain(value: Any, dtype: DataType) -> Any:
    """Return a value as PySpark's states take it, given as it comes in a row: there, structs may be dicts.

    A state takes the fields of a dict for its keys, without a word.
    """
    if value is None:
        return None
    if isinstance(dtype, StructType):
        return tuple(plain(value[field.name], field.dataType) for field in dtype.fields)
    if isinstance(dtype, ArrayType):
        return [plain(one, dtype.elementType) for one in value]
    if isinstance(dtype, MapType):
        pairs = value.items() if isinstance(value, Mapping) else value
        return {plain(key, dtype.keyType): plain(one, dtype.valueType) for key, one in pairs}
    return value


def _declared(handle: StatefulProcessorHandle, name: str, record: StateRecord) -> Any:
    values = from_json(record.versions[-1])
    if record.kind is StateKind.VALUE:
        return handle.getValueState(name, values, record.ttl_ms)
    if record.kind is StateKind.LIST:
        return handle.getListState(name, values, record.ttl_ms)
    assert record.map_key is not None, "the record of a map says what its keys are"
    return handle.getMapState(name, from_json(record.map_key), values, record.ttl_ms)
