"""Calls of a data source and of its stream writers, as Spark makes them; what they raise gets a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import attrs
from pyspark import cloudpickle
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ....storage.errors import ChandyError
from ...sinks.two_phase.errors import TargetUnavailableError
from .errors import no_message, not_a_sink, not_picklable, raised

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

T = TypeVar("T")

_IN_WRITE = "remove the cause; the batch runs again"
_IN_COMMIT = (
    "remove the cause and start the pipeline again: commit() gets the same messages and batchId again"
)


@attrs.frozen
class ConfiguredSource:
    """A data source with its options: what makes stream writers."""

    made_by: type[DataSource]
    options: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Its short name, for messages."""
        try:
            return str(self.made_by.name())
        except Exception:  # noqa: BLE001 (the user's code; the name is for messages alone)
            return self.made_by.__name__

    def writer(self, schema: StructType) -> DataSourceStreamWriter:
        """Make a writer that appends rows of a schema.

        Raises:
            WriterError: the data source has none.
            DataSourceFailedError: it has raised.
        """
        try:
            found = self.made_by(options=CaseInsensitiveDict(dict(self.options))).streamWriter(schema, False)
        except PySparkNotImplementedError as error:
            raise not_a_sink(self.name, "that it is not implemented") from error
        except ChandyError:
            raise
        except Exception as error:
            raise raised(self.name, "streamWriter()", error, "remove the cause and start again") from error
        if not isinstance(found, DataSourceStreamWriter):
            raise not_a_sink(self.name, type(found).__name__)
        return found

    def commit(self, schema: StructType, messages: Sequence[WriterCommitMessage], epoch: int) -> None:
        """Have a new writer commit what tasks have written.

        Raises:
            TargetUnavailableError: it has raised a ``ConnectionError`` or a ``TimeoutError``.
            DataSourceFailedError: it has raised anything else.
        """
        writer = self.writer(schema)
        try:
            writer.commit(list(messages), epoch)
        except ChandyError:
            raise
        except (ConnectionError, TimeoutError) as error:
            target = f"the target of data source {self.name!r}"
            raise TargetUnavailableError(
                target, f"{type(error).__name__}: {error}", is_understood=True
            ) from error
        except Exception as error:
            raise raised(self.name, f"commit() of batchId {epoch}", error, _IN_COMMIT) from error

    def abort(self, schema: StructType, messages: Sequence[WriterCommitMessage], epoch: int) -> None:
        """Have a new writer abort what tasks have written.

        Raises:
            DataSourceFailedError: it has raised.
        """
        writer = self.writer(schema)
        try:
            writer.abort(list(messages), epoch)
        except Exception as error:
            raise raised(self.name, f"abort() of batchId {epoch}", error, "") from error


def check_picklable(source: ConfiguredSource, writer: DataSourceStreamWriter) -> None:
    """Check that a writer can be sent to tasks.

    Raises:
        DataSourceFailedError: it cannot.
    """
    try:
        cloudpickle.dumps(writer)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise not_picklable(source.name, "a writer", error) from error


@attrs.define
class _Counted:
    """The batches of a partition, counted as the writer takes them."""

    batches: Iterator[pa.RecordBatch]
    rows: int = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            self.rows += batch.num_rows
            yield batch


def write(
    source: str,
    writer: DataSourceStreamWriter,
    batches: Iterator[pa.RecordBatch],
    rows_of: Callable[[pa.RecordBatch], Sequence[Row]],
    where: str,
) -> tuple[int, bytes]:
    """Have a writer write a partition, in a task.

    Args:
        source: name of the data source.
        batches: the rows.
        rows_of: makes rows of a batch, for a writer that takes rows.
        where: which partition of which batch it is.

    Returns:
        How many rows it has taken, and its message, pickled.

    Raises:
        DataSourceFailedError: it has raised, or there is no message, or the message cannot be pickled.
    """
    counted = _Counted(batches)
    given = (
        iter(counted)
        if isinstance(writer, DataSourceStreamArrowWriter)
        else (row for batch in counted for row in rows_of(batch))
    )
    try:
        message = writer.write(given)
    except ChandyError:
        raise
    except Exception as error:
        raise raised(source, f"write() of {where}", error, _IN_WRITE) from error
    if not isinstance(message, WriterCommitMessage):
        raise no_message(source, message)
    try:
        return counted.rows, cloudpickle.dumps(message)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise not_picklable(source, "a message", error) from error
