"""What the checkpoint protocol knows of each query."""

from __future__ import annotations

import attrs

from ...barrier.cut import downstream_first
from ...barrier.gate import Gate
from ...state.shards import RestoreSource, ShardId
from ...storage.checkpoints.manifest import Manifest, OperatorRecord
from ...storage.ids import BatchId
from .errors import StaleQueryError
from .shard_assignment import ShardAssignment


@attrs.frozen
class StoredCheckpoint:
    """A completed checkpoint, and where its shards are."""

    root: str
    """URI of the store that has it."""
    manifest: Manifest

    def cut(self, query: str) -> BatchId | None:
        """Return the cut of a query; None if the checkpoint does not have it."""
        return next((one.batch for one in self.manifest.queries if one.name == query), None)

    def source(self, query: str, shard: ShardId) -> RestoreSource | None:
        """Return where a shard of a query is restored from; None if the checkpoint has nothing of it."""
        operator = next(
            (one for one in self.manifest.operators if (one.query, one.uid) == (query, shard.uid)), None
        )
        cut = self.cut(query)
        if operator is None or cut is None or (handle := operator.shards[shard.shard]) is None:
            return None
        return RestoreSource(self.root, self.manifest.id, cut, handle)


@attrs.define
class QueryState:
    """One query, for as long as its Spark id stays the same."""

    name: str
    query_id: str
    """Spark's id of the run; a query that went back to a checkpoint has a new one."""
    gate: Gate
    operators: tuple[OperatorRecord, ...]
    """The query's operators, without handles."""
    started_after: BatchId
    """The batch that the query was restored at; -1 if it started from the beginning."""
    restored: tuple[OperatorRecord, ...]
    """The operators as they were there, without those that did not exist then."""
    assignment: ShardAssignment
    reads: tuple[str, ...]
    committed: BatchId
    """The newest batch that is known to have committed."""
    progress: RestoreSource | None = None
    """The query's own files in the restored checkpoint, if nobody has read them since the restore."""
    is_read_back: bool = False
    """Whether the driver is reading what nobody has read."""
    stored: StoredCheckpoint | None = None
    """The latest checkpoint that has completed since the query started; None if there is none yet."""

    @property
    def surely_committed(self) -> BatchId:
        """The newest batch that must have committed: Spark begins a batch only when the one before has."""
        return max(self.committed, BatchId(self.gate.passed - 1))

    def has_begun(self, batch: BatchId) -> bool:
        """Whether a shard has begun a batch, or a later one."""
        return self.gate.passed >= batch

    def newest_source(self, shard: ShardId) -> tuple[RestoreSource | None, BatchId]:
        """Return where the newest stored state of a shard is, None if that is empty, and the last batch in it."""
        if self.stored is not None and (cut := self.stored.cut(self.name)) is not None:
            return self.stored.source(self.name, shard), cut
        resumed = self.assignment.resume_point
        return self.assignment.sources.get(shard), resumed.after if resumed else self.started_after

    def unread(self) -> tuple[RestoreSource, ...]:
        """What a checkpoint may take over from the restored one although nobody has read it since the restore."""
        return (*self.assignment.unread(), *([self.progress] if self.progress else ()))

    def verified(self) -> None:
        """Record that every byte of what was restored was read, and is as it was written."""
        self.assignment.read(self.assignment.shards)
        self.progress = None

    def operators_at(self, cut: BatchId) -> tuple[OperatorRecord, ...]:
        """Return the operators whose state a checkpoint with this cut has.

        Until a batch has run, shards hold what was restored: no state is deleted or has a new schema yet, and a new
        operator has not started. What the next batch is to delete is in the record all the same: another version of the
        program may come before it.
        """
        now = {operator.uid: operator for operator in self.operators}
        held = self.operators if cut > self.started_after else self.restored
        return tuple(attrs.evolve(one, deleting=now[one.uid].deleting_after(cut)) for one in held)


class Queries(dict[str, QueryState]):
    """The queries of a pipeline, by name."""

    def running(self, query_id: str) -> QueryState | None:
        """Return the query whose current run has this Spark id; None if that run is over."""
        return next((query for query in self.values() if query.query_id == query_id), None)

    def get_running(self, query_id: str, batch: BatchId | None = None) -> QueryState:
        """Return the query whose current run has this Spark id.

        Args:
            query_id: the id.
            batch: the batch that somebody asks about; None: no batch.

        Raises:
            StaleQueryError: that run is over.
        """
        query = self.running(query_id)
        if query is None:
            raise StaleQueryError(query_id, batch)
        return query

    @property
    def all_claimed(self) -> bool:
        """Whether hosts have claimed all shards that have changelogs.

        A checkpoint takes a shard that no host has from its source, which is not all of the state of such a shard.
        """
        return all(query.assignment.complete for query in self.values())

    def downstream_first(self) -> tuple[str, ...]:
        """Return the names of the queries, each before those whose output it reads."""
        return downstream_first(self._reads)

    def check_reads(self, name: str, reads: tuple[str, ...]) -> None:
        """Check that a query can read the output of others.

        Raises:
            DefinitionError: it cannot.
        """
        downstream_first({**self._reads, name: reads})

    @property
    def _reads(self) -> dict[str, tuple[str, ...]]:
        return {name: query.reads for name, query in self.items()}
