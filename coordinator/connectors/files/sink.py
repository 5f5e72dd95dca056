"""The sink for a directory of files, with the log that Spark's readers follow: one entry for each epoch."""

from __future__ import annotations

import errno
import hashlib
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Final, Literal
from urllib.parse import quote

import attrs
from typing_extensions import override

from ....storage.errors import (
    FencedError,
    InvalidPlaceError,
    ObjectExistsError,
    OutcomeUnknownError,
    StorageError,
    StoreFailedError,
)
from ....storage.open import open_store
from ....storage.probe import probe_exclusive_create
from ....storage.store import Store
from ....storage.uri import StoreUri, join_uri
from ...sinks.place import Directory, directory_path
from ...sinks.two_phase.contract import Committer, Epoch, Fence, Position
from ...sinks.two_phase.errors import OutputError, TargetUnavailableError
from ...sinks.two_phase.staged import StagedRows, StagedSink
from ..record import check_record
from .formats import WRITERS, in_partitions, unwritable
from .log import EMPTY, DataFile, Entry, FileLog

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPTS: Final = 20
"""How often an entry is tried while other sinks of the directory are faster."""

_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY}
"""What a local or mounted file system may get over."""


@attrs.frozen
class FilesSink(StagedSink):
    """Writes the rows of each checkpoint as files into a directory, on any store that creates objects exclusively.

    Readers that follow the directory's log, ``_spark_metadata``, see whole epochs alone. Spark's batch and streaming
    readers do. The entry of an epoch names its files, and has the position of the sink; creating it publishes.

    Readers that list the directory, such as pandas or DuckDB, see the files of an epoch one by one shortly before it is
    published, so that for a moment, or until the driver is back after a crash, they may see a part of the newest epoch.
    They see no row twice: published again, an epoch has the same files under the same names. Files of an epoch that a
    fenced driver was just writing, and that its successor does not publish, stay: a listing reader sees those too.

    The directory belongs to Chandy: several of its sinks may share it, but no other program may write its log, and
    nobody may delete entries. Every tenth entry repeats all before it, as with Spark's own sink, so it grows with the
    number of files. Use a longer interval between checkpoints for an output that never ends.

    A quote in CSV is doubled: read it in Spark with ``escape='"'``, ``header=True`` and ``multiLine=True``.

    One staged file at a time is in memory.
    """

    path: str
    """The directory: a path, or the URI of a store, as for the pipeline's own, such as ``s3://bucket/flights``."""
    format: Literal["parquet", "json", "csv"] = attrs.field(
        default="parquet", validator=attrs.validators.in_(tuple(WRITERS))
    )
    """The format of the files."""
    uid: str = attrs.field(default="sink", kw_only=True)
    """Names the sink in its query. Keep it across restarts."""
    partition_by: tuple[str, ...] = attrs.field(default=(), kw_only=True, converter=tuple[str, ...])
    """The columns whose values name folders, ``column=value``. The files do not have these columns."""
    url: str | None = attrs.field(default=None, kw_only=True)
    """How Spark's readers name the directory, where it is not as in ``path``; s3:// becomes s3a:// by itself."""
    timeout: float = attrs.field(default=60.0, kw_only=True, validator=attrs.validators.gt(0))
    """Seconds after which a step is not tried again."""

    target: ClassVar[str] = "files"

    @property
    def name(self) -> str:
        """What messages call the directory."""
        return f"the directory {self.path}"

    @property
    @override
    def place(self) -> Directory:
        uri = open_store(self.path).uri
        return Directory(directory_path(self.url or url_of(uri)), uri)

    @override
    def check(self, schema: pa.Schema) -> None:
        """Check that rows of this schema can be written, and that the directory is Chandy's own or empty.

        Raises:
            OutputError: they cannot, or the directory is another program's or may not be written.
            TargetUnavailableError: its store cannot be reached.
        """
        if found := unwritable(schema, self.format, self.partition_by):
            raise OutputError(
                f"{self.name} cannot be written",
                f"rows that {self.format} files can have",
                "; ".join(found),
                "cast the columns in the query, or correct `format` and `partition_by` of the sink",
            )
        with self.explained():
            store = self.open()
            if self._log(store).newest() == EMPTY and (keys := _visible(store.list())):
                raise OutputError(
                    f"{self.name} cannot be written",
                    "an empty directory, or one of Chandy's own, because Spark would pass over files without a log",
                    f"{len(keys)} files of another program, such as {keys[0]}",
                    "use another directory",
                )
            self._probe()

    @override
    def recover(self, fence: Fence) -> Committer:
        """Read the position from the newest entry, and write this life into an entry of its own.

        An earlier life has to create the very entry that this one has created, and fails.

        Raises:
            As in the contract; ``OutputError`` if the directory is another program's or may not be written.
        """
        with self.explained():
            store = self.open()
            if not store.fenced:
                self._probe()
            log = self._log(store)
            for _ in range(ATTEMPTS):
                newest = log.newest()
                found = newest.positions.get(fence.writer)
                own = found.taken_by(fence) if found else Position.first(fence)
                if own != found:
                    try:
                        newest = log.create(newest, (), {**newest.positions, fence.writer: own}, time.time())
                    except ObjectExistsError:
                        continue
                return _Committer(self, log, fence, newest, own)
        raise self.busy()

    def open(self) -> Store:
        """Open the directory."""
        return open_store(self.path).within(self.timeout)

    def within(self, log: FileLog) -> FileLog:
        """Return a log with a deadline from now."""
        return attrs.evolve(log, store=open_store(self.path).within(self.timeout))

    def busy(self) -> TargetUnavailableError:
        """Return the error for a directory whose other sinks were faster each time."""
        return TargetUnavailableError(self.name, f"other sinks were faster {ATTEMPTS} times")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn the errors of the directory's store into those of the contract."""
        try:
            yield
        except FencedError:
            raise
        except InvalidPlaceError as error:
            raise OutputError(
                f"{self.name} cannot be written", error.expected, f"{error.what}: {error.found}", error.advice
            ) from error
        except StorageError as error:
            raise _explain(self.name, error) from error

    def _probe(self) -> None:
        """Check that the store creates exclusively, in a folder that readers pass over."""
        probe_exclusive_create(open_store(join_uri(self.path, "_chandy")).within(self.timeout))

    def _log(self, store: Store) -> FileLog:
        return FileLog(store, self.url.rstrip("/") if self.url else url_of(store.uri))


class _Committer(Committer):
    """Knows the newest entry that it has seen. If there is a newer one, creating the next one fails."""

    def __init__(self, sink: FilesSink, log: FileLog, fence: Fence, newest: Entry, own: Position) -> None:
        self._sink = sink
        self._log = log
        self._fence = fence
        self._newest = newest
        self._own = own

    @property
    @override
    def position(self) -> int | None:
        return self._own.epoch

    @override
    def commit(self, epoch: Epoch) -> None:
        log = self._sink.within(self._log)
        new = attrs.evolve(self._own, epoch=epoch.id)
        files = list(self._written(log.store, epoch)) if epoch.rows else []
        for _ in range(ATTEMPTS):
            newest, writer = self._newest, self._fence.writer
            with self._sink.explained():
                try:
                    self._newest = log.create(newest, files, {**newest.positions, writer: new}, time.time())
                except ObjectExistsError:
                    self._newest = log.newest()
                else:
                    self._own = new
                    return
            check_record(self._newest.positions.get(writer), self._own, self._fence, self._sink.name)
        raise self._sink.busy()

    def _written(self, store: Store, epoch: Epoch) -> Iterator[DataFile]:
        """Write the files of an epoch. What is written again has the same names and the same bytes."""
        for number, (folder, data, rows) in enumerate(self._contents(epoch)):
            digest = hashlib.sha256(data).hexdigest()[:16]
            key = (
                f"{folder}part-{epoch.id:08d}-{number:05d}-{_short(self._fence)}-{digest}.{self._sink.format}"
            )
            with self._sink.explained():
                store.write(key, data)
            yield DataFile(f"{self._log.directory}/{quote(key, safe='/=')}", len(data), rows)

    def _contents(self, epoch: Epoch) -> Iterator[tuple[str, bytes, int]]:
        """Yield the folder, the bytes and the number of rows of each file."""
        import pyarrow.parquet as pq

        rows = StagedRows(epoch)
        if self._sink.format == "parquet" and not self._sink.partition_by:
            for data in rows.files():
                yield "", data, pq.read_metadata(io.BytesIO(data)).num_rows
            return
        write = WRITERS[self._sink.format]
        for table in rows.tables():
            for folder, some in in_partitions(table, self._sink.partition_by):
                yield folder, write(some), some.num_rows


def url_of(uri: str) -> str:
    """Return the URI by which Spark's readers know a store: without options, and with Hadoop's scheme for S3."""
    if uri.startswith("file:"):
        return uri.rstrip("/")
    parts = StoreUri.parse(uri)
    scheme = "s3a" if parts.scheme == "s3" else parts.scheme
    return str(StoreUri(scheme, parts.authority, parts.path, {}))


def _short(fence: Fence) -> str:
    """Tell the sinks of a directory apart in the names of their files."""
    return hashlib.sha256(f"{fence.store} {fence.writer}".encode()).hexdigest()[:8]


def _visible(keys: list[str]) -> list[str]:
    """Return the keys of files that readers of a directory see."""
    return [key for key in keys if not any(part.startswith(("_", ".")) for part in key.split("/"))]


def _explain(name: str, error: StorageError) -> OutputError | TargetUnavailableError:
    """Return the contract's error for one of a store."""
    cause = error.__cause__
    passes = isinstance(cause, OSError) and cause.errno in _PASSING
    if isinstance(error, OutcomeUnknownError) or passes:
        return TargetUnavailableError(name, str(error))
    if isinstance(error, StoreFailedError) and error.transient:
        return TargetUnavailableError(name, str(error))
    advice = error.advice if isinstance(error, StoreFailedError) else ""
    return OutputError(
        f"{name} cannot be written",
        "the permission to list, read and create files in it",
        str(error),
        advice or "let the driver write there, or use another directory",
    )
