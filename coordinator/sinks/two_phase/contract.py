"""The contract of a two-phase sink: the steps by which a checkpoint commits a query's output exactly once.

Between two checkpoints the tasks of a query *write* rows where no reader sees them. The cut of a checkpoint closes
what was written since the cut before: an *epoch*. The checkpoint's manifest says what it takes to publish the epoch
(*pre-commit*). Once the manifest is durable, the driver *commits*: it publishes the epochs in the order of their ids,
each once. The target itself keeps which epoch it has last, in the same transaction as the rows. After a crash this
record alone decides what is still to be published (*recover*).

A sink that upserts by key may publish each batch before it commits (``publish="batch"``). Then an epoch has no rows
left when it is closed, and its commit does no more than to move the position.

Apache Flink has the same steps as ``SinkWriter``, ``Committable`` and ``Committer``, Apache SeaTunnel as
``prepareCommit``, ``CommitInfo`` and ``SinkCommitter``.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import attrs

from ....storage.checkpoints.batch_record import NOTHING, Digest
from ....storage.checkpoints.layout import staged_name
from ....storage.checkpoints.manifest import EpochRecord, FileRef, OutputRecord
from ....storage.errors import FencedError
from ....storage.ids import BatchId
from ....storage.uri import is_same_store
from ...permit import Permit
from ..guarantee import Guarantee
from ..place import OutputTarget
from .errors import OutputTakenError, RewindError
from .limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@attrs.frozen
class Fence:
    """The identity of a publisher: a sink of a query in one generation of its pipeline."""

    pipeline: str
    query: str
    sink: str
    """Uid of the sink, unique in its query."""
    store: str
    """URI of the pipeline's own store. It tells pipelines of one name apart."""
    generation: int
    """Which life it is. A higher one shuts out all lower ones."""
    may_take_over: bool = False
    """Whether the output may be that of a pipeline of this name in another store."""
    restored: OutputRecord | None = None
    """What the checkpoint that the life begins from has of the sink; None: nothing."""

    @property
    def name(self) -> str:
        """Names the sink in its pipeline, and in a ``Permit``."""
        return f"{self.query}/{self.sink}"

    @property
    def writer(self) -> str:
        """Names the sink in its target, the same in all lives."""
        return f"{self.pipeline}/{self.name}"


@attrs.frozen
class Position:
    """The record that a target keeps of one writer: who publishes, and what it has last published."""

    store: str
    generation: int
    epoch: int | None = None
    """The newest published epoch; None: none."""

    def taken_by(self, fence: Fence) -> Self:
        """Return the record once a new life has taken the writer over. The target must write it if it has this one.

        Raises:
            FencedError: a later life has the writer.
            OutputTakenError: the writer belongs to the pipeline of another store.
        """
        if not is_same_store(self.store, fence.store):
            if not fence.may_take_over:
                raise OutputTakenError(
                    f"sink {fence.sink!r} of query {fence.query!r} cannot publish",
                    f"an output of pipeline {fence.pipeline!r} with checkpoints in {fence.store}",
                    f"one of a pipeline of the same name with checkpoints in {self.store}",
                    "give the pipeline, the query or the sink another name, or another target; or, if that pipeline "
                    "was moved here and will not run there again, permit to take its output over",
                    wanted=Permit(taken_output={fence.name: f"{self.store}@{self.generation}"}),
                )
        elif self.generation > fence.generation:
            raise FencedError(
                fence.store, fence.generation, self.generation, f"as sink {fence.writer!r} has recorded"
            )
        return attrs.evolve(self, store=fence.store, generation=fence.generation)

    @classmethod
    def first(cls, fence: Fence) -> Self:
        """Return the record of a writer that the target does not know."""
        return cls(fence.store, fence.generation)


@attrs.frozen
class WriteContext:
    """Where and for what a task writes."""

    store: str
    """URI of the pipeline's own store."""
    folder: str
    """Prefix for the keys of the objects that this batch writes into the store."""
    batch: int
    partition: int

    def new_name(self, suffix: str, number: int = 0) -> str:
        """Return a new name for an object below ``folder``.

        Objects that nothing needs any more are found by the form of such names. An object with another name is
        deleted only if its record says so.

        Args:
            suffix: what the name ends with: letters, digits and dots.
            number: of the object among those of the task.
        """
        return staged_name(BatchId(self.batch), self.partition, number, suffix)


@attrs.frozen
class Staged:
    """What one task has written of one batch. No reader sees it."""

    rows: int
    files: tuple[FileRef, ...] = ()
    """Objects with the rows in the pipeline's own store. They are deleted when no checkpoint needs them."""
    note: str = ""
    """What else the sink needs for its pre-commit."""
    digest: Digest = NOTHING
    """That of the rows, if the pipeline records its batches. Chandy puts it in, no sink does."""


@attrs.frozen
class Batch:
    """The output of one batch, to be published as a whole or not at all, before any checkpoint has it."""

    number: int
    """The batch's number, which comes again after going back, with other rows perhaps."""
    rows: int
    files: tuple[FileRef, ...]
    root: str
    """URI of the store that the files are in."""


@attrs.frozen
class Epoch:
    """The output between two cuts, to be published as a whole or not at all."""

    record: EpochRecord
    root: str
    """URI of the store that the files of the record are in."""

    @property
    def id(self) -> int:
        """The checkpoint that closed it. Ids ascend, also across restores."""
        return self.record.id

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.record.rows

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files with the rows."""
        return self.record.staged.files

    @property
    def identity(self) -> str:
        """Tells its rows from those of any other epoch, in whatever store it is: a hash of the staged bytes."""
        return hashlib.sha256("\n".join(file.sha256 for file in self.files).encode()).hexdigest()[:16]


class Committer(abc.ABC):
    """A sink's connection to its target, as one life of the coordinator. One thread uses it at a time."""

    @property
    @abc.abstractmethod
    def position(self) -> int | None:
        """The newest epoch that the target has of this writer, as of ``recover`` and of later commits; None: none."""

    @abc.abstractmethod
    def commit(self, epoch: Epoch) -> None:
        """Publish an epoch above ``position``: all of it and the new position, or nothing.

        Raises:
            TargetUnavailableError: the target cannot be reached, or nobody knows whether it has published. The
                connection is closed, and another one tries again if its position shows that it must.
            FencedError: a later life publishes.
            OutputError: the target refuses the epoch; trying again will not help.
        """

    def upsert(self, batch: Batch) -> None:
        """Publish a batch by key: all of it, or nothing. The position stays, and fences as in ``commit``.

        The same batch may come again, and so may other rows for its keys: those that come last stay.

        Raises:
            As ``commit``.
        """
        raise NotImplementedError("a sink with publish='batch' has a committer that can upsert")

    def recognised(self, epochs: Sequence[Epoch]) -> Collection[int]:
        """Return the ids of those epochs that the target has as they are here, or has taken back and could bring back.

        A checkpoint names epochs as not published that were published later. When it is restored, they stay, and a
        reader that has seen them does not see them again. What is not recognised is taken back and published again.

        Raises:
            TargetUnavailableError, FencedError: as for ``commit``.
        """
        return ()

    def check_rewind(self, epoch: int | None) -> None:
        """Check that ``rewind`` takes back what was published after an epoch. Nothing is changed.

        A start checks all sinks of its query before one of them takes anything back. Who has ``rewind`` has this, too.

        Raises:
            RewindError: the target cannot do that.
            TargetUnavailableError: as for ``commit``.
        """
        raise RewindError(self.position, epoch)

    def rewind(self, epoch: int | None) -> None:
        """Take back all that was published after an epoch. None: all of it.

        It may come again, and it may name an epoch that had no rows and was never published.

        Raises:
            As ``check_rewind``. Nothing has changed then.
        """
        raise RewindError(self.position, epoch)

    def check_bring_back(self, epoch: int) -> None:
        """Check that ``bring_back`` publishes up to an epoch. Nothing is changed. Who has ``bring_back`` has this, too.

        Raises:
            As ``check_rewind``.
        """
        raise RewindError(self.position, epoch)

    def bring_back(self, epoch: int) -> None:
        """Publish again what ``rewind`` took back, up to an epoch, if nothing was published since. It may come again.

        Raises:
            As ``check_rewind``. Nothing has changed then.
        """
        raise RewindError(self.position, epoch)

    def close(self) -> None:  # noqa: B027 (not every target has a connection)
        """End the connection. It may be called twice, and never fails."""


Publish = Literal["checkpoint", "batch"]
"""When a sink publishes."""


class TwoPhaseSink(abc.ABC):
    """A sink whose output becomes visible with the checkpoint that closes it: exactly once, but see ``publish``.

    It is a value: what to write and where, without connections. It is sent to the tasks.
    """

    uid: str = "sink"
    """Names the sink in its query. Keep it across restarts."""
    publish: Publish = "checkpoint"
    """When rows become visible: with the checkpoint that has them, or each batch at once, by ``Committer.upsert``."""
    target: ClassVar[str]
    """What it writes to, for messages, such as "PostgreSQL"."""
    output_modes: ClassVar[frozenset[str]] = frozenset({"append", "update", "complete"})
    """The output modes of queries whose rows it takes."""

    @property
    def guarantee(self) -> Guarantee | None:
        """What it promises, if that is not what ``publish`` says of every sink."""
        return None

    def for_rows(self, rows: DataFrame) -> TwoPhaseSink:
        """Return the sink as it takes certain rows: a query's, before anything else, and then those of each batch.

        What ``write`` needs to know besides the rows of its partition is put in here, on the driver.

        Raises:
            ChandyError: it does not take them.
        """
        return self

    @property
    def place(self) -> OutputTarget | None:
        """Where a query finds the output, so that Chandy can tell which ones read it. None: that is not known."""
        return None

    def committed_offsets(self, seconds: float) -> Mapping[int, int]:
        """Return how far readers can read a topic, so that Chandy can tell what a query has not read yet.

        It is called while a checkpoint is taken, if the target is a topic that a query of the pipeline reads.

        Args:
            seconds: how long it may take.

        Returns:
            By partition, the offset behind the last committed record.

        Raises:
            ChandyError: that cannot be told now.
        """
        return {}

    def check(self, schema: pa.Schema) -> Limits | None:
        """Check, before the query starts, that the target takes rows of this schema.

        Returns:
            The values that its columns do not take although their types do. A batch that has them fails. What reaches
            the target in spite of it, because it has changed meanwhile, ``commit`` refuses. None: no such limits.

        Raises:
            ChandyError: it does not: something is missing, of another type, or not permitted.
        """
        return None

    @abc.abstractmethod
    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        """Write one partition of a batch, in a task. It may run again, and only the last result counts."""

    def pre_commit(self, epoch: int, staged: Sequence[Staged]) -> str:
        """Return what ``commit`` needs besides the staged files, for the manifest. It runs on the driver at the cut.

        Args:
            epoch: the id of the epoch that is being closed.
            staged: all that was written for it, by batch and partition. It may be empty.
        """
        return ""

    @abc.abstractmethod
    def recover(self, fence: Fence) -> Committer:
        """Connect to the target, shut out earlier lives of the writer, and read what the target has.

        When it returns, no commit of an earlier life can succeed any more, and none that an earlier connection of
        this life has under way.

        Raises:
            FencedError: a later life publishes.
            OutputTakenError: the output is another pipeline's.
            TargetUnavailableError: the target cannot be reached.
            ChandyError: the target is not as it must be.
        """

    def abort(self, staged: Iterable[Staged], epoch: int) -> None:  # noqa: B027 (staged files need nothing)
        """Forget what was written and will never be part of a checkpoint. Chandy deletes the staged files itself.

        It is not called for everything: after a crash, nobody knows what was written since the last checkpoint. What
        was given to a ``pre_commit`` may come to another one, of another epoch, or to none.

        Args:
            staged: what was written.
            epoch: an id above those of all epochs that were closed. The next one may have it.
        """
