"""The sink for Iceberg tables, through PyIceberg: rows and position in one commit of the table's metadata."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import attrs
from typing_extensions import override

from ....storage.codec import from_json_of_any_version, to_json
from ....storage.errors import ChandyError
from ...error_texts import without_places, without_secrets
from ...errors import SetupError
from ...extras import needs_extra
from ...sinks.two_phase.contract import Committer, Epoch, Fence, Position
from ...sinks.two_phase.errors import OutputError
from ...sinks.two_phase.limits import Limits, check_key
from ...sinks.two_phase.staged import StagedRows, StagedSink
from ..record import check_record
from ..values import far_year, not_a_number
from .call_timeouts import within
from .conflicts import Conflicts
from .schema import check_schema, limits_of, reading
from .transient_errors import unavailable
from .upserting import Mode, check_mode, last_rows, unmarked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot

T = TypeVar("T")

_NOT_PERMITTED = re.compile(
    r"access ?denied|permission ?denied|forbidden|unauthori[sz]ed|readonly|read-only", re.IGNORECASE
)


@attrs.frozen
class IcebergSink(StagedSink):
    """Appends the rows of each checkpoint to an Iceberg table, or replaces rows by key, in one commit of the table.

    Any reader of Iceberg sees whole epochs alone. Other programs may write into the table at the same time.

    The table keeps what was published in its property ``chandy.position.<pipeline>/<query>/<uid>``. It changes in the
    commit that adds the rows, and stays when snapshots expire; ``chandy.table.<...>`` has the table's UUID. A new life
    of the pipeline adds an empty snapshot: with it, no commit of an earlier life fits any more.

    Rolling the table back to an earlier snapshot takes rows back, and not the property. So each snapshot of the sink
    says the same, and the position is that of the newest one that the table stands on: ``OutputLostError`` says what
    is missing.

    One staged file at a time is in memory; of a table with partitions, a whole epoch is.

    With ``mode="upsert"`` a row replaces the one with the same key, and of rows of one epoch with one key the last one
    counts. It is PyIceberg's upsert: it compares rows one by one in Python, and no two rows of the table may have one
    key. It suits epochs of thousands of keys, not of millions, and has a whole epoch in memory. A commit rewrites
    each file that has a row to replace or to delete (copy on write).
    """

    catalog: Mapping[str, str] = attrs.field(repr=False)
    """The properties of the catalog, as PyIceberg has them: ``{"type": "sql", "uri": ..., "warehouse": ...}``, say.
    They may have credentials."""
    table: str
    """The table with its namespace, such as ``flights.delays``."""
    uid: str = attrs.field(default="sink", kw_only=True)
    """Names the sink in its query. Keep it across restarts."""
    mode: Mode = attrs.field(
        default="append", kw_only=True, validator=attrs.validators.in_(("append", "upsert"))
    )
    """Whether rows are added, or replace those with the same ``key``. A column that only the table has becomes null."""
    key: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=tuple[str, ...])
    """The columns that name a row, for ``mode="upsert"``."""
    deleted: str | None = attrs.field(default=None, kw_only=True)
    """Boolean column whose true rows delete their key. It is not a column of the table. All columns of these rows must
    be such that the table takes them."""
    catalog_name: str = attrs.field(default="default", kw_only=True)
    """The catalog's name. It is a part of the names of tables in SQL catalogs."""
    create_table: bool = attrs.field(default=True, kw_only=True)
    """Whether a table that is not there is made when the query starts, and its namespace."""
    timeout: float = attrs.field(default=60.0, kw_only=True, validator=attrs.validators.gt(0))
    """Seconds after which a call to the catalog is given up. Files have the timeouts of the catalog's properties, such
    as ``s3.request-timeout``."""

    target: ClassVar[str] = "Iceberg"

    def __attrs_post_init__(self) -> None:
        check_mode(self.name, self.mode, self.key)

    @property
    def name(self) -> str:
        """What messages call the table."""
        return f"the Iceberg table {self.table}"

    @override
    def check(self, schema: pa.Schema) -> Limits:
        """Check that the table takes rows of this schema, and make the table if it is not there.

        Returns:
            Which columns take no nulls, also nested ones, and how many bytes values have.

        Raises:
            OutputError: it does not, or it may not be read or made.
            SetupError: PyIceberg is not installed, or what it needs for the table's partitions.
            TargetUnavailableError: its catalog cannot be reached.
        """
        check_key(self.name, schema, self.key)
        schema = unmarked(self.name, schema, self.mode, self.key, self.deleted)
        with self.connected() as catalog:
            try:
                found = self.load(catalog)
            except _TableMissingError:
                if not self.create_table:
                    raise
                self._create(catalog, schema)
                found = self.load(catalog)
            fields = _schema_of(found)
            check_schema(schema, fields, self.name)
            _check_partitions(found, self.name)
            return limits_of(fields)

    @override
    def unpublishable(self, rows: pa.Table) -> str | None:
        # PyIceberg keeps the least and the greatest value of a column as Python's dates, and cannot look for NaN.
        return far_year(rows, rows.column_names) or not_a_number(rows, self.key)

    @override
    def recover(self, fence: Fence) -> Committer:
        """Read the table's record, and write this life into it with a snapshot: that shuts out earlier ones.

        Raises:
            As in the contract; ``OutputError`` if there is no table.
        """
        catalog = self.connect()
        try:
            conflicts = Conflicts(self.name)
            while True:
                table = self.load(catalog)
                found = _position(table, fence)
                own = found.taken_by(fence) if found else Position.first(fence)
                if own == found or self.put(table, own, None, fence, conflicts):
                    return _Committer(self, catalog, fence, own)
        except BaseException:
            _close(catalog)
            raise

    def connect(self) -> Catalog:
        """Return a connection to the catalog.

        Raises:
            OutputError: its properties cannot be used.
            SetupError: PyIceberg is not installed.
            TargetUnavailableError: it cannot be reached.
        """
        what = "the sink for Iceberg tables cannot be used"
        with needs_extra("iceberg", what=what, needed="the package pyiceberg"):
            from pyiceberg.catalog import load_catalog
        with self.explained():
            return self._bounded(lambda: load_catalog(self.catalog_name, **self.catalog))

    @contextmanager
    def connected(self) -> Iterator[Catalog]:
        """Connect to the catalog for the time of this context."""
        catalog = self.connect()
        try:
            yield catalog
        finally:
            _close(catalog)

    def load(self, catalog: Catalog) -> Table:
        """Return the newest version of the table.

        Raises:
            OutputError: there is none, or it may not be read.
            TargetUnavailableError: the catalog cannot be reached.
        """
        with self.explained():
            table = self._bounded(lambda: catalog.load_table(self.table))
        # PyIceberg would repeat a commit on what others have committed meanwhile, so that a life that is fenced would
        # publish. Its own copy of the table's properties says how often: nothing of this is written.
        properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        return table

    def put(
        self, table: Table, new: Position, epoch: Epoch | None, fence: Fence, conflicts: Conflicts
    ) -> bool:
        """Commit the rows of an epoch, or none, and a position; return False if it is to be tried once more.

        The commit requires that the table's newest snapshot is the one that this version of the table has. So each
        commit makes a snapshot, also one without rows.

        Raises:
            TargetUnavailableError: the catalog does not take it, or there were too many conflicts.
            OutputError: it refuses the rows.
        """
        from pyiceberg.exceptions import CommitFailedException

        from .iceberg_files import WrittenFiles

        table.io = written = WrittenFiles(table.io)
        transaction = table.transaction()
        said = {
            _property(fence): to_json(new).decode(),
            _identity_property(fence): str(table.metadata.table_uuid),
        }
        with self.explained():
            try:
                if (
                    epoch is None
                    or not epoch.rows
                    or not self._add(transaction, table, StagedRows(epoch), said)
                ):
                    transaction.append(_schema_of(table).empty_table(), snapshot_properties=said)
                transaction.set_properties(said)
            except BaseException:
                written.take_back()
                raise
            written.keep()
            try:
                self._bounded(transaction.commit_transaction)
            except CommitFailedException as error:
                conflicts.met(table.metadata_location, without_secrets(str(error), self.catalog))
                return False
        return True

    def _add(
        self, transaction: Transaction, table: Table, staged: StagedRows, said: Mapping[str, str]
    ) -> bool:
        """Add rows to a transaction, with what their snapshot says; return whether they make one."""
        schema = _schema_of(table)
        if self.mode == "upsert":
            return self._upsert(transaction, schema, staged, said)
        with reading(staged, schema, self.name) as rows:
            # PyIceberg streams into tables without partitions alone.
            added = rows.read_all() if table.spec().fields else rows
            transaction.append(added, snapshot_properties=dict(said))
        return True

    def _upsert(
        self, transaction: Transaction, schema: pa.Schema, staged: StagedRows, said: Mapping[str, str]
    ) -> bool:
        rows, key = (
            last_rows(staged.tables(), schema, self.key, self.deleted, self.name, fill=True),
            list(self.key),
        )
        before = transaction.table_metadata.current_snapshot_id
        if self.deleted is not None:
            rows, gone = _kept_and_gone(rows, self.deleted)
            _delete(transaction, gone.select(key), said)
        whole, partly_null = _by_nulls(rows, key)
        if len(whole):
            transaction.upsert(whole, join_cols=key, snapshot_properties=dict(said))
        if len(partly_null):
            # To PyIceberg's upsert they equal nothing.
            _delete(transaction, partly_null.select(key), said)
            transaction.append(partly_null, snapshot_properties=dict(said))
        # Rows that are there as they are to be, and keys to delete that are not there, change nothing.
        return bool(transaction.table_metadata.current_snapshot_id != before)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of PyIceberg and of its catalogs into those of the contract."""
        try:
            yield
        except ChandyError:
            raise
        except Exception as error:  # each catalog has errors of its own
            raise _explain(self.name, error, self.catalog) from error

    def _create(self, catalog: Catalog, schema: pa.Schema) -> None:
        namespace = self.table.rpartition(".")[0]
        with self.explained():
            self._bounded(lambda: catalog.create_namespace_if_not_exists(namespace))
            self._bounded(lambda: catalog.create_table_if_not_exists(self.table, schema=schema))

    def _bounded(self, step: Callable[[], T]) -> T:
        return within(self.timeout, self.name, step)


class _TableMissingError(OutputError):
    """There is no table."""


class _Committer(Committer):
    """Loads the table for each commit, so that what it checks and what it commits on are one version."""

    def __init__(self, sink: IcebergSink, catalog: Catalog, fence: Fence, own: Position) -> None:
        self._sink = sink
        self._catalog = catalog
        self._fence = fence
        self._own = own

    @property
    @override
    def position(self) -> int | None:
        return self._own.epoch

    @override
    def commit(self, epoch: Epoch) -> None:
        new = attrs.evolve(self._own, epoch=epoch.id)
        conflicts = Conflicts(self._sink.name)
        while True:
            table = self._sink.load(self._catalog)
            # After a conflict, the record says whether it was another writer of the table, or a later life of this one.
            check_record(_position(table, self._fence), self._own, self._fence, self._sink.name)
            if self._sink.put(table, new, epoch, self._fence, conflicts):
                self._own = new
                return

    @override
    def close(self) -> None:
        _close(self._catalog)


def _kept_and_gone(rows: pa.Table, deleted: str) -> tuple[pa.Table, pa.Table]:
    """Return rows without their mark: those that stay, and those that delete their key."""
    import pyarrow.compute as pc

    is_gone = pc.fill_null(rows.column(deleted), False)
    unmarked = rows.drop_columns([deleted])
    return unmarked.filter(pc.invert(is_gone)), unmarked.filter(is_gone)


def _delete(transaction: Transaction, keys: pa.Table, said: Mapping[str, str]) -> None:
    """Delete the rows that have one of these keys, if there are any. A null equals a null, as in Spark's GROUP BY."""
    from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, EqualTo, IsNull, NotNull, Or
    from pyiceberg.table.upsert_util import create_match_filter

    def is_value(name: str, value: Any) -> BooleanExpression:
        if value is None:
            return IsNull(name)  # type: ignore[arg-type, call-arg]
        # PyIceberg keeps the rows of which a filter is false: it must be no null about a row.
        return And(NotNull(name), EqualTo(name, value))  # type: ignore[arg-type, call-arg]

    whole, partly_null = _by_nulls(keys, keys.column_names)
    same = [
        And(*(is_value(name, value) for name, value in row.items()), AlwaysTrue())
        for row in partly_null.to_pylist()
    ]
    found = [create_match_filter(whole, keys.column_names)] if len(whole) else []
    for filter in (*found, *([Or(*same, AlwaysFalse())] if same else [])):
        with warnings.catch_warnings():
            # It may match none.
            warnings.simplefilter("ignore")
            transaction.delete(filter, snapshot_properties=dict(said))


def _by_nulls(rows: pa.Table, key: list[str]) -> tuple[pa.Table, pa.Table]:
    """Return the rows without a null in their key, and those with one."""
    import pyarrow.compute as pc

    has_null = functools.reduce(pc.or_, (pc.is_null(rows.column(name)) for name in key))
    return rows.filter(pc.invert(has_null)), rows.filter(has_null)


def _property(fence: Fence) -> str:
    return f"chandy.position.{fence.writer}"


def _identity_property(fence: Fence) -> str:
    return f"chandy.table.{fence.writer}"


def _position(table: Table, fence: Fence) -> Position | None:
    """Return the record of a writer; its epoch is the newest whose rows the table has.

    A rollback of the table leaves its properties. So each snapshot repeats the properties of its time. And another
    table may have got them with its definition: so they name the table.
    """
    from pyiceberg.table.snapshots import ancestors_of

    name = _property(fence)
    found = table.metadata.properties.get(name)
    if found is None:
        return None
    position = from_json_of_any_version(Position, found.encode())
    identity = str(table.metadata.table_uuid)
    if table.metadata.properties.get(_identity_property(fence), identity) != identity:
        return attrs.evolve(position, epoch=None)
    oldest = None
    for oldest in ancestors_of(table.current_snapshot(), table.metadata):
        if said := _said(oldest, name):
            return attrs.evolve(position, epoch=from_json_of_any_version(Position, said.encode()).epoch)
    if oldest is not None and oldest.parent_snapshot_id is not None:
        # Those before are expired, and the writer's with them.
        return position
    return attrs.evolve(position, epoch=None)


def _said(snapshot: Snapshot, name: str) -> str | None:
    return None if snapshot.summary is None else snapshot.summary.get(name)


def _schema_of(table: Table) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field.remove_metadata() for field in table.schema().as_arrow()])


def _check_partitions(table: Table, name: str) -> None:
    """Refuse a table whose partitions PyIceberg cannot compute here: rows would be staged and never published.

    Raises:
        SetupError: they are days, buckets or the like, and the package for that is missing.
    """
    from pyiceberg.exceptions import NotInstalledError

    for field in table.spec().fields:
        try:
            field.transform.pyarrow_transform(table.schema().find_type(field.source_id))
        except NotInstalledError as error:
            raise SetupError(
                f"{name} cannot be written",
                f"the package pyiceberg-core, for its partitions by {field.transform}",
                str(error),
                "run `pip install 'pyiceberg[pyiceberg-core]'`",
            ) from error


def _close(catalog: Catalog) -> None:
    with suppress(Exception):
        catalog.close()


def _explain(name: str, error: Exception, options: Mapping[str, str]) -> ChandyError:
    """Return the contract's error for one of a catalog or a file. What it does not know is tried for a while."""
    from pyiceberg import exceptions
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    text = f"{type(error).__name__}: {without_secrets(str(error), options)}"
    if isinstance(error, (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError)):
        return _TableMissingError(
            f"{name} cannot be used", "an Iceberg table", text, "create it, or set create_table=True"
        )
    forbidden = (
        exceptions.ForbiddenError,
        exceptions.UnauthorizedError,
        exceptions.AuthorizationExpiredError,
        exceptions.OAuthError,
        PermissionError,
    )
    if isinstance(error, forbidden) or _NOT_PERMITTED.search(without_places(text)):
        return OutputError(
            f"{name} cannot be used",
            "the permission to read and write it",
            text,
            "give the driver credentials that may do that, by the environment or the catalog's properties",
        )
    if isinstance(error, (exceptions.NoSuchPropertyException, exceptions.NotInstalledError)):
        return OutputError(
            f"{name} cannot be used", "properties of its catalog", text, "correct `catalog` of the sink"
        )
    # Arrow's errors about values are ValueErrors, too.
    refused = (
        ValueError,
        TypeError,
        ArithmeticError,
        NotImplementedError,
        UnsupportedPyArrowTypeException,
        exceptions.ValidationException,
        exceptions.BadRequestError,
    )
    if isinstance(error, refused):
        return OutputError(
            f"{name} refuses rows, or its catalog's properties are wrong",
            "rows and properties that it takes",
            text,
            "correct the rows in the query, the table, or `catalog` of the sink, and start the pipeline again",
        )
    known = (
        exceptions.ServerError,
        exceptions.ServiceUnavailableError,
        exceptions.CommitStateUnknownException,
        ConnectionError,
        TimeoutError,
    )
    return unavailable(name, text, is_known=isinstance(error, known))
