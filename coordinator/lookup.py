"""Reads the current state of running queries from the state hosts, by key, and their operators' metrics."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from pyspark.sql.types import StructType

from ..state.errors import ChangelogBrokenError
from ..state.format.keys import KeyCodec
from ..state.format.keyspace import HIDDEN, value_prefix
from ..state.format.schema import from_json
from ..state.format.values import StateName
from ..state.local.changelog import read, shard_folder
from ..state.reader.given_key import key_values, shard_of
from ..state.reader.lookup import lookup_state
from ..state.rpc.calls import ActionClient
from ..state.rpc.messages import AskBatches, AskMetrics, HostHello, ReadValues, Values
from ..state.rpc.metrics import BatchMetrics, OperatorMetrics, RecentMetrics
from ..state.rpc.tls import Identity
from ..state.shards import RestoreSource, ResumePoint
from ..storage import runtime
from ..storage.backends.open import open_store
from ..storage.checkpoints.files import FileCache
from ..storage.checkpoints.locate import Located
from ..storage.checkpoints.manifest import StateKind
from ..storage.checkpoints.restore import restore_files
from ..storage.disk.scratch import scratch_directory
from ..storage.ids import NO_BATCH, BatchId
from .errors import ArgumentError, PipelineNameError, QueryNotRunningError, StateUnreachableError
from .execution.locked_protocol import LockedProtocol
from .protocol.shard_assignment import ShardLocations
from .recovery.runs import Runs
from .spark.progress import newest_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..state.reader.largest import KeySize
    from ..storage.checkpoints.manifest import OperatorRecord
    from ..storage.store import Store

T = TypeVar("T")
_ATTEMPTS = 100
_PAUSE_SECONDS = 0.02
_CALL_SECONDS = 30.0
"""A state host that has not answered by then is frozen or cut off."""
_SHARD_MEMORY = 16 * 1024 * 1024
"""Bytes of memory for the RocksDB of a restored shard, which is read once."""


@attrs.frozen
class Lookup:
    """Reads the state of running queries, as of their newest committed batch."""

    spark: SparkSession
    protocol: LockedProtocol
    runs: Runs
    token: str
    """The token with which calls to state hosts are authenticated."""
    identity: Identity | None
    """What state hosts on other machines want besides."""
    place: str
    """Where the driver is, in the sense of ``HostHello.place``."""
    cache: FileCache
    """Files of snapshots that this machine already has."""
    changelogs: Path
    """The directory of all changelogs."""
    clock: Callable[[], float]

    def get(self, operator: OperatorRecord, key: Any, state: str | None) -> Any:
        """Return the value of a state variable for a key; see ``CheckpointCoordinator.get``."""
        name = choose_state(operator, state)
        schema = from_json(operator.key_schema)
        values = values_of(operator.uid, schema, key)
        encoded = KeyCodec(schema).encode(values)

        where, record = value_prefix(name) + encoded, operator.states[name]
        entries = self._fetch(operator, name, schema, encoded, where, record.kind)
        return lookup_state(record, StateName(operator.uid, name), encoded, entries, int(self.clock() * 1000))

    def metrics(self, operator: OperatorRecord) -> OperatorMetrics:
        """Return the metrics of an operator; see ``CheckpointCoordinator.metrics``."""
        if not operator.query:
            raise QueryNotRunningError(operator.uid, operator.query)
        total = OperatorMetrics()
        for one in self.metrics_by_host(operator).values():
            total.add(one)
        return total

    def metrics_by_host(self, operator: OperatorRecord) -> dict[tuple[str, str], OperatorMetrics]:
        """Return the metrics of an operator of a running query, by Spark's id of the query and by state host.

        Raises:
            StateLostError, StateUnreachableError: a state host has ended.
        """
        places = self._places(operator)
        ask = AskMetrics(places.query_id, operator.uid)
        return {
            (places.query_id, host.host): self._call(host, "operator_metrics", ask, OperatorMetrics)
            for host in places.hosts
        }

    def largest(self, operator: OperatorRecord, store: Store, limit: int) -> list[KeySize]:
        """Return the keys of an operator that have the most state; see ``CheckpointCoordinator.largest``.

        Args:
            store: the pipeline's own.
            limit: how many keys to return at most.
        """
        # Imported here: most drivers never need RocksDB.
        from ..state.reader.largest import largest_keys

        latest = self.protocol.base_manifest()
        return [] if latest is None else largest_keys(Located(latest, store), operator.uid, limit)

    def batches(self, operator: OperatorRecord) -> dict[int, BatchMetrics]:
        """Return what an operator of a running query did in each of the latest batches.

        Raises:
            StateLostError, StateUnreachableError: a state host has ended.
        """
        places, parts = self._places(operator), defaultdict[int, list[BatchMetrics]](list)
        for host in places.hosts:
            ask = AskBatches(places.query_id, operator.uid)
            for part in self._call(host, "batches", ask, RecentMetrics).batches:
                parts[part.batch].append(part)
        return {batch: BatchMetrics.sum(some) for batch, some in parts.items()}

    def _fetch(
        self,
        operator: OperatorRecord,
        state: str,
        schema: StructType,
        key: bytes,
        where: bytes,
        kind: StateKind,
    ) -> dict[bytes, bytes]:
        """Return what the shard of ``key`` has at ``where`` after one batch: see ``Shard.read``."""
        for _ in range(_ATTEMPTS):
            run = self.runs.get(operator.query) if operator.query else None
            if run is None or run.ended:
                raise QueryNotRunningError(operator.uid, operator.query)
            places = self._places(operator)
            # The shards move while a query starts or goes back to a checkpoint.
            if places.query_id == run.query_id:
                committed = newest_committed(run.logs())
                if state in operator.deleting_after(committed):
                    # What is there is that of an earlier version.
                    return {}
                # A changelog is deleted once hosts have replayed it.
                with contextlib.suppress(ChangelogBrokenError):
                    found = self._fetch_from(places, committed, operator, schema, key, where, kind)
                    if self._places(operator) == places:
                        return found
            runtime.sleep(_PAUSE_SECONDS)
        raise QueryNotRunningError(operator.uid, operator.query)

    def _places(self, operator: OperatorRecord) -> ShardLocations:
        return self.protocol.locations(operator.query, operator.uid)

    def _fetch_from(
        self,
        places: ShardLocations,
        committed: BatchId,
        operator: OperatorRecord,
        schema: StructType,
        key: bytes,
        where: bytes,
        kind: StateKind,
    ) -> dict[bytes, bytes]:
        request = ReadValues(places.query_id, operator.uid, (where.hex(),), committed, kind)
        for host in places.hosts:
            # It does not matter which shard has the key: only one of them does.
            if found := self._call(host, "read", request, Values).entries:
                return {bytes.fromhex(one): bytes.fromhex(value) for one, value in found.items()}
        if places.untouched:
            number = shard_of(self.spark, schema, key, len(operator.shards))
            if number in places.untouched:
                source, point = places.untouched[number], places.resume_point
                return self._restored(operator.uid, number, source, point, where, kind)
        return {}

    def _call(self, host: HostHello, action: str, request: object, answer: type[T]) -> T:
        client = ActionClient(
            host.address_from(self.place),
            self.token,
            StateUnreachableError,
            identity=self.identity,
            timeout=_CALL_SECONDS,
        )
        try:
            return client.call(action, request, answer)
        finally:
            client.close()

    def _restored(
        self,
        uid: str,
        number: int,
        source: RestoreSource | None,
        resume_point: ResumePoint | None,
        where: bytes,
        kind: StateKind,
    ) -> dict[bytes, bytes]:
        """Read a shard that no host has opened yet: from its snapshot and its changelog."""
        if source is None and resume_point is None:
            return {}
        # Imported here: most drivers never need RocksDB.
        from ..state.host.memory import Memory
        from ..state.host.shard import Shard

        with scratch_directory("lookup") as folder:
            directory = folder / "shard"
            if source is not None:
                restore_files(open_store(source.root), source.handle, directory, self.cache)
            shard = Shard(uid, directory, Memory(_SHARD_MEMORY), source.batch if source else NO_BATCH)
            try:
                if resume_point is not None:
                    shard.replay(
                        read(shard_folder(self.changelogs, resume_point.query_id, uid, number), resume_point)
                    )
                return shard.read([where], shard.position, kind)
            finally:
                shard.close()


def choose_state(operator: OperatorRecord, state: str | None) -> str:
    """Return the name of the state variable that a user asks for; None stands for the only one.

    Raises:
        PipelineNameError: there is none of this name, or no name was given and there are several.
    """
    known = tuple(sorted(name for name in operator.states if not name.startswith(HIDDEN)))
    if state is None and len(known) == 1:
        return known[0]
    if state is None or state not in known:
        raise PipelineNameError(
            f"operator {operator.uid!r} cannot be asked for this state",
            f"one of its states ({', '.join(known) or 'it has none'})",
            "no name" if state is None else repr(state),
            "name one: get(..., state=NAME)",
        )
    return state


def values_of(uid: str, schema: StructType, key: Any) -> tuple[Any, ...]:
    """Return the values of the key columns of an operator, given as ``key_values`` takes them.

    Raises:
        ArgumentError: the key has other columns than the operator.
    """
    values = key_values(schema, key)
    if values is None:
        raise ArgumentError(
            f"operator {uid!r} has no such key",
            f"values of the key columns {', '.join(schema.names)}",
            repr(key),
            "pass a tuple in this order, a dict by column, or the value itself if there is one column",
        )
    return values
