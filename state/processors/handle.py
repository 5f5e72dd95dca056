"""PySpark's StatefulProcessorHandle, with which a processor declares its states and sets its timers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from ...storage.checkpoints.manifest import StateKind, StateRecord
from ..errors import DefinitionError
from ..format import keyspace
from ..format.packing import Packing
from ..format.schema import Schemas, from_json, to_json
from ..format.values import StateName
from ..operators.time_mode import TimeMode
from .list_state import KeyedListState
from .map_state import KeyedMapState
from .timers import Timers
from .value_state import KeyedValueState
from .variable import CurrentKey

_NO_ID: Final = uuid.UUID(int=0)
_LONGEST_TTL: Final = 1 << 62
"""The longest time to live in milliseconds, with which every expiry fits into 64 bits."""


@attrs.frozen
class QueryInfo:
    """The query, run and batch that a processor works for, with the methods of Spark's own ``QueryInfo``."""

    query_id: uuid.UUID = _NO_ID
    run_id: uuid.UUID = _NO_ID
    batch: int = -1
    """-1 on the driver, where ``init`` runs without a batch."""

    def getQueryId(self) -> uuid.UUID:  # noqa: N802 (Spark's name)
        """Return Spark's id of the query; a query that was restored from a checkpoint has a new one."""
        return self.query_id

    def getRunId(self) -> uuid.UUID:  # noqa: N802
        """Return Spark's id of this run of the query; every restart has a new one."""
        return self.run_id

    def getBatchId(self) -> int:  # noqa: N802
        """Return the number of the batch."""
        return self.batch


class StateHandle(StatefulProcessorHandle):
    """The handle that a processor gets in ``init``.

    Unlike PySpark's handle it also has ``getQueryInfo``, as Spark's handle for Scala and Java.
    """

    def __init__(
        self,
        operator: str,
        schemas: Schemas,
        mode: TimeMode = TimeMode.NONE,
        stored: Mapping[str, StateRecord] | None = None,
        info: QueryInfo = QueryInfo(),
    ) -> None:
        """Create a handle for one run of ``init``.

        Args:
            operator: its uid, for errors.
            schemas: resolves schemas.
            mode: the time mode.
            stored: the records of the states by name, with their earlier schemas; None on the driver.
            info: the result of ``getQueryInfo``.
        """
        # PySpark's own constructor needs a connection to the JVM. This class overrides every method that uses it.
        self._operator = operator
        self._schemas = schemas
        self._mode = mode
        self._stored = stored or {}
        self._info = info
        self._open = True
        self.current = CurrentKey(operator)
        """The key whose states the processor sees."""
        self.timers = Timers(mode, operator, self.current)
        self.variables: dict[str, KeyedValueState | KeyedListState | KeyedMapState] = {}
        """The declared states by name, in order of declaration."""
        self.declared: dict[str, StateRecord] = {}
        """The records of the declared states by name, each with its current schema only."""
        self.dropped: list[str] = []
        """Names of the states for which ``deleteIfExists`` was called."""

    def seal(self) -> None:
        """Refuse further declarations, because ``init`` is over."""
        self._open = False

    # --- states ---------------------------------------------------------------------------------------------

    def getValueState(  # noqa: N802 (PySpark's name)
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ValueState:
        """Declare a value state, or return the one that was declared with the same arguments.

        Args:
            stateName: its name; it must not be empty and must not begin with "$".
            schema: of its values, a StructType or DDL.
            ttlDurationMs: milliseconds of processing time after which a value expires; None or 0: never.

        Raises:
            DefinitionError: the state was declared with other arguments before, its name or schema cannot be used, it
                has a time to live without processing time, or ``init`` is over.
        """
        record = self._record(StateKind.VALUE, stateName, schema, ttlDurationMs)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            packing = self._packing(record, name)
            self.variables[stateName] = KeyedValueState(name, prefix, packing, record.ttl_ms, self.current)
        return self.variables[stateName]  # type: ignore[return-value]

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ListState:
        """Declare a list state; with a time to live, each element expires separately.

        Args, Raises: as for ``getValueState``.
        """
        record = self._record(StateKind.LIST, stateName, schema, ttlDurationMs)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            packing = self._packing(record, name)
            self.variables[stateName] = KeyedListState(name, prefix, packing, record.ttl_ms, self.current)
        return self.variables[stateName]  # type: ignore[return-value]

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        """Declare a map state; with a time to live, each entry expires separately.

        Args:
            stateName: as for ``getValueState``.
            userKeySchema: of the map's keys, a StructType or DDL.
            valueSchema: of its values.
            ttlDurationMs: as for ``getValueState``.

        Raises:
            DefinitionError: as for ``getValueState``.
        """
        record = self._record(StateKind.MAP, stateName, valueSchema, ttlDurationMs, userKeySchema)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            keys = Packing([from_json(record.map_key or "")], StateName(self._operator, f"{stateName}.key"))
            self.variables[stateName] = KeyedMapState(
                name, prefix, keys, self._packing(record, name), record.ttl_ms, self.current
            )
        return self.variables[stateName]  # type: ignore[return-value]

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """Delete a state: its values, and its record in the checkpoint.

        If ``init`` has declared the state before, it is deleted all the same. It then cannot be used, as in PySpark.

        Raises:
            DefinitionError: ``init`` is over.
        """
        self._check(stateName)
        if self.declared.pop(stateName, None) is not None:
            del self.variables[stateName]
            self.current.deleted.add(stateName)
        if stateName not in self.dropped:
            self.dropped.append(stateName)

    # --- timers ---------------------------------------------------------------------------------------------

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Set a timer for the current key. Setting the same timer twice has no effect.

        Raises:
            StateUseError: the time mode is "None", or no key is being processed, as in ``init``.
        """
        self.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Delete a timer of the current key; nothing happens if there is none.

        Raises:
            StateUseError: as for ``registerTimer``.
        """
        self.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Return the timers of the current key, in order of time.

        Raises:
            StateUseError: as for ``registerTimer``.
        """
        return self.timers.list()

    # --- the query ------------------------------------------------------------------------------------------

    def getQueryInfo(self) -> QueryInfo:  # noqa: N802
        """Return the query, run and batch that the processor works for."""
        return self._info

    # --- inside ---------------------------------------------------------------------------------------------

    def _record(
        self,
        kind: StateKind,
        name: str,
        schema: StructType | str,
        ttl_ms: int | None,
        map_key: StructType | str | None = None,
    ) -> StateRecord:
        self._check(name)
        if name in self.dropped:
            # init runs in every batch, so the state would begin empty in every batch.
            expected = "no declaration after deleteIfExists"
            raise self._invalid(name, expected, "one", "remove the call of deleteIfExists")
        what = f"state {name!r} of operator {self._operator!r}"
        resolved = self._schemas.resolve(schema, what)
        key = None if map_key is None else self._schemas.resolve(map_key, f"the map keys of {what}")
        record = StateRecord(
            versions=(to_json(resolved),),
            kind=kind,
            map_key=None if key is None else to_json(key),
            ttl_ms=self._ttl(name, ttl_ms),
        )
        known = self.declared.setdefault(name, record)
        if known != record:
            raise self._invalid(name, f"the earlier declaration as {_described(known)}", _described(record))
        return record

    def _check(self, name: str) -> None:
        if not self._open:
            raise self._invalid(name, "a declaration in init", "one after init is over")
        if not isinstance(name, str) or not name or name.startswith(keyspace.HIDDEN):
            expected = f"a name that is not empty and does not begin with {keyspace.HIDDEN!r}"
            raise self._invalid(name, expected, repr(name))

    def _ttl(self, name: str, ttl_ms: int | None) -> int | None:
        # As in Spark, 0 means that values never expire.
        if not ttl_ms:
            return None
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 0 < ttl_ms <= _LONGEST_TTL:
            expected = f"a time to live of milliseconds, at most {_LONGEST_TTL}"
            raise self._invalid(name, expected, repr(ttl_ms))
        if self._mode is not TimeMode.PROCESSING:
            expected = "time_mode 'ProcessingTime', which a time to live needs"
            raise self._invalid(name, expected, repr(self._mode.value))
        return ttl_ms

    def _invalid(self, name: str, expected: str, found: str, advice: str = "") -> DefinitionError:
        what = f"state {name!r} of operator {self._operator!r} cannot be declared"
        return DefinitionError(what, expected, found, advice)

    def _packing(self, record: StateRecord, name: StateName) -> Packing:
        known = self._stored.get(name.state, record)
        return Packing([from_json(version) for version in known.versions], name)


def _described(record: StateRecord) -> str:
    schema = from_json(record.versions[-1]).simpleString()
    keys = "" if record.map_key is None else f" with keys {from_json(record.map_key).simpleString()}"
    ttl = "" if record.ttl_ms is None else f", {record.ttl_ms} ms to live"
    return f"a {record.kind.value} of {schema}{keys}{ttl}"


@attrs.frozen
class Declared:
    """The declarations of a processor in ``init``."""

    states: dict[str, StateRecord]
    """The declared states by name, each with its current schema only."""
    dropped: tuple[str, ...]
    """Names of the states for which ``deleteIfExists`` was called."""


def declarations(processor: StatefulProcessor, operator: str, schemas: Schemas, mode: TimeMode) -> Declared:
    """Return the declarations of a processor.

    Calls ``init`` and ``close`` of the processor, as Spark does on the driver, so pass a copy of it. The DDL texts that
    ``schemas`` learns have to be sent to the tasks.

    Raises:
        DefinitionError: as ``StateHandle.getValueState`` says.
    """
    handle = StateHandle(operator, schemas, mode)
    try:
        processor.init(handle)
    finally:
        processor.close()
    return Declared(handle.declared, tuple(handle.dropped))
