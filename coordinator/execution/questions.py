"""What threads ask the state machine, by name. An answer is taken under the lock, and does not change any more.

What is asked in one place only and needs several facts of one moment, such as a page of the monitor, uses ``read``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TypeVar

from ...state.rpc.messages import HostHello
from ...storage.checkpoints.manifest import Manifest
from ...storage.ids import BatchId, CheckpointId
from ..protocol.life import Life, QueryLife
from ..protocol.shard_assignment import ShardLocations
from ..protocol.state_machine import PipelineStateMachine
from ..protocol.statistics import History

T = TypeVar("T")


class Questions(ABC):
    """The questions, on whatever can read the state machine."""

    @abstractmethod
    def read(self, value: Callable[[PipelineStateMachine], T]) -> T:
        """Return a value of the state machine. ``value`` must not change anything."""

    def life(self) -> Life:
        """Return whether the pipeline runs."""
        return self.read(lambda state: state.life)

    def life_of(self, query: str) -> QueryLife:
        """Return whether a query runs."""
        return self.read(lambda state: state.failover.queries.of(query))

    def must_go_back(self) -> bool:
        """Return whether the next attempt to restart a query takes the whole pipeline back."""
        return self.read(lambda state: state.failover.must_go_back)

    # --- checkpoints ----------------------------------------------------------------------------------------

    def base_manifest(self) -> Manifest | None:
        """Return the manifest that the next checkpoint builds on, or None if there is none yet."""
        return self.read(lambda state: state.checkpoints.retained.base_manifest)

    def is_pending(self, checkpoint: CheckpointId) -> bool:
        """Return whether a checkpoint has begun and has not ended."""
        return self.read(lambda state: checkpoint in state.checkpoints.pending)

    def deadline_of(self, checkpoint: CheckpointId) -> float | None:
        """Return when a pending checkpoint expires, in seconds since 1970, or None if it is not pending."""
        return self.read(
            lambda state: pending.deadline if (pending := state.checkpoints.pending.get(checkpoint)) else None
        )

    def manifest_of(self, checkpoint: CheckpointId, now: float) -> Manifest | None:
        """Return the manifest to be written for a checkpoint, or None if it is not pending any more."""
        return self.read(lambda state: state.manifest(checkpoint, now))

    def doomed(self, manifest: Manifest) -> frozenset[str]:
        """Return the objects that a manifest needs and that retention may have deleted meanwhile."""
        return self.read(lambda state: state.checkpoints.doomed(manifest))

    def there_besides(self, dropped: tuple[CheckpointId, ...]) -> tuple[Manifest, ...]:
        """Return the checkpoints that are not known to be gone, besides some that were dropped together."""
        return self.read(lambda state: state.checkpoints.retained.there_besides(dropped))

    def is_retained(self, key: str) -> bool:
        """Return whether a retained checkpoint needs an object of the store."""
        return self.read(lambda state: state.checkpoints.retained.needs(key))

    def waiting_for_commits(self) -> dict[str, BatchId]:
        """Return the cuts whose commit checkpoints wait for, by query."""
        return self.read(lambda state: state.waiting_for_commits())

    def history(self) -> History:
        """Return a copy of what is known of the checkpoints so far."""
        return self.read(lambda state: state.checkpoints.history.copy())

    # --- the schedule ---------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when time alone changes something next, in seconds since 1970, or None if nothing is due."""
        return self.read(lambda state: state.next_deadline())

    def is_behind(self) -> bool:
        """Return whether the schedule is the one of a pipeline that is behind its sources."""
        return self.read(lambda state: state.admission.schedule.is_behind)

    def interval(self) -> float | None:
        """Return the seconds between periodic checkpoints now, or None if there are none."""
        return self.read(lambda state: state.admission.schedule.current)

    # --- queries, shards and hosts --------------------------------------------------------------------------

    def check_reads(self, name: str, reads: tuple[str, ...]) -> None:
        """Check that a query can read the output of others.

        Raises:
            DefinitionError: it cannot.
        """
        self.read(lambda state: state.queries.check_reads(name, reads))

    def downstream_first(self) -> tuple[str, ...]:
        """Return the queries, each before those whose output it reads."""
        return self.read(lambda state: state.queries.downstream_first())

    def locations(self, query: str, uid: str) -> ShardLocations:
        """Return where the shards of an operator are.

        Raises:
            StateLostError: the host of a shard is gone; the pipeline is about to go back.
        """
        return self.read(lambda state: state.placement.locations(query, uid))

    def shards_wait_for_a_host(self) -> bool:
        """Return whether shards of a lost host wait for another one on its machine to open them."""
        return self.read(lambda state: state.placement.reopenings.are_waiting)

    def hosts(self) -> list[HostHello]:
        """Return the state hosts that are connected."""
        return self.read(lambda state: list(state.members.hosts.values()))

    def is_dismissed(self, host: str) -> bool:
        """Return whether another state host has taken the place of one."""
        return self.read(lambda state: host in state.members.dismissed)

    def empty_hosts(self, executors: Collection[str]) -> list[str]:
        """Return the hosts of executors, by Spark's ids, that have neither shards nor standbys."""
        return self.read(lambda state: state.placement.empty_hosts(executors))
