"""What watches a pipeline from outside: it is told of events, and asks for facts. The page of a driver is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, Protocol

import attrs

from ..state.rpc.metrics import OperatorMetrics
from ..storage.checkpoints.manifest import OperatorRecord
from ..storage.store import Store
from .checkpoint import Checkpoint
from .durations import Duration
from .execution.executor import CheckpointExecutor
from .recovery.pipeline_events import PipelineEvent
from .recovery.supervisor import Supervisor
from .replica_status import ReplicaStatus


class HasStatus(Protocol):
    """A ``Replica``."""

    @property
    def status(self) -> ReplicaStatus:
        """How far it has come."""
        ...


class Orders(Protocol):
    """What can be asked of a pipeline besides facts: a ``CheckpointCoordinator``, whose docstrings say it all."""

    @property
    def replicas(self) -> Sequence[HasStatus]:
        """Its replicas."""
        ...

    def checkpoint(self) -> Future[Checkpoint]:
        """Take a checkpoint."""
        ...

    def savepoint(self, target: str | None) -> Future[Checkpoint]:
        """Take a savepoint."""
        ...

    def drain(self, machine: str, timeout: Duration) -> None:
        """Move all shards of a machine to others."""
        ...

    def rescale(self, operator: str, parallelism: int | None, timeout: Duration) -> None:
        """Have another number of tasks run an operator."""
        ...

    def switch(
        self, shadow: str | None, timeout: Duration, *, although_different: bool, keep_old: Duration
    ) -> None:
        """Have a shadow take the pipeline over."""
        ...

    def stop(self, savepoint: str | None, *, hand_over: bool) -> object:
        """Stop the pipeline, and with it the server."""
        ...

    def get(self, operator: str, key: Any, state: str | None) -> Any:
        """Return the current value of a state for a key."""
        ...


@attrs.frozen(kw_only=True)
class Running:
    """The parts of a pipeline that runs which an observer asks. They answer from memory."""

    executor: CheckpointExecutor
    supervisor: Supervisor
    metrics_by_host: Callable[[OperatorRecord], Mapping[tuple[str, str], OperatorMetrics]]
    store: Store
    """The pipeline's own."""
    application: str
    """Spark's id of the application."""
    spark_ui: str
    """Address of Spark's own pages; empty if there are none."""
    followed: Store | None = None
    """That of the pipeline whose batches it runs; None: it runs its own."""


class Observer(Protocol):
    """Watches one pipeline, from before this driver leads it."""

    @property
    def url(self) -> str | None:
        """Where it answers; None: nowhere."""
        ...

    def tell(self, event: PipelineEvent) -> object:
        """Take an event. It waits for nothing, and raises nothing."""
        ...

    def lead(self, store: Store, generation: int, clock: Callable[[], float]) -> None:
        """Learn that this driver leads the pipeline now, with a store of its own and a generation."""
        ...

    def follow(self, running: Running) -> Callable[[], object]:
        """Begin to look at the pipeline, and return what ends that."""
        ...

    def pass_orders_to(self, orders: Orders) -> None:
        """Learn who does as people ask."""
        ...


Watch = Callable[[ExitStack], Observer]
"""Begins to watch; the stack ends it."""
