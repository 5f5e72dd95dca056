"""The reports of hosts, tasks and checkpoints, for the part that keeps the queries running."""

from __future__ import annotations

from typing import Protocol

from ...state.rpc.messages import ShardsRestored, TaskFailure
from ...storage.checkpoints.manifest import Manifest
from ...storage.errors import FailureCode
from ..protocol.decisions import Decision
from ..protocol.errors import CheckpointError
from ..protocol.statistics import CheckpointStatistics


class News(Protocol):
    """Tells users of what happens. Nothing waits for it."""

    def failed(self, error: CheckpointError) -> None:
        """Tell that a checkpoint has failed, or that a request for one was refused."""
        ...

    def measured(self, statistics: CheckpointStatistics) -> None:
        """Tell what a checkpoint that has ended took."""
        ...

    def host_replaced(self, why: str, promoted: int, reopened: int) -> None:
        """Tell that others are about to take the shards of a lost host over.

        Args:
            why: what became of the host.
            promoted: the number of shards whose standbys take their place.
            reopened: the number of shards that are opened again from the changelogs on the machine.
        """
        ...


class Reports(Protocol):
    """Takes reports in. They come from many threads, and none may wait for anything that may be away."""

    def decided(self, decision: Decision) -> None:
        """Have a decision carried out, about a loss or a failure that the protocol has noticed by itself."""
        ...

    def processor_failed(self, failure: TaskFailure) -> None:
        """Report that a user's processor raised; the query's failure will follow."""
        ...

    def shards_restored(self, restored: ShardsRestored) -> None:
        """Report that a host has restored shards."""
        ...

    def shards_not_opened(self, query_id: str, why: str, code: FailureCode | None = None) -> None:
        """Report that shards could not be opened, or are damaged, although no task has needed them yet.

        Args:
            query_id: Spark's id of their query.
            why: what was found.
            code: what it means; None if nothing is known about it.
        """
        ...

    def checkpoint_completed(self, manifest: Manifest, root: str) -> None:
        """Report that a checkpoint has completed, before anybody else is told.

        Args:
            manifest: of the checkpoint.
            root: URI of where it is.
        """
        ...

    @property
    def news(self) -> News:
        """Takes what users are told of, and what changes nothing for the queries."""
        ...
