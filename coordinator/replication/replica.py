"""A replica that runs: a pipeline of its own beside the one whose state it copies. Neither waits for the other."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Protocol

from ...state.reader.feed_offsets import FeedOffset
from ...storage import runtime
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.proof import FenceProof
from ...storage.logs import logger
from ..checkpoint import Checkpoint
from ..connectors.state_changes import StateChangesSource
from ..durations import Duration, seconds
from ..errors import ReplicaError
from ..protocol.acts import ActKind
from ..query import CheckpointedQuery
from ..replica_status import ReplicaStatus
from ..user_acts import UserActs
from .formats import Format

log = logger(__name__)

_LOOK_SECONDS: Final = 0.05


class ReplicaPipeline(Protocol):
    """The pipeline that writes a replica: a ``CheckpointCoordinator``."""

    @property
    def queries(self) -> tuple[CheckpointedQuery, ...]:
        """Its only query."""
        ...

    def checkpoint(self) -> Future[Checkpoint]:
        """Take a checkpoint."""
        ...

    def stop(self, *, timeout: Duration) -> object:
        """Stop it."""
        ...


class Replica:
    """A copy of a state in another system, which follows the pipeline from checkpoint to checkpoint.

    The target equals the state at a checkpoint whenever a transaction of the sink is complete. The pipeline does not
    wait for it: while the target is away, the pipeline keeps the checkpoint that the target has, and afterwards the
    replica catches up in one step.
    """

    def __init__(
        self,
        *,
        name: str,
        operator: str,
        state: str,
        format: Format,
        pipeline: ReplicaPipeline,
        source: StateChangesSource,
        proof: FenceProof,
        acts: UserActs,
    ) -> None:
        """Make what a user sees of a replica that runs.

        Args:
            name, operator, state, format: what it is of, and how it is written.
            pipeline: what writes it.
            source: the changes that it reads.
            proof: that no successor has taken over the pipeline whose state is copied.
            acts: those of that pipeline.
        """
        self.name = name
        self._operator = operator
        self._state = state
        self._format: Format = format
        self._pipeline = pipeline
        self._source = source
        self._proof = proof
        self._acts = acts
        self.is_stopped = False
        """Whether the user or the end of the driver has stopped it."""

    @property
    def query(self) -> CheckpointedQuery:
        """The query that writes it."""
        return self._pipeline.queries[0]

    @property
    def status(self) -> ReplicaStatus:
        """How far it has come. No store is asked."""
        error = self.query.exception()
        return ReplicaStatus(
            name=self.name,
            operator=self._operator,
            state=self._state,
            format=self._format,
            targets=tuple(self.query.definition.sink.uids),
            checkpoint=self._source.completed_at,
            is_active=self.query.isActive,
            error=None if error is None else str(error),
        )

    def catch_up(self, timeout: Duration = "1 min") -> int:
        """Wait until the target has the state of the checkpoint that is the pipeline's newest now, or a newer one.

        Returns:
            The id of that checkpoint; 0 if there is none.

        Raises:
            ReplicaError: it has failed for good, or the time was too short.
            CheckpointError: a checkpoint of the replica has failed.
        """
        deadline = runtime.monotonic() + seconds(timeout)
        newest = Catalog(self._source.pins.store).latest()
        wanted = 0 if newest is None else newest.id
        while True:
            error = self.query.exception()
            if error is not None:
                raise ReplicaError(
                    f"replica {self.name!r} has failed", "one that runs", str(error)
                ) from error
            left = deadline - runtime.monotonic()
            if left <= 0:
                raise ReplicaError(
                    f"replica {self.name!r} has not caught up in time",
                    f"checkpoint {wanted}",
                    f"checkpoint {self._source.completed_at}",
                    "see its query for what it waits for; it goes on",
                )
            if self._has_read(wanted):
                # Its future is done once the target has what it has.
                with suppress(TimeoutError):
                    self._pipeline.checkpoint().result(left)
                    return wanted
            else:
                runtime.sleep(_LOOK_SECONDS)

    def _has_read(self, wanted: int) -> bool:
        """Whether a batch has committed that ends with a checkpoint, or a later one."""
        progress = self.query.lastProgress
        # Of PySpark's own attributes, 4.1 has an offset as the text of a dict. Its JSON is that of the JVM.
        sources = [] if progress is None else json.loads(progress.json)["sources"]
        ends = [source["endOffset"] for source in sources if isinstance(source["endOffset"], dict)]
        read = [FeedOffset.of(end).at for end in ends] + [self._source.began_at]
        return any(at is not None and at >= wanted for at in read)

    def stop(self, timeout: Duration = "1 min") -> None:
        """Stop it. The pipeline keeps the checkpoint that the target has, so that ``replicate`` goes on from there."""
        self._pipeline.stop(timeout=timeout)
        self.is_stopped = True

    def drop(self, timeout: Duration = "1 min") -> None:
        """Stop it for good: the pipeline keeps nothing for it any more. The target stays as it is.

        To replicate the state again, use another name and an empty target.

        Raises:
            FencedError: another driver has taken the pipeline over, and the replica with it. Nothing was done.
            NotCarriedOutError: another call begins or drops a replica of this name.
        """
        self._acts.do(ActKind.DROP, self.name, lambda _: self._drop(timeout))

    def _drop(self, timeout: Duration) -> None:
        self._proof.check_now()
        self.stop(timeout)
        released = self._source.pins.release(self._proof)
        log.info("a replica is dropped", replica=self.name, released=released)

    def __repr__(self) -> str:
        status = self.status
        at = "nothing yet" if status.checkpoint is None else f"checkpoint {status.checkpoint}"
        life = "running" if status.is_active else "failed" if status.error else "stopped"
        return f"Replica(name={self.name!r}, operator={self._operator!r}, state={self._state!r}, at={at}, {life})"
