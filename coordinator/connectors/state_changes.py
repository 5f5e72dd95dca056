"""A stream of another pipeline's changes, as the coordinator sees it: what it still has, and what it can release."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from ...state.reader.feed_offsets import FeedOffset, in_place
from ...state.reader.names import BATCH, CHECKPOINT
from ...storage.backends.open import open_store
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.pins import Pins
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import ChandyError
from ...storage.ids import CheckpointId
from ...storage.logs import logger
from ..errors import WriterError
from ..sources.background import Newest
from ..sources.errors import LostOffsets, SourceLostError
from ..sources.source import Source, Standing

log = logger(__name__)

_CLOSE_SECONDS: Final = 5.0
"""How long a stop waits until what the last checkpoint does not need is released."""


class StateChangesSource(Source):
    """A stream of changes that a query reads."""

    def __init__(self, pins: Pins, query: str, proof: FenceProof) -> None:
        """Make it. Nothing is asked for yet.

        Args:
            pins: of the reader.
            query: the name of the query.
            proof: that no successor of the query's pipeline goes on from what is released.
        """
        self.pins = pins
        self.began_at: int | None = None
        """The checkpoint whose state had been read when the newest run began."""
        self.completed_at: int | None = None
        """The checkpoint whose state the newest completed checkpoint of the query has read."""
        self._query = query
        self._proof = proof
        self._released = Newest("chandy-release", self._release)

    @override
    def check(self, standing: Standing) -> None:
        if standing.offset is None:
            return
        read = _read(standing.offset)
        self.began_at = read.at
        if read.needed is None:
            return
        store = self.pins.store
        catalog = Catalog(store)
        try:
            there = catalog.list_ids()
            now = catalog.read(read.needed).completed_at if read.needed in there else None
        except (OSError, ChandyError) as error:
            log.warning(
                "cannot tell whether the changes go on; Spark finds out by itself",
                query=self._query,
                error=str(error),
            )
            return
        if found := in_place(read.completed_at, now, there):
            raise SourceLostError(
                f"query {self._query!r} cannot go on where it stood: what it has read is gone from {store.uri}",
                f"checkpoint {read.needed}",
                found,
                "restore a newer checkpoint of this pipeline, if there is one; or start over, with another name for "
                "the reader and an empty target",
                (
                    LostOffsets(
                        f"the changes for reader {self.pins.reader!r}",
                        read.needed,
                        min(there, default=None),
                        None,
                    ),
                ),
            )

    @override
    def completed(self, offset: str) -> None:
        self.completed_at = _read(offset).at
        if (needed := _read(offset).needed) is not None:
            self._released.give(needed)

    @override
    def close(self) -> None:
        self._released.close(_CLOSE_SECONDS)

    def _release(self, at: CheckpointId) -> None:
        try:
            self.pins.release_before(at, self._proof)
        except (OSError, ChandyError) as error:
            log.warning(
                "cannot release what the query has read; the next checkpoint tries again",
                query=self._query,
                error=str(error),
            )


def state_changes(options: Mapping[str, str], query: str, proof: FenceProof) -> StateChangesSource:
    """Return the stream of changes that a query reads.

    Args:
        options: of the source, with their names in lower case.
        query: the name of the query.
        proof: of the query's pipeline.

    Raises:
        WriterError: the stream would release what the query's own checkpoints still need.
    """
    if options.get("release", BATCH) != CHECKPOINT:
        raise WriterError(
            f"query {query!r} cannot be started",
            f"a stream of changes that waits for this pipeline's checkpoints: release={CHECKPOINT!r}",
            f"one that releases a checkpoint once a batch has committed: release={BATCH!r}",
            f"call stream_changes(..., release={CHECKPOINT!r})",
        )
    return StateChangesSource(Pins(open_store(options["path"]), options["reader"]), query, proof)


def _read(offset: str) -> FeedOffset:
    return FeedOffset.of(json.loads(offset))
