"""A query whose rows are computed within each of its batches, for anyone who starts it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class BatchRows(ABC):
    """Computes the rows of each batch by an operator that is not in the plan of the stream, all of which it reads."""

    @property
    @abstractmethod
    def uid(self) -> str:
        """The uid of the operator."""

    @property
    @abstractmethod
    def sample(self) -> DataFrame:
        """A batch DataFrame like those of ``output``, without rows."""

    @abstractmethod
    def output(self, rows: DataFrame) -> DataFrame:
        """Return what is written of the next batch, given the batch."""

    @abstractmethod
    def rescale(self, parallelism: int) -> None:
        """Have another number of tasks run the operator from the next batch on."""


class BatchRowsWriter(ABC):
    """Says where such rows go, in place of a ``DataStreamWriter``."""

    @property
    @abstractmethod
    def rows(self) -> BatchRows:
        """What is written."""

    @abstractmethod
    def writer(self, *, has_sink: bool, table: str | None, adopt: str | None) -> DataStreamWriter:
        """Return the writer of the query, which writes each batch unless a sink will be attached.

        Args:
            has_sink: whether ``coordinator.start`` was given a sink.
            table, adopt: what it was given besides.

        Raises:
            WriterError: the rows do not go to exactly one function or sink, or the query cannot begin so.
        """
