"""The transactional sink for any data source in Python that has a stream writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.sql.utils import to_str
from typing_extensions import override

from ....storage.backends.open import open_store
from ....storage.backends.probe import probe_exclusive_create
from ....storage.errors import InvalidPlaceError, ObjectExistsError
from ....storage.uri import is_same_store
from ...errors import WriterError
from ...fields import filled, optional, refuse
from ...permit import Permit
from ...sinks.guarantee import Guarantee, Level
from ...sinks.two_phase.contract import (
    Committer,
    Epoch,
    Fence,
    Position,
    Staged,
    TwoPhaseSink,
    WriteContext,
)
from ...sinks.two_phase.errors import OutputTakenError, TargetUnavailableError
from ...spark.data_sources import binary_as_bytes, registered
from ..record import check_record
from . import messages
from .record import At, BegunCommit, Record, RecordEntry
from .writing import ConfiguredSource, check_picklable, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

ATTEMPTS = 20
"""How often a life tries to take the record over while others write it."""


def _is_source(owner: object, field: attrs.Attribute[Any], value: object) -> None:
    if isinstance(value, str) and value.strip():
        return
    if not (isinstance(value, type) and issubclass(value, DataSource)):
        refuse(
            owner,
            field.name,
            value,
            "a subclass of pyspark.sql.datasource.DataSource, or its registered name",
        )


def _as_spark_has_them(options: Mapping[str, Any]) -> dict[str, str]:
    # Spark leaves out what is None, too.
    return {name: text for name, value in options.items() if (text := to_str(value)) is not None}


@attrs.frozen
class _Rows:
    """What a writer needs to know of the rows, and the writer of one batch."""

    source: ConfiguredSource
    schema: str
    """As Spark's JSON."""
    binary_as_bytes: bool
    """Whether binary values are ``bytes`` in rows, or else ``bytearray``."""
    writer: DataSourceStreamWriter = attrs.field(repr=False, eq=False)

    @property
    def parsed(self) -> StructType:
        return _parsed(self.schema)

    def maker(self) -> Callable[[pa.RecordBatch], list[Row]]:
        """Return what makes rows of a batch as Spark makes them for a writer."""
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        schema = self.parsed

        def rows_of(batch: pa.RecordBatch) -> list[Row]:
            table = pa.Table.from_batches([batch])
            return ArrowTableToRowsConversion.convert(table, schema, binary_as_bytes=self.binary_as_bytes)

        return rows_of


@attrs.frozen
class DataSourceSink(TwoPhaseSink):
    """Runs the stream writer of a data source that was written for PySpark, unchanged, once for each checkpoint.

    ``write`` runs in the tasks of each batch, as in Spark. What it writes must stay invisible until ``commit``. That
    gets the messages of all batches of a checkpoint in one list, by batch and partition, and as ``batchId`` the id of
    the checkpoint: it ascends, with gaps, and has nothing to do with Spark's number of a batch. ``abort`` gets what
    will never be committed, as far as the driver knows of it, with an id that has never been committed. Both run in the
    driver's own process, each time on a new writer.

    What was committed is recorded in the pipeline's store, because a data source has no place for it. If a driver dies
    in between, ``commit`` is called again with the same messages and ``batchId``. So rows come exactly once if it then
    does nothing, or the same again. A ``ConnectionError`` or ``TimeoutError`` of ``commit`` is a target that is away,
    and leads to such calls, too. Any other exception ends the pipeline.

    Rows are appended (``overwrite`` is false): output mode ``complete`` is refused. What is committed cannot be taken
    back, so a pipeline cannot go back behind it.
    """

    target: ClassVar[str] = "a data source"
    output_modes: ClassVar[frozenset[str]] = frozenset({"append", "update"})

    source: type[DataSource] | str = attrs.field(validator=_is_source)
    """The class, or the name under which ``spark.dataSource.register`` knows it."""
    options: Mapping[str, Any] = attrs.field(
        factory=dict, kw_only=True, converter=_as_spark_has_them, repr=False
    )
    """What Spark would get by ``option``. Logs do not show them."""
    uid: str = attrs.field(default="sink", kw_only=True, validator=filled)
    """Names the sink in its query. Keep it across restarts."""
    record: str | None = attrs.field(default=None, kw_only=True, validator=optional(filled))
    """URI of a folder for the record of what was committed, on any store that creates objects exclusively. None: the
    pipeline's own store. Choose a place beside the target if pipelines are moved to other stores by savepoints: then
    the record does not have to move."""
    _rows: _Rows | None = attrs.field(default=None, kw_only=True, alias="_rows", repr=False, eq=False)

    @property
    @override
    def guarantee(self) -> Guarantee:
        return Guarantee(
            Level.IF_IDEMPOTENT,
            "rows are committed with the checkpoint that has them; after a crash in between, the stream writer's "
            "commit is called again with the same messages and batchId",
        )

    @override
    def for_rows(self, rows: DataFrame) -> DataSourceSink:
        """Find the data source, and make the writer whose copies write in the tasks.

        Raises:
            WriterError: there is no such data source, or it has no stream writer.
            DataSourceFailedError: it has raised.
        """
        made_by = self.source if isinstance(self.source, type) else registered(rows.sparkSession, self.source)
        if made_by is None:
            raise WriterError(
                f"data source {self.source!r} cannot be the sink of a query",
                "the name of a data source in Python",
                "none that is registered under it",
                "register it by spark.dataSource.register, or pass its class",
            )
        return self.for_schema(made_by, rows.schema, binary_as_bytes(rows.sparkSession))

    def for_schema(
        self, made_by: type[DataSource], schema: StructType, binary_as_bytes: bool = True
    ) -> DataSourceSink:
        """Return the sink with a new writer for rows of a schema. ``made_by`` is the data source's class.

        Raises:
            As ``for_rows``.
        """
        source = ConfiguredSource(made_by, tuple(self.options.items()))
        writer = source.writer(schema)
        return attrs.evolve(self, _rows=_Rows(source, schema.json(), binary_as_bytes, writer))

    @override
    def check(self, schema: pa.Schema) -> None:
        """Check that tasks can be given the writer, and that the record's place can keep it.

        Raises:
            DataSourceFailedError: the writer cannot be pickled.
            WriterError: the store of ``record`` does not create exclusively, or is none.
            StoreFailedError: it cannot be reached or written.
        """
        check_picklable(self._bound.source, self._bound.writer)
        if self.record is None:
            return
        try:
            probe_exclusive_create(open_store(self.record))
        except InvalidPlaceError as error:
            raise WriterError(
                f"what is committed cannot be recorded in {self.record}",
                error.expected,
                f"{error.what}: {error.found}",
                "choose another place for `record`, or leave it out",
            ) from error

    @override
    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        """Have the writer write one partition of a batch, and keep its message.

        Raises:
            DataSourceFailedError: it has raised, or its message cannot be kept.
        """
        bound = self._bound
        where = f"batch {context.batch}, partition {context.partition}"
        rows, message = write(bound.source.name, bound.writer, batches, bound.maker(), where)
        return messages.keep(rows, message, context)

    @override
    def pre_commit(self, epoch: int, staged: Sequence[Staged]) -> str:
        return messages.note_of(self._bound.schema, staged)

    @override
    def abort(self, staged: Iterable[Staged], epoch: int) -> None:
        bound = self._bound
        if found := messages.of_staged(staged, bound.source.name):
            bound.source.abort(bound.parsed, found, epoch)

    @override
    def recover(self, fence: Fence) -> Committer:
        """Take the record over, and commit again what an earlier life may or may not have committed.

        Raises:
            As in the contract; what ``commit`` raises.
            DamagedError: the record cannot be read.
        """
        record = Record(open_store(self.record or fence.store), fence.writer)
        for _ in range(ATTEMPTS):
            found = record.newest()
            own = taken_over(found.entry.position if found else None, fence, record.store.uri)
            if found is None or own != found.entry.position:
                entry = RecordEntry(own, self._begun(found, fence))
                try:
                    found = record.follow(found, entry)
                except ObjectExistsError:
                    continue
            committer = _Committer(self._bound.source, record, fence, found)
            committer.finish()
            return committer
        raise TargetUnavailableError(
            record.store.uri, f"others have written the record {ATTEMPTS} times", is_understood=True
        )

    def _begun(self, found: At | None, fence: Fence) -> BegunCommit | None:
        """Return the epoch that has begun, with its files where they are now."""
        if found is None or found.entry.begun is None:
            return None
        begun = found.entry.begun
        # A store that was moved as a whole has taken the record and the files along.
        is_moved = self.record is None and is_same_store(begun.root, found.entry.position.store)
        return attrs.evolve(begun, root=fence.store) if is_moved else begun

    @property
    def _bound(self) -> _Rows:
        assert self._rows is not None, "a sink is made for the rows of its query before anything else"
        return self._rows


def taken_over(found: Position | None, fence: Fence, place: str) -> Position:
    """Return the position at which a life begins.

    Args:
        found: what the record has; None if there is no record.
        fence: whose life it is.
        place: URI of the store with the record.

    Raises:
        FencedError, OutputTakenError: see ``Position.taken_by``.
        OutputTakenError: the checkpoint has the sink, and there is no record of it here.
    """
    if found is not None:
        return found.taken_by(fence)
    first = Position.first(fence)
    if fence.restored is None:
        return first
    if not fence.may_take_over:
        raise OutputTakenError(
            f"sink {fence.sink!r} of query {fence.query!r} cannot commit",
            f"the record of what it has committed, in {place}",
            "none: the checkpoint comes from a pipeline with another store, or the record was deleted",
            "set `record` of the sink to that store's URI, or to wherever that sink keeps it; or, if nothing was "
            "committed after this checkpoint and that pipeline will not run again, permit to go on without it",
            wanted=Permit(taken_output={fence.name: f"unrecorded@{fence.restored.published or 0}"}),
        )
    return attrs.evolve(first, epoch=fence.restored.published)


class _Committer(Committer):
    """Knows the newest entry that it has seen. If there is a newer one, creating the next one fails."""

    def __init__(self, source: ConfiguredSource, record: Record, fence: Fence, newest: At) -> None:
        self._source = source
        self._record = record
        self._fence = fence
        self._newest = newest

    @property
    @override
    def position(self) -> int | None:
        return self._newest.entry.position.epoch

    @override
    def commit(self, epoch: Epoch) -> None:
        # What cannot be read is found before anything has begun.
        schema, found = messages.of_epoch(epoch, self._source.name)
        self._follow(RecordEntry(self._newest.entry.position, BegunCommit(epoch.record, epoch.root)))
        self._complete(epoch.id, schema, found)

    def finish(self) -> None:
        """Commit the epoch that has begun, if there is one."""
        begun = self._newest.entry.begun
        if begun is not None:
            schema, found = messages.of_epoch(Epoch(begun.epoch, begun.root), self._source.name)
            self._complete(begun.epoch.id, schema, found)

    def _complete(self, epoch: int, schema: str, found: Sequence[WriterCommitMessage]) -> None:
        if found:
            self._source.commit(_parsed(schema), found, epoch)
        self._follow(RecordEntry(attrs.evolve(self._newest.entry.position, epoch=epoch)))

    def _follow(self, entry: RecordEntry) -> None:
        try:
            self._newest = self._record.follow(self._newest, entry)
        except ObjectExistsError:
            newest = self._record.newest()
            found = newest.entry.position if newest else None
            check_record(found, self._newest.entry.position, self._fence, self._record.store.uri)
            raise TargetUnavailableError(
                self._record.store.uri, "the record was written by another connection", is_understood=True
            ) from None


def _parsed(schema: str) -> StructType:
    return StructType.fromJson(json.loads(schema))
