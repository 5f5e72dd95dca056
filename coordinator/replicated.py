"""The methods of a coordinator that keep copies of its state in other systems."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .config import CheckpointConfig
from .operators import AddsOperators, name_taken
from .permit import Permit
from .protocol.acts import ActKind
from .sinks.two_phase.contract import TwoPhaseSink
from .sinks.two_phase.sink_set import sinks_of
from .spark.session import inherited
from .user_acts import UserActs, Wanted
from .wiring.taken_pipeline import TakenPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .connectors.kafka.schema_registry import SchemaRegistry
    from .replication.formats import Format
    from .replication.replica import Replica


class KeepsReplicas(AddsOperators):
    """What a coordinator keeps copies of its state with."""

    _spark: SparkSession
    _pipeline: str
    _storage: str
    _config: CheckpointConfig
    _permit: Permit
    _taken: TakenPipeline
    _replicas: dict[str, Replica]
    _rerun: Any
    _acts: UserActs

    @abstractmethod
    def _check_running(self) -> None:
        """Raise an error if the pipeline has been stopped."""

    @abstractmethod
    def _refusing(self) -> AbstractContextManager[None]:
        """Tell of what a running pipeline refuses inside of the ``with``."""

    def replicate(
        self,
        operator: str,
        *,
        to: TwoPhaseSink | Sequence[TwoPhaseSink],
        name: str,
        state: str | None = None,
        format: Format | None = None,
        before: bool = False,
        shards_per_batch: int | None = None,
        registry: SchemaRegistry | None = None,
    ) -> Replica:
        """Keep a copy of a state in another system, which follows this pipeline from checkpoint to checkpoint.

        The target gets the whole state first, and then what each checkpoint has changed, in the sink's transactions.
        So whenever it is read, it equals the state at a checkpoint. If the pipeline goes back, it gets the changes that
        lead back.

        The replica is a pipeline of its own beside this one: no checkpoint waits for it, and it ends with this
        coordinator. Call this in each life of the driver; the replica goes on where it was.

        Args:
            operator: uid of an operator of this pipeline.
            to: a transactional sink, or several that get the same rows.
            name: of the replica. Keep it across restarts, and after ``Replica.stop`` to go on.
            state: its name; None: the only one; "$dead_letters": dead letters. Of an aggregate, results are replicated.
            format: "table", "upsert", "debezium" or "changes", see the page on replication. None: what fits the sink:
                "upsert" for Kafka, "table" for a sink that upserts, and else "changes".
            before: whether "debezium" and "changes" have the value before, too.
            shards_per_batch: how many shards are copied at a time at first; None: all.
            registry: Kafka's messages are in Avro, and their schemas in this registry. None: messages are in JSON.

        Raises:
            PipelineNameError: there is no such operator or state, or the name is taken.
            ReplicaError: the sink cannot hold a copy of the state, or has one in another form.
            NotCarriedOutError: the pipeline is being stopped, or another call begins or drops a replica of this name.
            FencedError: another driver has taken the pipeline over, and its replicas with it.
            ChandyError: the sink cannot be used; a subclass says which.
        """
        # Only a driver that replicates loads what reads state.
        from .replication.replicating import Replicating

        def begin(wanted: Wanted) -> Replica:
            with self._refusing():
                if self._rerun is not None:
                    replica: Replica = self._rerun.replica(name, operator, state, format)
                    return replica
                if name in {replica.name for replica in self.replicas}:
                    raise name_taken("replica", name)
                start = Replicating(
                    type(self),
                    self._spark,
                    self._pipeline,
                    self._storage,
                    self._taken.catalog.store.uri,
                    self._config,
                    self._permit,
                    self._taken.watch.proof,
                    self._acts,
                )
                with self._growing():
                    record, spec = self._operators.record(operator), self._operators.spec(operator)
                self._replicas[name] = start.replica(
                    record,
                    spec,
                    wanted,
                    state=state,
                    to=sinks_of(to),
                    name=name,
                    format=format,
                    before=before,
                    shards_per_batch=shards_per_batch,
                    registry=registry,
                )
                return self._replicas[name]

        self._check_running()
        return self._acts.do(ActKind.REPLICATE, name, inherited(self._spark, begin))

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The replicas that have not been stopped, in the order in which they were started first."""
        return tuple(replica for replica in self._replicas.values() if not replica.is_stopped)
