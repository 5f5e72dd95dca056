"""Watches whether queries are behind their sources: checkpoints then keep to another interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ...storage.logs import logger
from ..protocol import events
from .locked_protocol import LockedProtocol

log = logger(__name__)


class ReadingQuery(Protocol):
    """A ``CheckpointedQuery``."""

    def is_behind(self) -> bool:
        """Return whether a source had more than the latest batch has taken."""
        ...


class Backlog:
    """Tells the checkpoint protocol when a pipeline falls behind its sources and when it has caught up, look by look.

    Args:
        protocol: the protocol of the pipeline.
        queries: returns the queries of the pipeline.
    """

    def __init__(self, protocol: LockedProtocol, queries: Callable[[], Iterable[ReadingQuery]]) -> None:
        self._protocol = protocol
        self._queries = queries

    def look(self) -> None:
        """Look at the latest batch of each query."""
        is_behind = any(query.is_behind() for query in self._queries())
        if is_behind == self._protocol.is_behind():
            return
        self._protocol.handle(events.BacklogChanged(is_behind))
        what = "is behind" if is_behind else "has caught up with"
        log.info(f"the pipeline {what} its sources", checkpoints_every=self._protocol.interval())
