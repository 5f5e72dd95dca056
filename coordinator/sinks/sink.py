"""What a sink is to the coordinator: what it promises, what a checkpoint keeps of it, how it goes back."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ...state.shards import NotResumable
from ...storage.checkpoints.batch_record import Digest
from ...storage.checkpoints.manifest import OutputRecord
from ...storage.checkpoints.proof import FenceProof
from ...storage.ids import NO_BATCH, BatchId, CheckpointId
from ..permit import NOTHING_PERMITTED, Permits
from .guarantee import Guarantee
from .owner import SinkOwner
from .place import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

RECORDS: Final = "staged"
"""The folder in a query's working directory that says what its batches have staged for transactional sinks."""


@attrs.frozen
class StartPoint:
    """Where a query begins, as far as its sink goes."""

    owner: SinkOwner
    proof: FenceProof
    """Is checked before each step: the output is a successor's from its claim on."""
    files: Mapping[str, Path] | None
    """What ``files_at`` gave for the checkpoint; empty if the output was empty; None if no checkpoint has the query."""
    is_table: bool = False
    """Whether Spark makes the output as a table when the query starts, and wants to find nothing there before."""
    may_begin_anew: bool = False
    """Whether, without a checkpoint, batches that the query itself has written may be undone."""
    is_written_by: Callable[[str], bool] = lambda store: True
    """Whether the pipeline with the store at a URI writes into its outputs now."""
    permits: Permits = NOTHING_PERMITTED
    """What may be given up: whether the output may be another one than the checkpoint's, and begin empty."""
    directory: Path = Path()
    """The query's working directory."""
    checkpoint: CheckpointId | None = None
    """Id of the checkpoint; None if it begins without one."""
    batch: BatchId = NO_BATCH
    """The query's last batch in the checkpoint."""
    root: str = ""
    """URI of the store that the checkpoint is in."""
    outputs: tuple[OutputRecord, ...] = ()
    """What the checkpoint has of the query's transactional sinks."""
    keep_chosen: Callable[[], None] = lambda: None
    """Records which checkpoint a user has chosen. It is called before an output is changed for it, if not refused."""
    is_adopted: bool = False
    """Whether the query is adopted from plain Spark: ``files`` are what its predecessor wrote into the output."""


class Sink(abc.ABC):
    """The sink of one query, between the batches of that query.

    A checkpoint treats a sink in four steps. Spark's own sinks need the first and the last, transactional ones the
    last three:

    1. *Keep* (``files_at``): at the cut, the checkpoint keeps the files that say what the output was.
    2. *Pre-commit* (``close_epoch``, ``pre_commit``): the manifest says what is to be published.
    3. *Commit*: it is published once the manifest is confirmed, before the checkpoint's future is resolved.
    4. *Go back* (``begin``): when the pipeline goes back, the output goes back with it, or it stays and rows repeat.
    """

    @property
    @abc.abstractmethod
    def guarantee(self) -> Guarantee:
        """How often a row's effect can be seen in the output, and why."""

    @property
    def location(self) -> Path | None:
        """The directory that Spark's own file sink writes, by which a later life knows the sink again; None: none."""
        return None

    @property
    def uids(self) -> tuple[str, ...]:
        """The uids of transactional sinks, whose output becomes visible with the checkpoint that has it."""
        return ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Where other queries can read the output, as far as that is known."""
        return ()

    def writer_of(self, uid: str) -> str:
        """Return how its target names a transactional sink, as in ``Fence.writer``."""
        raise KeyError(uid)

    def committed_offsets(self, uid: str, seconds: float) -> Mapping[int, int]:
        """Return how far readers can read the topic of a transactional sink, as ``TwoPhaseSink`` has it."""
        raise KeyError(uid)

    def begin(self, query: str, beginning: StartPoint) -> None:
        """Put the output to where a query begins. Nobody else writes into it.

        After a crash in between, the same call does the rest.

        Args:
            query: the query's name.
            beginning: where it begins, and what it may do there.

        Raises:
            FencedError: there is a successor. From then on nothing was changed.
            RestoreError: the output is not this query's, or another one than the checkpoint's. Nothing was changed.
        """
        return

    def resume(self, query: str, beginning: StartPoint, last: BatchId) -> None:
        """Keep the output as it is: a query goes on behind its checkpoint. Nobody else writes into the output.

        Args:
            query: the query's name.
            beginning: the checkpoint that it has behind it.
            last: the query's newest committed batch.

        Raises:
            RestoreError: the output is not this query's.
        """
        self.mark(query, beginning.owner, beginning.proof)

    def mark(self, query: str, owner: SinkOwner, proof: FenceProof) -> None:
        """Mark the output as a query's own, which it is.

        Raises:
            FencedError: it is a successor's.
            SinkTakenError: it is marked as another query's.
        """
        return

    def files_at(self, batch: BatchId) -> dict[str, Path]:
        """Return the files that say what the output was after a batch, by name. The query may be running.

        Raises:
            IncompleteDirectoryError: the files no longer reach back to the batch.
        """
        return {}

    def digests(self, batch: BatchId) -> dict[str, Digest]:
        """Return what went out in a batch, by the uids of transactional sinks; nothing if nobody has taken a digest.

        The query may be running. Digests of the newest batches are kept, also over restarts on the same machine.
        """
        return {}

    def close_epoch(self, checkpoint: CheckpointId, cut: BatchId) -> None:  # noqa: B027 (Spark's own sinks have no epochs)
        """Close off the output up to a cut. It is called in the order of the cuts, and must not take long."""

    def pre_commit(self, checkpoint: CheckpointId) -> tuple[OutputRecord, ...]:
        """Return what a checkpoint's manifest must say of the output, whose epoch has been closed.

        Raises:
            ChandyError: it cannot be published. The checkpoint fails.
        """
        return ()

    def commit(self, checkpoint: CheckpointId) -> None:  # noqa: B027 (see above)
        """Begin to publish what a completed checkpoint has; the checkpoints come in the order of their ids."""

    def interrupt(self) -> None:  # noqa: B027 (see above)
        """End what a batch waits for: its query is about to be stopped."""

    def close(self) -> None:  # noqa: B027 (see above)
        """Publish what is complete, for a bounded time, and end all connections."""

    def obstacle(self, directory: Path, restored: BatchId, committed: BatchId) -> NotResumable | None:
        """Return what of the output since a checkpoint is not there for a query to go on behind it; None if all is.

        Args:
            directory: working directory of the run to resume, which has ended.
            restored: the query's last batch in the checkpoint.
            committed: its newest committed batch.
        """
        if self.is_ahead_of(committed):
            return NotResumable(f"has a sink with a later batch than {committed}, the newest committed one")
        if (directory / RECORDS).exists():
            # The query goes back to what is for them in the checkpoint.
            return NotResumable("has staged output for transactional sinks that it has no more")
        return None

    def is_ahead_of(self, batch: BatchId) -> bool:
        """Return whether the sink has taken a later batch.

        Spark passes over a batch that its file sink has, and runs no task of it. So a query may not go on behind
        a sink that is ahead: no shard would learn of the batch.
        """
        return False


class GivenSink(Sink):
    """A sink that ``CheckpointCoordinator.start`` was given, in place of a writer's own."""

    @abc.abstractmethod
    def attach(
        self,
        writer: DataStreamWriter,
        table: str | None,
        rows: DataFrame,
        made_of: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        """Make a writer call this sink with each batch, and check that the targets take its rows.

        Args:
            table: the table that the query is to write; there must be none.
            rows: has the schema of what the sink takes.
            made_of: returns what the sink takes of a batch; None: the batch itself.

        Raises:
            WriterError: the query is to write something else, too.
            ChandyError: a target cannot take the rows.
        """

    @abc.abstractmethod
    def check_mode(self, mode: str) -> None:
        """Check that the targets take what a query emits in an output mode.

        Raises:
            WriterError: one does not.
        """

    @abc.abstractmethod
    def take_nothing_back(self) -> None:
        """Forbid rewinding: another query already reads this output. Called before ``begin``."""
