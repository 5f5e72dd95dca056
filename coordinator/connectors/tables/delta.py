"""The sink for Delta tables, through delta-rs: rows and position in one commit of the table's log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import quote

import attrs
from typing_extensions import override

from ....storage.errors import ChandyError
from ...error_texts import without_places, without_secrets
from ...extras import needs_extra
from ...sinks.two_phase.contract import Batch, Committer, Epoch, Fence, Position, Publish
from ...sinks.two_phase.errors import OutputError
from ...sinks.two_phase.limits import Limits, check_key
from ...sinks.two_phase.sink_set import check_publish
from ...sinks.two_phase.staged import StagedRows, StagedSink
from ..files.formats import too_long
from ..record import check_record
from ..values import far_year
from .conflicts import Conflicts
from .delta_history import newest_commits
from .delta_record import DeltaRecord, Version
from .schema import check_schema, limits_of, reading
from .transient_errors import unavailable
from .upserting import Mode, check_mode, last_rows, unmarked

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

_GENERATED: Final = b"delta.generationExpression"
_TEXT: Final = b"__CHAR_VARCHAR_TYPE_STRING"
"""Keys of a column's metadata: what its values are computed by, and Spark's type of it where Delta has ``string``."""

_SIZED = re.compile(r"(?:var)?char\((\d+)\)", re.IGNORECASE)
_NOT_PERMITTED = re.compile(
    r"\b(401|403)\b|access ?denied|permission ?denied|forbidden|unauthori[sz]ed|unauthenticated",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"invalid data found|cast error|cannot cast|schema error|invariant|constraint|failed validation"
    r"|unsupported|not support|append.?only",
    re.IGNORECASE,
)


@attrs.frozen
class DeltaSink(StagedSink):
    """Appends the rows of each checkpoint to a Delta table, or updates rows by key, in one commit of the table.

    Any reader of Delta sees whole epochs alone. Other programs may write into the table at the same time.

    The table keeps what was published by Delta's application transactions: ``chandy/<pipeline>/<query>/<uid>`` has
    the newest epoch, and with ``#generation``, ``#store`` and ``#table`` after it the life that publishes, and hashes
    of the pipeline's store and of the table's id. For people, each commit has the same as text in its ``commitInfo``,
    under ``chandy``.

    ``RESTORE`` of the table takes rows back, and not the application transactions. Chandy finds it in the table's
    history, takes the position of the version that was restored, and says with ``OutputLostError`` what is missing. Do
    not set ``delta.setTransactionRetentionDuration`` in a way that Spark's own streams could not bear.

    With ``mode="upsert"`` a row replaces those with the same key, and of rows of one epoch with one key the last one
    counts. An epoch is in memory as a whole then; otherwise one staged file at a time is.
    """

    table: str
    """URI or path of the table, such as ``s3://bucket/table``."""
    storage_options: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    """Options of delta-rs for the store that the table is in, such as credentials and the endpoint."""
    uid: str = attrs.field(default="sink", kw_only=True)
    """Names the sink in its query. Keep it across restarts."""
    mode: Mode = attrs.field(
        default="append", kw_only=True, validator=attrs.validators.in_(("append", "upsert"))
    )
    """Whether rows are added, or replace those with the same ``key``."""
    key: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=tuple[str, ...])
    """The columns that name a row, for ``mode="upsert"``."""
    deleted: str | None = attrs.field(default=None, kw_only=True)
    """Boolean column whose true rows delete their key. It is not a column of the table. All columns of these rows must
    be such that the table takes them."""
    publish: Publish = attrs.field(default="checkpoint", kw_only=True)
    """``batch``: an upsert publishes each batch at once, in a commit of its own, at least once. See
    ``query.guarantee``."""
    partition_by: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=tuple[str, ...])
    """The columns by which a new table is partitioned; a table that is there must be partitioned by them."""
    create_table: bool = attrs.field(default=True, kw_only=True)
    """Whether a table that is not there is made when the query starts."""
    timeout: float = attrs.field(default=60.0, kw_only=True, validator=attrs.validators.gt(0))
    """Seconds after which a request to a remote store is given up, with its retries; also what it may take to read as
    much of the table's history as is needed."""

    target: ClassVar[str] = "Delta"

    def __attrs_post_init__(self) -> None:
        check_mode(self.name, self.mode, self.key)
        check_publish(f"DeltaSink for {self.table}", self.publish, self.mode)

    @property
    def name(self) -> str:
        """What messages call the table."""
        return f"the Delta table {self.table}"

    @override
    def check(self, schema: pa.Schema) -> Limits:
        """Check that the table takes rows of this schema, and make the table if it is not there.

        Returns:
            Which columns take no nulls, also nested ones, and how long texts may be.

        Raises:
            OutputError: it does not, or it may not be read or made.
            SetupError: delta-rs is not installed.
            TargetUnavailableError: its store cannot be reached.
        """
        check_key(self.name, schema, self.key)
        if unknown := [one for one in self.partition_by if one not in schema.names]:
            raise OutputError(
                f"{self.name} cannot be written",
                f"partition columns among the rows' columns: {', '.join(schema.names)}",
                ", ".join(unknown),
                "correct `partition_by` of the sink",
            )
        if self.mode == "upsert" and (unquotable := [name for name in schema.names if "`" in name]):
            raise OutputError(
                f"{self.name} cannot be written",
                "columns without a backtick in their names, which delta-rs cannot match rows by",
                ", ".join(unquotable),
                "rename them in the query",
            )
        schema = unmarked(self.name, schema, self.mode, self.key, self.deleted)
        self._check_partitions(schema, self.partition_by)
        try:
            found = self.open()
        except _TableMissingError:
            if not self.create_table:
                raise
            self._create(schema)
            found = self.open()
        table = _schema_of(found)
        check_schema(schema, table, self.name)
        self._check_rules(found, schema)
        partitions = tuple(found.metadata().partition_columns)
        self._check_partitions(schema, partitions)
        if self.partition_by and partitions != self.partition_by:
            raise OutputError(
                f"{self.name} cannot be written",
                f"a table that is partitioned by {', '.join(self.partition_by)}",
                f"one by {', '.join(partitions)}" if partitions else "one without partitions",
                "leave out `partition_by` of the sink, or name another table",
            )
        return attrs.evolve(limits_of(table), lengths=_lengths(table))

    def _check_rules(self, table: DeltaTable, schema: pa.Schema) -> None:
        """Refuse upserts that the table's properties and metadata do not permit, whatever the rows are.

        Raises:
            OutputError: rows may only be added to the table, or have columns that are computed of others.
        """
        if self.mode != "upsert":
            return
        found = [
            f"column {name!r}, which is computed as {text} and is not among the rows'"
            for name, text in _generated(_schema_of(table)).items()
            if name not in schema.names
        ]
        if table.metadata().configuration.get("delta.appendOnly", "false").lower() == "true":
            found.append("delta.appendOnly=true")
        if found:
            raise OutputError(
                f"{self.name} cannot be written",
                "a table whose rows the sink may replace, and all of their columns",
                "; ".join(found),
                'use mode="append", or change the table or the query',
            )

    def _check_partitions(self, schema: pa.Schema, columns: tuple[str, ...]) -> None:
        """Refuse partitions that delta-rs cannot write.

        Of the decimal ``-0.75`` it makes ``0.-75``, and no reader opens the table again. A float it writes with all of
        its digits, of which a file's name may not have so many, and infinity as ``inf``, which is not Delta's word.

        Raises:
            OutputError: a column's values cannot name partitions.
        """
        import pyarrow.types as types

        for name in columns:
            kind = schema.field(name).type if name in schema.names else None
            if kind is not None and (
                types.is_decimal(kind)
                or types.is_floating(kind)
                or types.is_nested(kind)
                or types.is_binary(kind)
                or types.is_large_binary(kind)
            ):
                raise OutputError(
                    f"{self.name} cannot be written",
                    "partition columns of integers, texts, dates, timestamps or booleans",
                    f"column {name!r}, which is {kind}",
                    "partition by another column, or cast this one to a text or an integer",
                )

    @override
    def unpublishable(self, rows: pa.Table) -> str | None:
        # delta-rs cannot read a table whose log has other years, be it as the least or the greatest value of a file.
        return far_year(rows, rows.column_names) or too_long(
            rows, self.partition_by, lambda name, value: f"{name}={quote(value, safe='')}"
        )

    @override
    def recover(self, fence: Fence) -> Committer:
        """Read the table's record, and write this life into it: that shuts out earlier ones.

        Raises:
            As in the contract; ``OutputError`` if there is no table.
        """
        record = DeltaRecord(fence)
        conflicts = Conflicts(self.name)
        while True:
            table = self.open()
            version = table.version()
            found = self.position(record, table)
            own = found.taken_by(fence) if found else Position.first(fence)
            if own == found:
                return _Committer(self, fence, own)
            with self.explained():
                try:
                    _commit_nothing(table, record.properties(own, table))
                except _conflict() as error:
                    conflicts.met(version, self.conflict(error))
                    continue
            return _Committer(self, fence, own)

    def open(self, version: Version | None = None) -> DeltaTable:
        """Return a version of the table, the newest if none is given.

        Raises:
            OutputError: there is none, or it may not be read.
            SetupError: delta-rs is not installed.
            TargetUnavailableError: the store cannot be reached.
        """
        delta = _client()
        with self.explained():
            found: DeltaTable = delta.DeltaTable(self.table, storage_options=self._options())
            if version is not None:
                found.load_as_version(version)
            return found

    def position(self, record: DeltaRecord, table: DeltaTable) -> Position | None:
        """Return a writer's record, as it is true of the rows of the newest version of the table.

        Raises:
            TargetUnavailableError: the table's history cannot be read now.
        """
        with self.explained():
            if record.position(table) is None:
                return None
            commits = newest_commits(self.table, self._options(), record.writer, self.timeout)
            found = record.position(table, commits)
            there = record.position(record.standing_on(table, commits, self.open), commits)
        return found and attrs.evolve(found, epoch=there.epoch if there else None)

    def conflict(self, error: Exception) -> str:
        """Return what delta-rs says of a commit that it has not made, and that may be made at another attempt.

        Raises:
            OutputError: it cannot write into this table, or not such rows.
        """
        if _REFUSED.search(without_places(str(error))):
            raise _explain(self.name, error, self.storage_options or {}) from error
        return without_secrets(str(error), self.storage_options or {})

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of delta-rs into those of the contract, except a conflict of commits."""
        try:
            yield
        except (ChandyError, _conflict()):
            raise
        except Exception as error:  # delta-rs raises bare exceptions, too
            raise _explain(self.name, error, self.storage_options or {}) from error

    def _create(self, schema: pa.Schema) -> None:
        from deltalake import DeltaTable, Schema

        with self.explained():
            DeltaTable.create(
                self.table,
                schema=Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(self.partition_by) or None,
                storage_options=self._options(),
            )

    def _options(self) -> dict[str, str]:
        seconds = f"{self.timeout:g}s"
        return {"timeout": seconds, "retry_timeout": seconds, **(self.storage_options or {})}


class _TableMissingError(OutputError):
    """There is no table."""


class _Committer(Committer):
    """Opens the table for each commit, so that what it checks and what it commits on are one version."""

    def __init__(self, sink: DeltaSink, fence: Fence, own: Position) -> None:
        self._sink = sink
        self._fence = fence
        self._own = own
        self._record = DeltaRecord(fence)
        self._version: int | None = None
        """The version that this connection has committed last."""

    @property
    @override
    def position(self) -> int | None:
        return self._own.epoch

    @override
    def commit(self, epoch: Epoch) -> None:
        self._commit(StagedRows(epoch), attrs.evolve(self._own, epoch=epoch.id))

    @override
    def upsert(self, batch: Batch) -> None:
        self._commit(StagedRows(batch), self._own)

    def _commit(self, staged: StagedRows, new: Position) -> None:
        conflicts = Conflicts(self._sink.name)
        while True:
            table = self._sink.open()
            version = table.version()
            found = self._found(table)
            check_record(found, self._own, self._fence, self._sink.name)
            with self._sink.explained():
                try:
                    self._publish(table, staged, self._record.properties(new, table))
                except _conflict() as error:
                    # The record says whether it was another writer of the table, or a later life of this one.
                    conflicts.met(version, self._sink.conflict(error))
                    continue
            self._own, self._version = new, table.version()
            return

    def _found(self, table: DeltaTable) -> Position | None:
        # Only another program's commit can have restored an earlier version.
        if table.version() != self._version:
            return self._sink.position(self._record, table)
        with self._sink.explained():
            return self._record.position(table)

    def _publish(self, table: DeltaTable, staged: StagedRows, properties: CommitProperties) -> None:
        before = table.version()
        if staged.of.rows:
            put = self._upsert if self._sink.mode == "upsert" else self._append
            put(table, staged, properties)
        if table.version() == before:
            # A merge that changes nothing, such as deletions of keys that are not there, makes no version. The position
            # needs one.
            _commit_nothing(table, properties)

    def _append(self, table: DeltaTable, staged: StagedRows, properties: CommitProperties) -> None:
        from deltalake import write_deltalake

        schema = _schema_of(table)
        with reading(staged, schema, self._sink.name, _generated(schema)) as rows:
            write_deltalake(table, rows, mode="append", commit_properties=properties)

    def _upsert(self, table: DeltaTable, staged: StagedRows, properties: CommitProperties) -> None:
        sink, deleted = self._sink, self._sink.deleted
        rows = last_rows(staged.tables(), _schema_of(table), sink.key, deleted, sink.name, fill=False)
        merge = table.merge(
            rows,
            _same_key(rows.select(list(sink.key))),
            source_alias="new",
            target_alias="old",
            commit_properties=properties,
        )
        if deleted is None:
            merge = merge.when_matched_update_all().when_not_matched_insert_all()
        else:
            mark = f"new.{_quoted(deleted)}"
            merge = merge.when_matched_delete(f"coalesce({mark}, false)")
            merge = merge.when_matched_update_all(except_cols=[deleted])
            merge = merge.when_not_matched_insert_all(f"NOT coalesce({mark}, false)", except_cols=[deleted])
        merge.execute()


def _commit_nothing(table: DeltaTable, properties: CommitProperties) -> None:
    table.create_write_transaction(
        [],
        mode="append",
        schema=table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=properties,
    )


def _schema_of(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _generated(table: pa.Schema) -> dict[str, str]:
    """Return the columns that delta-rs computes where rows do not have them, and by what."""
    said = {field.name: (field.metadata or {}).get(_GENERATED) for field in table}
    return {name: text.decode() for name, text in said.items() if text is not None}


def _lengths(table: pa.Schema) -> dict[str, int]:
    """Return how many characters texts of columns may have, which Delta's own type does not say."""
    said = {field.name: (field.metadata or {}).get(_TEXT, b"").decode() for field in table}
    found = {name: _SIZED.fullmatch(text) for name, text in said.items()}
    return {name: int(sized[1]) for name, sized in found.items() if sized}


def _same_key(keys: pa.Table) -> str:
    """Return when a row of the table has one of these keys. A null equals a null, as in Spark's GROUP BY."""
    # Where it is not needed, it would keep delta-rs from passing over files. Columns of both kinds are joined slowly.
    equal = "IS NOT DISTINCT FROM" if any(column.null_count for column in keys.columns) else "="
    return " AND ".join(f"(old.{_quoted(name)} {equal} new.{_quoted(name)})" for name in keys.column_names)


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _explain(name: str, error: Exception, options: Mapping[str, str]) -> ChandyError:
    """Return the contract's error for one of delta-rs. What it does not know may pass, and is tried for a while."""
    from deltalake.exceptions import SchemaMismatchError, TableNotFoundError

    text = without_secrets(str(error), options)
    if _NOT_PERMITTED.search(without_places(text)):
        return OutputError(
            f"{name} cannot be used",
            "the permission to read and write it",
            text,
            "give the driver credentials that may do that, by the environment or `storage_options`",
        )
    if isinstance(error, TableNotFoundError):
        return _TableMissingError(
            f"{name} cannot be used", "a Delta table", text, "create it, or set create_table=True"
        )
    if isinstance(error, SchemaMismatchError) or _REFUSED.search(without_places(text)):
        return OutputError(
            f"{name} refuses rows",
            "rows that the table takes",
            text,
            "correct the rows in the query, or change the table, and start the pipeline again",
        )
    return unavailable(name, text)


def _conflict() -> type[Exception]:
    """Return the error of a commit that was not made because of another one."""
    from deltalake.exceptions import CommitFailedError

    return CommitFailedError


def _client() -> ModuleType:
    needed = "delta-rs, the package deltalake"
    with needs_extra("delta", what="the sink for Delta tables cannot be used", needed=needed):
        import deltalake
    return deltalake
