"""What a data source did wrong, named by the method in which it did."""

from __future__ import annotations

import attrs

from ....state import user_code
from ...errors import WriterError
from ...sinks.two_phase.errors import OutputError


@attrs.define(eq=False)
class DataSourceFailedError(OutputError):
    """A stream writer has raised, or has returned what it must not return."""

    traceback: str = ""
    """Of the writer's own code; empty if it has not raised."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.traceback}".rstrip()


def raised(source: str, where: str, error: BaseException, advice: str) -> DataSourceFailedError:
    """Return the error for a method of a stream writer that has raised.

    Args:
        source: name of the data source.
        where: which call it was, such as ``commit() of batchId 7``.
        error: what was raised.
        advice: what to do about it.
    """
    told = user_code.raised(error)
    return DataSourceFailedError(
        f"the stream writer of data source {source!r} has failed in {where}",
        "it to return",
        told.summary,
        advice,
        # Of an error of a task, Spark shows the text alone, without the exception that it was raised from.
        told.traceback,
    )


def no_message(source: str, found: object) -> DataSourceFailedError:
    """Return the error for a ``write`` that has returned no message."""
    return DataSourceFailedError(
        f"the stream writer of data source {source!r} cannot be used",
        "write() to return a WriterCommitMessage",
        type(found).__name__,
        "return an instance of a subclass of pyspark.sql.datasource.WriterCommitMessage",
    )


def not_picklable(source: str, what: str, error: BaseException) -> DataSourceFailedError:
    """Return the error for a writer or a message that cannot be sent."""
    return DataSourceFailedError(
        f"the stream writer of data source {source!r} cannot be used",
        f"{what} that can be pickled",
        f"{type(error).__name__}: {error}",
        "open connections and files in write() and commit(), and keep none in it",
    )


def not_a_sink(source: str, found: str) -> WriterError:
    """Return the error for a data source without a stream writer."""
    return WriterError(
        f"data source {source!r} cannot be the sink of a query",
        "streamWriter() to return a DataSourceStreamWriter or a DataSourceStreamArrowWriter",
        found,
        "implement DataSource.streamWriter(schema, overwrite)",
    )
