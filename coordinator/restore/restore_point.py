"""Going back to a checkpoint: choosing it, and what each query and each shard gets of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import attrs

from ...state.format.evolution import evolved, shown
from ...state.format.schema import bare, from_json
from ...state.shards import RestoreSource, ShardId
from ...storage import runtime
from ...storage.backends.open import open_store
from ...storage.backends.retrying import interruptible
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.files import FileCache
from ...storage.checkpoints.layout import checkpoint_of
from ...storage.checkpoints.locate import LATEST as LATEST
from ...storage.checkpoints.locate import Located, find
from ...storage.checkpoints.manifest import CheckpointKind, Manifest, OperatorRecord, OutputRecord
from ...storage.checkpoints.restore import restore_files
from ...storage.checkpoints.verification import missing_object, newest_intact, verify
from ...storage.errors import DamagedCheckpointError, DamagedError, SchemaTooNewError, StorageError
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from ...storage.logs import logger
from ..errors import RestoreError
from ..permit import Permit, Permits
from ..protocol.state_machine import PipelineStateMachine
from ..spark.logs.compact_log import DEFAULT_INTERVAL
from ..spark.logs.compatibility import check_logs
from ..spark.seeding import seed

log = logger(__name__)

NONE = "none"
"""What a user says to restore nothing; ``LATEST``: the latest checkpoint."""


@attrs.frozen
class RestorePoint:
    """A completed checkpoint and where its bytes are."""

    manifest: Manifest
    root: str
    """URI of the store that its keys are relative to."""
    is_adopted: bool = False
    """Whether it has what one query has adopted from plain Spark."""

    @property
    def is_savepoint(self) -> bool:
        """Whether it stands apart from the pipeline's chain of checkpoints."""
        return self.manifest.kind is CheckpointKind.SAVEPOINT

    def operator(self, uid: str) -> OperatorRecord | None:
        """Return an operator as it was; None if there was none of this uid."""
        return next((op for op in self.manifest.operators if op.uid == uid), None)

    def operators(self, query: str, declared: Iterable[OperatorRecord]) -> tuple[OperatorRecord, ...]:
        """Return those of a query's operators that were there, as they were."""
        found = (self.operator(operator.uid) for operator in declared)
        return tuple(operator for operator in found if operator is not None and operator.query == query)

    def sources(self, query: str) -> dict[ShardId, RestoreSource]:
        """Return where the shards of a query's operators come from, without those that held nothing."""
        checkpoint = CheckpointId(-1) if self.is_savepoint else self.manifest.id
        return {
            ShardId(operator.uid, number): RestoreSource(self.root, checkpoint, self.batch(query), handle)
            for operator in self.manifest.operators
            if operator.query == query
            for number, handle in enumerate(operator.shards)
            if handle is not None
        }

    def progress(self, query: str) -> RestoreSource | None:
        """Return the files of a query's own that the next checkpoint can share; None if there are none."""
        record = next((record for record in self.manifest.queries if record.name == query), None)
        if record is None or self.is_savepoint:
            return None
        return RestoreSource(self.root, self.manifest.id, record.batch, record.files)

    def has(self, query: str) -> bool:
        """Return whether the query was there."""
        return any(record.name == query for record in self.manifest.queries)

    def batch(self, query: str) -> BatchId:
        """Return the last batch of a query that belongs to it; -1 if the query was not there."""
        return next((q.batch for q in self.manifest.queries if q.name == query), NO_BATCH)

    def outputs(self, query: str) -> tuple[OutputRecord, ...]:
        """Return what was to be published of a query's output."""
        return next((q.outputs for q in self.manifest.queries if q.name == query), ())


@attrs.frozen
class RestoredQuery:
    """A query that is ready to start again."""

    query_id: str
    """Spark's new id for it."""
    sink_log: dict[str, Path] | None
    """The log of its file sink by the names of its files; empty if it had none; None if no checkpoint has the query."""
    is_read: bool = True
    """Whether every byte of it was read in the store."""


def choose(catalog: Catalog, restore: str | int | RestorePoint) -> RestorePoint | None:
    """Return the checkpoint or savepoint that a user wants to restore, None if there is nothing to restore.

    Args:
        catalog: the pipeline's catalog.
        restore: "none", or what ``locate.find`` takes: an id, or the URI of a savepoint. "latest" is the newest, or
            what a user chose before if no checkpoint has completed since. Or one that was found already.

    Raises:
        NothingHereError: there is none.
        DamagedCheckpointError: the latest is damaged. Names the newest one that is intact.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    if isinstance(restore, RestorePoint):
        return restore
    if restore == NONE:
        return None
    if restore == LATEST and not (chosen := catalog.chosen()):
        latest = _intact_latest(catalog)
        return RestorePoint(latest, catalog.store.uri) if latest else None
    found = find(catalog, chosen if restore == LATEST else restore)
    if restore == LATEST:
        log.info("no checkpoint has completed since one was chosen, which is restored again", chosen=chosen)
        _check_complete(catalog, found)
    return RestorePoint(found.manifest, found.store.uri)


def known(catalog: Catalog, chosen: RestorePoint | None) -> tuple[Manifest, ...]:
    """Return the completed checkpoints that a coordinator starts with: those that can be read.

    Those behind a checkpoint that the user chose are not verified, whatever they say: they are what the user did not
    choose, most likely because of damage, so none that is known to be whole is given up for them.

    Args:
        catalog: the pipeline's catalog.
        chosen: the checkpoint or savepoint that the user chose to restore, so that unreadable ones do not matter.

    Raises:
        SchemaTooNewError: a newer version of Chandy wrote a checkpoint, and the user chose none.
    """
    entries = catalog.entries()
    for entry in entries:
        if chosen or not entry.problem:
            continue
        if isinstance(entry.problem, SchemaTooNewError):
            raise entry.problem
        log.warning("a checkpoint can no longer be restored; the others still can", error=str(entry.problem))
    completed = (entry.completed for entry in entries if entry.completed)
    last = chosen.manifest.id if chosen and not chosen.is_savepoint else None
    return tuple(
        attrs.evolve(manifest, unverified=True) if last is not None and manifest.id > last else manifest
        for manifest in completed
    )


def _intact_latest(catalog: Catalog) -> Manifest | None:
    """Return the latest checkpoint, None if there is none. All its objects are there.

    Raises:
        DamagedCheckpointError: it is damaged. Names the newest one that is intact.
    """
    try:
        latest = catalog.latest()
    except DamagedError as error:
        raise _damaged(catalog, error, checkpoint_of(error.key)) from None
    if latest:
        _check_complete(catalog, Located(latest, catalog.store))
    return latest


def _check_complete(catalog: Catalog, found: Located) -> None:
    if missing := missing_object(found.store, found.manifest):
        error = DamagedError(found.store.uri, missing, "an object", "none")
        raise _damaged(catalog, error, found.manifest.id)


def damage(catalog: Catalog, point: RestorePoint, interrupted: runtime.Flag) -> DamagedCheckpointError | None:
    """Check whether a checkpoint is damaged, by reading every byte of it.

    Args:
        catalog: the pipeline's catalog, in which an intact checkpoint is looked for.
        point: the checkpoint, which could not be restored.
        interrupted: ends the reading once it is set.

    Returns:
        An error that names a damaged object and the newest intact checkpoint; None if the checkpoint is intact.

    Raises:
        OperationInterruptedError: the reading has ended before anything was found.
    """
    problems = verify(interruptible(open_store(point.root), interrupted), point.manifest).problems
    if not problems:
        return None
    found = problems[0].error(point.root)
    return _damaged(Catalog(interruptible(catalog.store, interrupted)), found, point.manifest.id)


def find_damage(
    catalog: Catalog, interrupted: runtime.Flag, point: RestorePoint
) -> DamagedCheckpointError | None:
    """Do as ``damage`` does; return None, too, if the store cannot be read now, or the reading is interrupted."""
    try:
        return damage(catalog, point, interrupted)
    except StorageError as error:
        log.warning("cannot look for damage", error=str(error))
        return None


def _damaged(
    catalog: Catalog, found: DamagedError, checkpoint: CheckpointId | None
) -> DamagedCheckpointError:
    intact = newest_intact(catalog)
    return DamagedCheckpointError(
        found.store, found.key, found.expected, found.found, checkpoint, intact.id if intact else None
    )


def base_point(protocol: PipelineStateMachine) -> RestorePoint | None:
    """Return the checkpoint that a pipeline's state grew from, if it is one of its own."""
    manifest = protocol.checkpoints.retained.base_manifest
    return RestorePoint(manifest, protocol.root) if manifest else None


def suspect(protocol: PipelineStateMachine, restored: RestorePoint) -> RestorePoint:
    """Return the checkpoint to look for damage in if what was restored cannot be read.

    That is the restored one, or the latest, which has taken its bytes over, if retention has dropped the restored one.
    """
    if restored.is_savepoint or protocol.checkpoints.retained.find(restored.manifest.id) is not None:
        return restored
    return base_point(protocol) or restored


def same_key(was: str, now: str) -> bool:
    """Return whether key columns of these schemas, as Spark's JSON, have the same keys: by name, type and order.

    Two plans of one query may differ in whether a column can be null, and in its metadata, where Spark keeps the
    delay of a watermark. Neither is part of a key.
    """
    return was == now or bare(from_json(was)) == bare(from_json(now))


def check_operator(
    point: RestorePoint | None, operator: OperatorRecord, dropped: Collection[str] = ()
) -> OperatorRecord:
    """Return an operator with all versions of its states; refuse one that cannot take up its restored state.

    Args:
        point: what is restored.
        dropped: the states that it deletes.

    Raises:
        RestoreError, StateSchemaError: the shards, the key columns or a state differ.
    """
    was = point.operator(operator.uid) if point else None
    if point is None or was is None:
        return operator
    if len(was.shards) != len(operator.shards):
        raise RestoreError(
            f"operator {operator.uid!r} does not fit the checkpoint",
            f"{len(was.shards)} shards",
            f"{len(operator.shards)}",
            f"use shards={len(was.shards)}, and change the parallelism instead; or rewrite the state by a "
            "SavepointWriter, with other shards",
        )
    if not same_key(was.key_schema, operator.key_schema):
        raise RestoreError(
            f"operator {operator.uid!r} does not fit the checkpoint",
            f"the key columns {shown(from_json(was.key_schema))}",
            shown(from_json(operator.key_schema)),
            "use the same key, or give the operator with the new key another uid",
        )
    return evolved(was, operator, dropped, point.batch(was.query))


def check_query(point: RestorePoint | None, name: str, uids: Iterable[str], permits: Permits) -> None:
    """Refuse a query that would leave restored state behind.

    Raises:
        RestoreError: the checkpoint has operators of this query that the query no longer has.
    """
    if point is None:
        return
    left = [op.uid for op in point.manifest.operators if op.query == name and op.uid not in set(uids)]
    wanted = Permit(dropped_state=dict.fromkeys(left, point.manifest.id))
    if not permits.use(wanted):
        raise RestoreError(
            f"query {name!r} does not fit checkpoint {point.manifest.id}",
            "all operators of the query that are in the checkpoint",
            f"no {', '.join(map(repr, left))}",
            f"keep these uids, or drop their state by {permits.advice(wanted)}",
        )


def check_outputs(point: RestorePoint | None, name: str, uids: Collection[str], permits: Permits) -> None:
    """Refuse a query that would leave output unpublished.

    Raises:
        RestoreError: the checkpoint has output of sinks that the query no longer has, and it may not be published yet.
    """
    records = point.outputs(name) if point is not None else ()
    left = [record.sink for record in records if record.epochs and record.sink not in uids]
    if point is None or not left:
        return
    wanted = Permit(new_output={name: point.manifest.id})
    if not permits.use(wanted):
        raise RestoreError(
            f"query {name!r} does not fit checkpoint {point.manifest.id}",
            "all sinks of which it has output that may not be published yet",
            f"no sink {', '.join(map(repr, left))}",
            f"keep these sinks and their uids; or pass {permits.advice(wanted)}, and that output is lost",
        )


def restore_query(
    point: RestorePoint,
    name: str,
    directory: Path,
    cache: FileCache | None,
    interrupted: runtime.Flag,
    *,
    compact_interval: int = DEFAULT_INTERVAL,
    location: str | None = None,
) -> RestoredQuery:
    """Make a query's working checkpoint directory from a checkpoint.

    Args:
        point: the checkpoint; it has the query.
        name: the query.
        directory: the working directory to make; the restored files come to lie beside it.
        cache: files that the machine has already.
        interrupted: ends the restore once it is set.
        compact_interval, location: as for ``seed``.

    Raises:
        OperationInterruptedError: nobody wants it any more.
        DamagedError, ObjectMissingError: a file is not as it was written; nothing goes on with it.
        RestoreError: a newer Spark has written it, and this one cannot read it.
    """
    record = next(query for query in point.manifest.queries if query.name == name)
    restored = directory.with_name("restored")
    store = interruptible(open_store(point.root), interrupted)
    report = restore_files(store, record.files, restored, cache)
    check_logs(restored / WORKING, point.manifest.versions.get("pyspark", "of unknown version"))
    log = restored / SINK
    return RestoredQuery(
        seed(restored / WORKING, directory, compact_interval=compact_interval, location=location),
        {path.name: path for path in log.iterdir()} if log.is_dir() else {},
        is_read=not report.unread_bytes,
    )


WORKING = "working"
"""Where in a query's snapshot the files of its working checkpoint directory are."""
SINK = "sink"
"""Where in a query's snapshot the log of its file sink is."""
