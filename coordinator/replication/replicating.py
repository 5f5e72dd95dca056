"""Starts replicas: makes the DataFrame of changes, and the pipeline that writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from ...state.aggregation.aggregate_operator import STATE, AggregateSpec
from ...state.aggregation.aggregates import Aggregates
from ...state.format.keyspace import LETTERS
from ...state.reader.aggregate_results import finished
from ...state.reader.reading import stream_declared
from ...state.reader.stored import StoredState
from ...storage.backends.open import open_store
from ...storage.checkpoints.layout import replica_pipeline
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.checkpoints.proof import FenceProof
from ...storage.keys import validate_name
from ...storage.uri import join_uri
from ..config import CheckpointConfig
from ..connectors.kafka.schema_registry import SchemaRegistry
from ..connectors.state_changes import StateChangesSource
from ..durations import Duration
from ..errors import ArgumentError, PipelineNameError, ReplicaError
from ..permit import Permit
from ..savepoints import Savepoints
from ..sinks.two_phase.contract import TwoPhaseSink
from ..user_acts import UserActs, Wanted
from .avro import namespace
from .contents import Contents, keep
from .encodings import Avro, Encoding, Json
from .formats import DELETED, MESSAGES, ChangedRows, Format, Origin, check_format
from .replica import Replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...state.operators.engine import OperatorSpec

_INTERVAL: Duration = "10 s"
"""How often a replica is published if the pipeline itself takes no periodic checkpoints."""


@attrs.frozen
class Replicated:
    """A state that is to be replicated."""

    pipeline: str
    operator: OperatorRecord
    """As the running program has it."""
    state: str
    aggregates: Aggregates | None
    """What the operator computes; None if it computes no aggregates."""

    @classmethod
    def of(
        cls, pipeline: str, operator: OperatorRecord, state: str | None, aggregates: Aggregates | None
    ) -> Replicated:
        """Return a state of an operator.

        Args:
            pipeline: the name of the pipeline.
            operator: its record.
            state: the name of the state; None: the only one.
            aggregates: what the operator computes.

        Raises:
            PipelineNameError: there is no such state, or several and none is named.
        """
        names = list(operator.states)
        if state is None and len(names) == 1:
            (state,) = names
        if state == LETTERS:
            aggregates = None
        elif state not in names:
            raise PipelineNameError(
                f"a state of operator {operator.uid!r} cannot be replicated",
                f"one of its states: {', '.join(map(repr, names)) or 'it has none'}",
                "none was named" if state is None else repr(state),
            )
        return cls(pipeline, operator, state, aggregates)

    def changes(
        self,
        spark: SparkSession,
        uri: str,
        reader: str,
        *,
        before: bool,
        shards_per_batch: int | None,
        cache_dir: str | None,
    ) -> ChangedRows:
        """Return the changes as a streaming DataFrame; arguments are those of ``stream_declared``."""
        rows = stream_declared(
            spark,
            uri,
            reader,
            self.operator,
            self.state,
            before=before,
            shards_per_batch=shards_per_batch,
            cache_dir=cache_dir,
        )
        own = StoredState.of(self.operator, self.state)
        value = own.value_columns
        if self.aggregates is None:
            return ChangedRows(rows, own.key_columns, tuple(value.values()))
        rows = finished(rows, self.aggregates, value)
        return ChangedRows(rows, own.key_columns, tuple(field.name for field in self.aggregates.output))


@attrs.frozen
class Replicating:
    """Starts the replicas of one pipeline."""

    coordinators: Callable[..., Any]
    """The class ``CheckpointCoordinator``."""
    spark: SparkSession
    pipeline: str
    """Its name."""
    storage: str
    """Where it keeps its checkpoints, and where its replicas keep theirs."""
    uri: str
    """Its folder there."""
    config: CheckpointConfig
    permit: Permit
    """What a start may give up, of its replicas, too: their queries have names of their own."""
    proof: FenceProof
    """That no successor has taken the pipeline over: its replicas are part of it."""
    acts: UserActs

    def replica(
        self,
        operator: OperatorRecord,
        spec: OperatorSpec,
        act: Wanted,
        *,
        state: str | None,
        to: Sequence[TwoPhaseSink],
        name: str,
        format: Format | None,
        before: bool,
        shards_per_batch: int | None,
        registry: SchemaRegistry | None,
    ) -> Replica:
        """Start a replica.

        Args:
            operator: what is to be replicated, as the running program has it.
            spec: its definition.
            act: the request for it.
            state, to, name, format, before, shards_per_batch, registry: as for ``CheckpointCoordinator.replicate``.

        Raises:
            FencedError: another driver has taken the pipeline over. Nothing was done.
            ChandyError: as there.
        """
        self.proof.check_now()
        validate_name("replica", name)
        wanted = _format(format, to)
        aggregates = spec.aggregates if isinstance(spec, AggregateSpec) else None
        # Sessions are kept in another form.
        replicated = Replicated.of(
            self.pipeline, operator, state, aggregates if STATE in spec.states else None
        )
        origin = Origin(self.pipeline, operator.uid, replicated.state)
        encoding = _encoding(registry, wanted, to, origin)
        changes = replicated.changes(
            self.spark,
            self.uri,
            name,
            before=before,
            shards_per_batch=shards_per_batch,
            cache_dir=self.config.cache_dir,
        )
        if wanted == "table":
            _check_tables(to, changes.key)
        rows, contents = changes.written_as(wanted, origin), Contents(wanted, None)
        if wanted in MESSAGES:
            messages = encoding.encoded(rows)
            rows, contents = messages.rows, Contents(wanted, messages.key_schema, messages.texts)
        # No two queries of a session may have one name.
        unique = replica_pipeline(self.pipeline, name)
        keep(open_store(join_uri(self.storage, unique)), name, contents)
        act.check()
        pipeline = self.coordinators(
            self.spark,
            pipeline=unique,
            storage=self.storage,
            config=_config(self.config),
            permit=self.permit,
            within=self.proof,
        )
        act.interrupt = partial(pipeline.stop, checkpoint=False)
        try:
            query = pipeline.start(rows.writeStream, name=str(unique), sink=list(to))
            act.check()
        except BaseException:
            pipeline.stop(checkpoint=False)
            raise
        sources = set(query.definition.sources.sources.values())
        (source,) = (one for one in sources if isinstance(one, StateChangesSource))
        return Replica(
            name=name,
            operator=operator.uid,
            state=replicated.state,
            format=wanted,
            pipeline=pipeline,
            source=source,
            proof=self.proof,
            acts=self.acts,
        )


def _config(config: CheckpointConfig) -> CheckpointConfig:
    """Return the configuration of a replica's pipeline: it has no operators, and nobody asks its driver."""
    return attrs.evolve(
        config,
        interval=config.interval or _INTERVAL,
        standbys=0,
        savepoints=Savepoints(),
        page=None,
        on_event=None,
    )


def _format(wanted: Format | None, sinks: Sequence[TwoPhaseSink]) -> Format:
    """Return the format in which targets get the changes: that which is wanted, or what fits them."""
    if wanted is not None:
        check_format(wanted)
        return wanted
    fitting = {_fitting(sink) for sink in sinks}
    if len(fitting) != 1:
        raise ArgumentError(
            "a state cannot be replicated to these sinks together",
            "sinks that take the same rows, or a format that all of them take",
            f"{len(sinks)} sinks of different kinds" if sinks else "no sink",
            "replicate to each of them under a name of its own",
        )
    return fitting.pop()


def _encoding(
    registry: SchemaRegistry | None, format: Format, sinks: Sequence[TwoPhaseSink], origin: Origin
) -> Encoding:
    """Return how messages are encoded: in Avro if there is a registry.

    Raises:
        ArgumentError: a registry is given, and there are no messages, or their topic is not known.
    """
    if registry is None:
        return Json()
    topics = [getattr(sink, "topic", None) for sink in sinks]
    if format not in MESSAGES or len(topics) != 1 or not isinstance(topics[0], str):
        raise ArgumentError(
            "a schema registry cannot be used here",
            f"one KafkaSink with its topic, and a format of {', '.join(map(repr, MESSAGES))}",
            f"format {format!r} and {', '.join(type(sink).__name__ for sink in sinks) or 'no sink'}",
            "leave out the registry, or replicate to each topic under a name of its own",
        )
    return Avro(registry, topics[0], namespace(origin.pipeline, origin.operator, origin.state))


def _fitting(sink: TwoPhaseSink) -> Format:
    if getattr(sink, "target", None) == "Kafka":
        return "upsert"
    return "table" if getattr(sink, "mode", "append") == "upsert" else "changes"


def _check_tables(sinks: Sequence[TwoPhaseSink], key: tuple[str, ...]) -> None:
    """Refuse tables that would not become a copy of the state: whose keys are others, or that delete nothing.

    Raises:
        ReplicaError: names the first such sink.
    """
    for sink in sinks:
        own, deleted = tuple(getattr(sink, "key", ())), getattr(sink, "deleted", None)
        if set(own) != set(key) or deleted != DELETED:
            raise ReplicaError(
                f"sink {sink.uid!r} cannot hold a copy of a state",
                f"an upsert by {', '.join(map(repr, key))} that deletes what {DELETED!r} marks",
                f"key={own!r} and deleted={deleted!r}",
                f"give the sink mode='upsert', key={key!r} and deleted={DELETED!r}; a sink without deletions takes the "
                "format 'changes'",
            )
