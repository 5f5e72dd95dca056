"""Spark's own file sink: exactly once, because the log in its output directory goes back with the query."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from ...storage.checkpoints.proof import FenceProof
from ...storage.ids import BatchId
from ...storage.logs import logger
from ..errors import RestoreError, SinkTakenError
from ..permit import Permit
from ..spark.logs.compact_log import DEFAULT_INTERVAL, mended
from . import file_sink_log
from .guarantee import Guarantee, Level
from .owner import Mark, SinkOwner, check_mark, mark_of, pass_on, put_mark
from .place import Output, local_directory
from .sink import Sink, StartPoint

log = logger(__name__)


@attrs.frozen
class FileSink(Sink):
    """A directory that Spark writes files into, and keeps a log of its batches in."""

    path: Path
    format: str
    compact_interval: int = DEFAULT_INTERVAL
    """Spark's setting of the log's compaction interval, in batches."""

    @property
    def guarantee(self) -> Guarantee:
        """Exactly once for those who read the directory through Spark."""
        return Guarantee(
            Level.EXACTLY_ONCE,
            f"the log of the {self.format} sink goes back with the query, and files of batches after the "
            "checkpoint are set aside",
        )

    @property
    def location(self) -> Path:
        """The output directory."""
        return self.path

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The directory, whose rows are visible as soon as a batch commits."""
        return (Output(local_directory(self.path)),)

    def files_at(self, batch: BatchId) -> dict[str, Path]:
        """Return the files of the log after a batch."""
        return file_sink_log.files_at(self.path, batch)

    def begin(self, query: str, beginning: StartPoint) -> None:
        """Check whose the directory is, mark it, put the log back, and set the files of later batches aside.

        Raises:
            RestoreError: it is somebody else's, or the log of the checkpoint belongs to another directory.
        """
        kept = file_sink_log.contents(beginning.files or {})
        elsewhere = file_sink_log.elsewhere(self.path, kept.values())
        # Before the check: what comes after it is somebody else's.
        found = mark_of(self.path)
        if self._check(query, beginning, kept, elsewhere):
            if found is None:
                # Two drivers may adopt one query of plain Spark at once.
                put_mark(self.path, _mark(query, beginning.owner), beginning.proof)
            else:
                pass_on(self.path, _mark(query, beginning.owner), beginning.proof)
        elif not beginning.is_table:
            self.mark(query, beginning.owner, beginning.proof)
        if elsewhere is not None:
            log.warning(
                "the checkpoint's output is another one: this one begins empty, at the checkpoint",
                query=query,
                output=str(self.path),
                output_of_checkpoint=str(elsewhere),
            )
            kept = file_sink_log.emptied(kept)
        wanted = mended(kept, self.compact_interval)
        missing = file_sink_log.restore(self.path, wanted, beginning.proof).missing
        if missing:
            log.warning(
                "files that the sink's log names were deleted by somebody else",
                query=query,
                files=len(missing),
                first=missing[0],
            )

    def mark(self, query: str, owner: SinkOwner, proof: FenceProof) -> None:
        """Mark the directory as a query's own."""
        put_mark(self.path, _mark(query, owner), proof)

    def _check(
        self, query: str, beginning: StartPoint, kept: Mapping[str, bytes], elsewhere: Path | None
    ) -> bool:
        """Refuse to begin in what is not this query's, or would not be whole.

        Returns:
            Whether the output has another mark or none, and passes on to this query.
        """
        # What the version before has left has no mark, but files that the checkpoint names. They are the query's own
        # also in another pipeline that goes on from there, such as from a savepoint.
        is_named = elsewhere is None and any(
            file_sink_log.data_files(one, self.path) for one in kept.values()
        )
        is_marked = check_mark(
            self.path,
            _mark(query, beginning.owner),
            lambda other: is_named and other.query == query and not beginning.is_written_by(other.store),
        )
        wanted = Permit(new_output={query: beginning.checkpoint or 0})
        if elsewhere is not None and not beginning.permits.use(wanted):
            raise RestoreError(
                f"query {query!r} does not fit the checkpoint, whose output names files of another directory",
                f"the output {elsewhere}",
                str(self.path),
                f"use that path; or pass {beginning.permits.advice(wanted)}, and the new output begins empty and "
                "gets the rows after the checkpoint",
            )
        newest = file_sink_log.newest(self.path)
        is_own = beginning.is_adopted or (
            is_marked and (beginning.files is not None or beginning.may_begin_anew)
        )
        if newest >= 0 and not is_own and not is_named:
            if is_marked:
                raise self._not_in_checkpoint(query, newest)
            raise SinkTakenError(
                f"query {query!r} cannot begin in its output {self.path}",
                "no log of batches there, or one that this query has written, because Spark would skip as many batches",
                f"one up to batch {newest} of another query or program",
                "choose another path, delete this one, or restore the checkpoint that belongs to it",
            )
        return is_named and not is_marked

    def _not_in_checkpoint(self, query: str, newest: int) -> SinkTakenError:
        """Return the error for a query that has no checkpoint to begin from although its output is not empty."""
        return SinkTakenError(
            f"query {query!r} cannot begin: it is not in the checkpoint that was chosen with `restore`, so it begins "
            "with the first rows of its sources",
            f"nothing in its output {self.path}, because Spark would skip as many batches as the log there has",
            f"its own output of an earlier life, up to batch {newest}",
            "restore a checkpoint that has the query, if there is one (`chandy show` names the queries of each). "
            f"Otherwise choose: delete {self.path}, and the query writes everything again; choose another path, and "
            "what is there stays; or leave `restore` out to go on from the latest checkpoint",
        )

    def is_ahead_of(self, batch: BatchId) -> bool:
        """Return whether the log has a later batch."""
        return file_sink_log.newest(self.path) > batch


def _mark(query: str, owner: SinkOwner) -> Mark:
    return Mark(owner.store, owner.pipeline, query)
