"""PySpark's StatefulProcessorHandle: what a processor declares its states with, and where it sets its timers."""

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

from ...storage.manifest import StateKind, StateRecord
from ..errors import DeclarationError
from ..format import keyspace
from ..format.packing import Packing
from ..format.schema import Schemas, from_json, to_json
from ..format.values import StateName
from ..operators.time_mode import TimeMode
from .list_state import HeldList
from .map_state import HeldMap
from .timers import Timers
from .value_state import HeldValue
from .variable import CurrentKey

_NO_ID: Final = uuid.UUID(int=0)
_LONGEST_TTL: Final = 1 << 62
"""Milliseconds, after which a time still has 64 bits."""


@attrs.frozen
class QueryInfo:
    """Which query, run and batch a processor works for; the methods are those of Spark's own ``QueryInfo``."""

    query_id: uuid.UUID = _NO_ID
    run_id: uuid.UUID = _NO_ID
    batch: int = -1
    """-1 on the driver, where ``init`` runs without a batch."""

    def getQueryId(self) -> uuid.UUID:  # noqa: N802 (Spark's name)
        """Spark's id of the query; a query that went back to a checkpoint has a new one."""
        return self.query_id

    def getRunId(self) -> uuid.UUID:  # noqa: N802
        """Spark's id of this run of the query; another one after every restart."""
        return self.run_id

    def getBatchId(self) -> int:  # noqa: N802
        """The number of the batch."""
        return self.batch


class StateHandle(StatefulProcessorHandle):
    """What a processor gets in ``init``.

    Beyond PySpark's it has ``getQueryInfo``, as Spark's handle for Scala and Java.
    """

    def __init__(
        self,
        operator: str,
        schemas: Schemas,
        mode: TimeMode = TimeMode.NONE,
        stored: Mapping[str, StateRecord] | None = None,
        info: QueryInfo = QueryInfo(),
    ) -> None:
        """Make a handle for one run of ``init``.

        Args:
            operator: its uid, for errors.
            schemas: reads schemas.
            mode: the time mode.
            stored: what is known of the states' earlier schemas, by name; None on the driver.
            info: what ``getQueryInfo`` says.
        """
        # PySpark's own constructor takes a connection to the JVM; every method of it is overridden here.
        self._operator = operator
        self._schemas = schemas
        self._mode = mode
        self._stored = stored or {}
        self._info = info
        self._open = True
        self.current = CurrentKey(operator)
        """The key that the states turn to."""
        self.timers = Timers(mode, operator, self.current)
        self.variables: dict[str, HeldValue | HeldList | HeldMap] = {}
        """The declared states by name, in order of declaration."""
        self.declared: dict[str, StateRecord] = {}
        """What was declared, by name; each with its present schema only."""
        self.dropped: list[str] = []
        """Names of states that ``deleteIfExists`` was called for."""

    def seal(self) -> None:
        """End the declarations: ``init`` is over."""
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
            stateName: its name; not empty, and not beginning with "$".
            schema: of its values, a StructType or DDL.
            ttlDurationMs: milliseconds of processing time after which a value expires; None or 0: never.

        Raises:
            DeclarationError: it is declared otherwise already, cannot have this name, has a time to live without
                processing time, or ``init`` is over.
            SchemaError: the schema is not one of a struct.
            UnsupportedStateError: a field has a type that a state cannot hold.
        """
        record = self._record(StateKind.VALUE, stateName, schema, ttlDurationMs)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            packing = self._packing(record, name)
            self.variables[stateName] = HeldValue(name, prefix, packing, record.ttl_ms, self.current)
        return self.variables[stateName]  # type: ignore[return-value]

    def getListState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        schema: StructType | str,
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> ListState:
        """Declare a list state; with a time to live, every element expires by itself.

        Args, Raises: as for ``getValueState``.
        """
        record = self._record(StateKind.LIST, stateName, schema, ttlDurationMs)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            packing = self._packing(record, name)
            self.variables[stateName] = HeldList(name, prefix, packing, record.ttl_ms, self.current)
        return self.variables[stateName]  # type: ignore[return-value]

    def getMapState(  # noqa: N802
        self,
        stateName: str,  # noqa: N803
        userKeySchema: StructType | str,  # noqa: N803
        valueSchema: StructType | str,  # noqa: N803
        ttlDurationMs: int | None = None,  # noqa: N803
    ) -> MapState:
        """Declare a map state; with a time to live, every entry expires by itself.

        Args:
            stateName: as for ``getValueState``.
            userKeySchema: of the map's keys, a StructType or DDL.
            valueSchema: of its values.
            ttlDurationMs: as for ``getValueState``.

        Raises:
            DeclarationError, SchemaError, UnsupportedStateError: as for ``getValueState``.
        """
        record = self._record(StateKind.MAP, stateName, valueSchema, ttlDurationMs, userKeySchema)
        if stateName not in self.variables:
            name, prefix = StateName(self._operator, stateName), keyspace.value_prefix(stateName)
            keys = Packing([from_json(record.map_key or "")], StateName(self._operator, f"{stateName}.key"))
            self.variables[stateName] = HeldMap(
                name, prefix, keys, self._packing(record, name), record.ttl_ms, self.current
            )
        return self.variables[stateName]  # type: ignore[return-value]

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803
        """Delete a state that the processor no longer declares: its values, and what the checkpoint knows of it.

        Raises:
            DeclarationError: the same ``init`` declares it, or is over. (Spark takes the first and fails later.)
        """
        self._check(stateName)
        if stateName in self.declared:
            raise DeclarationError(stateName, self._operator, "deleteIfExists was called for it, too")
        if stateName not in self.dropped:
            self.dropped.append(stateName)

    # --- timers ---------------------------------------------------------------------------------------------

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Set a timer for the current key; one that is there already stays as it is.

        Raises:
            TimeModeError: the time mode is "None".
            NoKeyError: no key is being processed, as in ``init``.
        """
        self.timers.register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        """Take back a timer of the current key; nothing happens if there is none.

        Raises:
            TimeModeError, NoKeyError: as for ``registerTimer``.
        """
        self.timers.delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        """Return the timers of the current key, in order of time.

        Raises:
            TimeModeError, NoKeyError: as for ``registerTimer``.
        """
        return self.timers.list()

    # --- the query ------------------------------------------------------------------------------------------

    def getQueryInfo(self) -> QueryInfo:  # noqa: N802
        """Return which query, run and batch the processor works for."""
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
            raise DeclarationError(name, self._operator, "deleteIfExists was called for it, too")
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
            detail = f"it is declared as {_told(known)} already, and now as {_told(record)}"
            raise DeclarationError(name, self._operator, detail)
        return record

    def _check(self, name: str) -> None:
        if not self._open:
            raise DeclarationError(name, self._operator, "states are declared in init, and init is over")
        if not isinstance(name, str) or not name or name.startswith(keyspace.HIDDEN):
            raise DeclarationError(
                str(name),
                self._operator,
                f"a state needs a name that does not begin with {keyspace.HIDDEN!r}",
            )

    def _ttl(self, name: str, ttl_ms: int | None) -> int | None:
        # 0 is none, as in Spark.
        if not ttl_ms:
            return None
        if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or not 0 < ttl_ms <= _LONGEST_TTL:
            detail = (
                f"its time to live has to be a number of milliseconds up to {_LONGEST_TTL}, found {ttl_ms!r}"
            )
            raise DeclarationError(name, self._operator, detail)
        if self._mode is not TimeMode.PROCESSING:
            detail = f"a time to live needs time_mode 'ProcessingTime', found {self._mode.value!r}"
            raise DeclarationError(name, self._operator, detail)
        return ttl_ms

    def _packing(self, record: StateRecord, name: StateName) -> Packing:
        known = self._stored.get(name.state, record)
        return Packing([from_json(version) for version in known.versions], name)


def _told(record: StateRecord) -> str:
    schema = from_json(record.versions[-1]).simpleString()
    keys = "" if record.map_key is None else f" with keys {from_json(record.map_key).simpleString()}"
    ttl = "" if record.ttl_ms is None else f", {record.ttl_ms} ms to live"
    return f"a {record.kind.value} of {schema}{keys}{ttl}"


@attrs.frozen
class Declared:
    """What a processor declares in ``init``."""

    states: dict[str, StateRecord]
    """By name, each with its present schema only."""
    dropped: tuple[str, ...]
    """Names that ``deleteIfExists`` was called for."""


def declarations(processor: StatefulProcessor, operator: str, schemas: Schemas, mode: TimeMode) -> Declared:
    """Return what a processor declares.

    Runs ``init`` and ``close`` of the processor, as Spark does on the driver, so give it a copy. What
    ``schemas`` learns of DDL has to travel to the tasks.

    Raises:
        DeclarationError, SchemaError, UnsupportedStateError: as ``StateHandle`` says.
    """
    handle = StateHandle(operator, schemas, mode)
    try:
        processor.init(handle)
    finally:
        processor.close()
    return Declared(handle.declared, tuple(handle.dropped))
