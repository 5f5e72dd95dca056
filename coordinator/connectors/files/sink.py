"""The sink for a directory of files, with the log that Spark's readers follow: one entry for each epoch."""

from __future__ import annotations

import errno
import hashlib
import io
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Final, Literal
from urllib.parse import quote, unquote

import attrs
from typing_extensions import override

from ....storage.backends.open import open_store
from ....storage.backends.probe import probe_exclusive_create
from ....storage.errors import (
    ChandyError,
    FencedError,
    InvalidPlaceError,
    ObjectExistsError,
    OutcomeUnknownError,
    StorageError,
    StoreFailedError,
)
from ....storage.logs import logger
from ....storage.store import Store
from ....storage.uri import StoreUri, identity, join_uri
from ...durations import Duration, seconds
from ...sinks.place import Directory, directory_path
from ...sinks.two_phase.contract import Committer, Epoch, Fence, Position
from ...sinks.two_phase.errors import OutputError, RewindError, TargetFullError, TargetUnavailableError
from ...sinks.two_phase.staged import StagedRows, StagedSink
from ..record import check_record
from .formats import WRITERS, in_partitions, unwritable, unwritten
from .layout import DirectoryLayout
from .log import EMPTY, DataFile, FileLog, LogEntry, file_of
from .log_clock import LogClock
from .rewinds import Rewinds

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logger(__name__)

ABANDONED_S: Final = 7 * 24 * 3600.0
"""Seconds after which a half-written file has nobody who writes it. The store's clock may be hours off."""
ATTEMPTS: Final = 20
"""How often an entry is tried while other sinks of the directory are faster."""

_Change = Callable[[FileLog, LogEntry], tuple[LogEntry, list[str]] | None]
"""Returns from the newest entry what is known with the next one, and all lines that it has; None: nothing to do."""
_FULL = {errno.ENOSPC, errno.EDQUOT}
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY}
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
    nobody may delete entries. Every tenth entry repeats all before it, as with Spark's own sink, and entries that no
    reader needs are deleted. So the log is as long as there are files: set ``retention`` for an output that never ends.

    A start from an older checkpoint takes back what was published after it: its files leave the log at one moment, and
    are deleted once the next epoch is published. Until then, a start from the later checkpoint brings them back, and
    readers that list the directory see them. A streaming query of another pipeline may have read them.

    A quote in CSV is doubled: read it in Spark with ``escape='"'``, ``header=True`` and ``multiLine=True``. Spark
    takes an empty text in CSV for null, as it does in files of its own.

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
    retention: Duration | None = attrs.field(
        default=None,
        kw_only=True,
        validator=lambda sink, field, value: _check_retention(value),
    )
    """How long a file is in the log at least, such as "30 d"; later readers of the log do not see it. The file itself
    stays: delete it once nobody needs it. A time in which no driver runs counts for a tenth of it
    at most, because nobody can tell that from a clock that is ahead. None: for ever."""
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
            OutputError: they cannot, or not beside the files that are there; or the directory is another program's or
                may not be written.
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
            newest = self._log(store).newest()
            if newest.layout is not None:
                newest.layout.joined(self.layout(schema), self.name)
            if newest == EMPTY and (keys := _visible(store.list())):
                raise OutputError(
                    f"{self.name} cannot be written",
                    "an empty directory, or one of Chandy's own, because Spark would pass over files without a log",
                    f"{len(keys)} files of another program, such as {keys[0]}",
                    "use another directory",
                )
            self._probe()

    @override
    def unpublishable(self, rows: pa.Table) -> str | None:
        return unwritten(rows, self.format, self.partition_by)

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
            log = attrs.evolve(self._log(store), writer=fence.writer)
            for _ in range(ATTEMPTS):
                newest = log.newest()
                found = newest.positions.get(fence.writer)
                own = found.taken_by(fence) if found else Position.first(fence)
                clock = LogClock.begin(newest.at, log.retention, is_new=own != found)
                if not newest.rewinds.get(fence.writer, Rewinds()).is_last(own.epoch):
                    newest = delete_removed(log, newest, fence.writer)
                if own != found:
                    try:
                        newest = log.create(newest.with_position(fence.writer, own), (), clock())
                    except ObjectExistsError:
                        continue
                log.ensure_two_compact_entries()
                return _Committer(self, log, fence, newest, own, clock)
        raise self.busy()

    def layout(self, schema: pa.Schema) -> DirectoryLayout:
        """Return the layout of files that have nothing but rows of a schema."""
        return DirectoryLayout.of(self.format, self.partition_by, schema)

    def open(self) -> Store:
        """Open the directory."""
        return open_store(self.path).within(self.timeout)

    def within(self, log: FileLog) -> FileLog:
        """Return a log with a deadline from now."""
        return attrs.evolve(log, store=open_store(self.path).within(self.timeout))

    def busy(self) -> TargetUnavailableError:
        """Return the error for a directory whose other sinks were faster each time."""
        return TargetUnavailableError(
            self.name, f"other sinks were faster {ATTEMPTS} times", is_understood=True
        )

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
        directory = self.url.rstrip("/") if self.url else url_of(store.uri)
        return FileLog(store, directory, None if self.retention is None else seconds(self.retention))


class _Committer(Committer):
    """Knows the newest entry that it has seen. If there is a newer one, creating the next one fails."""

    def __init__(
        self,
        sink: FilesSink,
        log: FileLog,
        fence: Fence,
        newest: LogEntry,
        own: Position,
        clock: LogClock,
    ) -> None:
        self._sink = sink
        self._log = log
        self._fence = fence
        self._newest = newest
        self._own = own
        self._clock = clock
        self._is_swept = False

    @property
    @override
    def position(self) -> int | None:
        return self._own.epoch

    @override
    def commit(self, epoch: Epoch) -> None:
        log = self._sink.within(self._log)
        new = attrs.evolve(self._own, epoch=epoch.id)
        layout = self._newest.layout
        files = self._written(log.store, epoch, layout)
        for _ in range(ATTEMPTS):
            if self._newest.layout != layout:
                # Of another sink, which was faster.
                layout = self._newest.layout
                files = self._written(log.store, epoch, layout)
            known = attrs.evolve(self._newest.with_position(self._fence.writer, new), layout=files.layout)
            with self._sink.explained():
                try:
                    self._newest = log.create(known, files.files, self._clock())
                except ObjectExistsError:
                    self._look(log)
                    continue
            self._own = new
            # They may not come again now.
            with self._sink.explained():
                self._newest = delete_removed(log, self._newest, self._fence.writer)
            if not self._is_swept:
                self._sweep()
            return
        raise self._sink.busy()

    def _sweep(self) -> None:
        """Delete what publishers that were killed have left half-written, once in a life."""
        self._is_swept = True
        # It is space alone that is lost, and the next life tries it again.
        with suppress(ChandyError):
            # By the store's clock, as far as this machine's time of day tells it.
            self._sink.open().sweep(time.time() - ABANDONED_S)

    @override
    def recognised(self, epochs: Sequence[Epoch]) -> Collection[int]:
        """Compare what the log says of each epoch's files. Those taken back count if they can be brought back."""
        log = self._sink.within(self._log)
        self._look(log)
        known, published, writer = self._newest, self._own.epoch, self._fence.writer
        lines = list[str]()
        if known.rewinds.get(writer, Rewinds()).is_last(published):
            lines += known.removed.get(writer, ())
        if published is not None and any(epoch.id <= published for epoch in epochs):
            with self._sink.explained():
                lines += log.lines(known.number)
        files = [file for file in map(file_of, lines) if file.writer == writer]
        has = {(file.epoch, file.staged) for file in files}
        return [epoch.id for epoch in epochs if (epoch.id, epoch.identity) in has]

    @override
    def check_rewind(self, epoch: int | None) -> None:
        """Check whether what was published after an epoch can be taken back.

        Raises:
            As in the contract. ``RewindError`` if what the epoch stands for was itself taken back before, or if an
            older version has written the log, which does not say what files are whose.
        """
        self._check(lambda log, known: self._without(log, known, epoch))

    @override
    def rewind(self, epoch: int | None) -> None:
        """Take back what was published after an epoch, with an entry that repeats all other files.

        The files themselves stay until the next epoch is published.
        """
        self._replace(lambda log, known: self._without(log, self._delete_removed(log, known), epoch))

    @override
    def check_bring_back(self, epoch: int) -> None:
        self._check(lambda log, known: self._with(log, known, epoch))

    @override
    def bring_back(self, epoch: int) -> None:
        """Publish again what was last taken back, up to an epoch, with the very files."""
        self._replace(lambda log, known: self._with(log, known, epoch))

    def _check(self, change: _Change) -> None:
        """Check that an entry can be created that replaces all before it."""
        log = self._sink.within(self._log)
        self._look(log)
        with self._sink.explained():
            change(log, self._newest)

    def _replace(self, change: _Change) -> None:
        """Create an entry that replaces all before it."""
        log = self._sink.within(self._log)
        for _ in range(ATTEMPTS):
            self._look(log)
            with self._sink.explained():
                changed = change(log, self._newest)
                if changed is None:
                    return
                try:
                    self._newest = log.replace(*changed, self._clock())
                except ObjectExistsError:
                    continue
            self._own = self._newest.positions[self._fence.writer]
            return
        raise self._sink.busy()

    def _delete_removed(self, log: FileLog, known: LogEntry) -> LogEntry:
        """Delete what was taken back before something else was published: it is not to come again."""
        rewinds = known.rewinds.get(self._fence.writer, Rewinds())
        return known if rewinds.is_last(self._own.epoch) else delete_removed(log, known, self._fence.writer)

    def _without(self, log: FileLog, known: LogEntry, epoch: int | None) -> tuple[LogEntry, list[str]] | None:
        published, writer = self._own.epoch, self._fence.writer
        if published is None or (epoch is not None and published <= epoch):
            return None
        lines = [(line, file_of(line)) for line in log.lines(known.number)]
        rewinds = known.rewinds.get(writer, Rewinds())
        own = {file.epoch for _, file in lines if file.writer == writer}
        if not all(file.writer for _, file in lines) or not rewinds.can_go_back(epoch, own):
            raise RewindError(published, epoch)
        taken = [
            line for line, file in lines if file.writer == writer and (epoch is None or file.epoch > epoch)
        ]
        new = attrs.evolve(
            known.with_position(writer, attrs.evolve(self._own, epoch=epoch)),
            rewinds={**known.rewinds, writer: rewinds.rewound(epoch, published)},
            removed={**known.removed, writer: (*taken, *known.removed.get(writer, ()))},
        )
        gone = set(taken)
        return new, [line for line, _ in lines if line not in gone]

    def _with(self, log: FileLog, known: LogEntry, epoch: int) -> tuple[LogEntry, list[str]] | None:
        published, writer = self._own.epoch, self._fence.writer
        if published is not None and published >= epoch:
            return None
        removed = known.removed.get(writer, ())
        has = {file_of(line).epoch for line in removed}
        rewinds = known.rewinds.get(writer, Rewinds()).restored_to(published, epoch, has)
        if rewinds is None:
            raise RewindError(published, epoch)
        again = [line for line in removed if file_of(line).epoch <= epoch]
        new = attrs.evolve(
            known.with_position(writer, attrs.evolve(self._own, epoch=epoch)),
            rewinds={**known.rewinds, writer: rewinds},
            removed={**known.removed, writer: tuple(line for line in removed if line not in again)},
        )
        return new, [*log.lines(known.number), *again]

    def _look(self, log: FileLog) -> None:
        """Read the newest entry, and check that nobody has taken over."""
        with self._sink.explained():
            self._newest = log.newest()
        check_record(self._newest.positions.get(self._fence.writer), self._own, self._fence, self._sink.name)

    def _written(self, store: Store, epoch: Epoch, layout: DirectoryLayout | None) -> _EpochFiles:
        """Write the files of an epoch. What is written again has the same names and the same bytes."""
        files = list[DataFile]()
        if not epoch.rows:
            return _EpochFiles(layout, files)
        writer = self._fence.writer
        short = _short(self._fence, self._newest.rewinds.get(writer, Rewinds()).times)
        for staged in StagedRows(epoch).files():
            layout, contents = self._contents(staged, layout)
            for folder, data, rows in contents:
                digest = hashlib.sha256(data).hexdigest()[:16]
                key = f"{folder}part-{epoch.id:08d}-{len(files):05d}-{short}-{digest}.{self._sink.format}"
                with self._sink.explained():
                    store.write(key, data)
                uri = f"{self._log.directory}/{quote(key, safe='/=')}"
                files.append(DataFile(uri, len(data), rows, writer, epoch.id, key, epoch.identity))
        return _EpochFiles(layout, files)

    def _contents(
        self, staged: bytes, layout: DirectoryLayout | None
    ) -> tuple[DirectoryLayout, Iterator[tuple[str, bytes, int]]]:
        """Return the layout with a staged file, and the folder, the bytes and the number of rows of each of its files.

        Raises:
            OutputError: it does not go together with the files that are there.
        """
        import pyarrow.parquet as pq

        sink, source = self._sink, io.BytesIO(staged)
        own = sink.layout(pq.read_schema(source))
        joined = own if layout is None else layout.joined(own, sink.name)
        if sink.format == "parquet" and not sink.partition_by and own == joined:
            return joined, iter([("", staged, pq.read_metadata(source).num_rows)])
        rows, write = joined.applied(pq.read_table(source), sink.name), WRITERS[sink.format]
        partitions = in_partitions(rows, sink.partition_by)
        return joined, ((folder, write(some), some.num_rows) for folder, some in partitions)


@attrs.frozen
class _EpochFiles:
    """The files of an epoch, and what the directory's files have in common with them."""

    layout: DirectoryLayout | None
    files: list[DataFile]


def url_of(uri: str) -> str:
    """Return the URI by which Spark's readers know a store: without options, and with Hadoop's scheme for S3."""
    if uri.startswith("file:"):
        return uri.rstrip("/")
    parts = StoreUri.parse(uri)
    scheme = "s3a" if parts.scheme == "s3" else parts.scheme
    return str(StoreUri(scheme, parts.authority, parts.path, {}))


def delete_removed(log: FileLog, newest: LogEntry, writer: str) -> LogEntry:
    """Delete the files of a writer that were taken back; return the newest entry without the note of them.

    No file has the name of one that was taken back, so that it does not matter who does it when, nor how often.
    """
    keys = {line: _key_of(file_of(line), log.directory) for line in newest.removed.get(writer, ())}
    if unknown := [line for line, key in keys.items() if key is None]:
        _logger.warning(
            "files that were taken back stay, because the directory had another URL when they were published",
            directory=log.directory,
            files=[file_of(line).uri for line in unknown],
        )
    if known := [key for key in keys.values() if key is not None]:
        log.store.delete_all(known)
    left = {one: lines for one, lines in newest.removed.items() if one != writer}
    return attrs.evolve(newest, removed=left)


def _key_of(file: DataFile, directory: str) -> str | None:
    """Return the key of a published file in its directory; None if nobody knows it."""
    if file.key:
        return file.key
    prefix = f"{directory}/"
    return unquote(file.uri.removeprefix(prefix)) if file.uri.startswith(prefix) else None


def _check_retention(value: Duration | None) -> None:
    if value is not None and seconds(value) <= 0:
        raise ValueError(f"retention must be longer than nothing, not {value!r}")


def _short(fence: Fence, times: int) -> str:
    """Tell apart in the names of files: the sinks of a directory, and what one wrote before it took files back."""
    what = f"{identity(fence.store)} {fence.writer}" + (f" {times}" if times else "")
    return hashlib.sha256(what.encode()).hexdigest()[:8]


def _visible(keys: list[str]) -> list[str]:
    """Return the keys of files that readers of a directory see."""
    return [key for key in keys if not any(part.startswith(("_", ".")) for part in key.split("/"))]


def _explain(name: str, error: StorageError) -> OutputError | TargetUnavailableError:
    """Return the contract's error for one of a store."""
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in _FULL:
        return TargetFullError(name, str(error))
    if isinstance(error, OutcomeUnknownError) or number in _PASSING:
        return TargetUnavailableError(name, str(error), is_understood=True)
    if isinstance(error, StoreFailedError) and error.transient:
        return TargetUnavailableError(name, str(error), is_understood=True)
    advice = error.advice if isinstance(error, StoreFailedError) else ""
    return OutputError(
        f"{name} cannot be written",
        "the permission to list, read and create files in it",
        str(error),
        advice or "let the driver write there, or use another directory",
    )
