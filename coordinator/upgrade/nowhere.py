"""The sink in whose stead a query's own sinks are not asked: its rows are counted, and kept if somebody wants them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import attrs
from typing_extensions import override

from ..sinks.two_phase.contract import Committer, Epoch, Fence, Staged, WriteContext
from ..sinks.two_phase.staged import StagedSink

if TYPE_CHECKING:
    import pyarrow as pa


class NowhereCommitter(Committer):
    """Publishes nothing."""

    def __init__(self) -> None:
        self._position: int | None = None

    @property
    @override
    def position(self) -> int | None:
        return self._position

    @override
    def commit(self, epoch: Epoch) -> None:
        self._position = epoch.id

    @override
    def check_rewind(self, epoch: int | None) -> None:
        return

    @override
    def rewind(self, epoch: int | None) -> None:
        self._position = epoch


@attrs.frozen
class Nowhere(StagedSink):
    """Publishes no rows. It has the uid of the sink in whose stead it is."""

    target: ClassVar[str] = "nowhere"

    uid: str
    rows: str | None = None
    """URI of a store that the rows of each batch go into as Parquet; None: they are not kept."""

    @override
    def write(self, batches: Iterator[pa.RecordBatch], context: WriteContext) -> Staged:
        if self.rows is None:
            return Staged(sum(batch.num_rows for batch in batches))
        kept = super().write(batches, attrs.evolve(context, store=self.rows))
        return Staged(kept.rows, note=json.dumps([file.key for file in kept.files]))

    @override
    def recover(self, fence: Fence) -> Committer:
        return NowhereCommitter()


def kept(staged: Sequence[Staged]) -> tuple[str, ...]:
    """Return the keys of the objects with the rows that were written; none if rows were not kept."""
    return tuple(key for one in staged if one.note for key in json.loads(one.note))
