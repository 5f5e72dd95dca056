"""What takes the place of a query's sinks: it takes a digest of their rows, and keeps them if somebody wants them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import attrs
from typing_extensions import override

from ...storage.checkpoints.batch_record import Digest, total
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
        # Tasks alone load it.
        from ..sinks.two_phase.digest import Digester

        digester = Digester()
        passing, keys = digester.over(batches), list[str]()
        if self.rows is None:
            for _ in passing:
                pass
        else:
            files = super().write(passing, attrs.evolve(context, store=self.rows)).files
            keys = [file.key for file in files]
        digest = digester.digest
        return Staged(digest.rows, note=json.dumps([attrs.asdict(digest), keys]))

    @override
    def recover(self, fence: Fence) -> Committer:
        return NowhereCommitter()


def taken(staged: Sequence[Staged]) -> tuple[Digest, tuple[str, ...]]:
    """Return the digest of what the tasks of a batch have written, and the keys of the objects with the rows."""
    notes = [json.loads(one.note) for one in staged]
    keys = tuple(key for _, found in notes for key in found)
    return total(Digest(**digest) for digest, _ in notes), keys
