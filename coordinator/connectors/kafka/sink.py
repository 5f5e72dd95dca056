"""The transactional sink for Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from typing_extensions import override

from ....storage.errors import FencedError
from ...durations import Duration, seconds
from ...fields import filled, optional, positive_duration, settings
from ...sinks.place import Topic
from ...sinks.two_phase.contract import Committer, Epoch, Fence
from ...sinks.two_phase.errors import OutputTakenError, TargetUnavailableError
from ...sinks.two_phase.limits import Limits
from ...sinks.two_phase.staged import StagedRows, StagedSink
from ..record import TargetIds
from .cluster import RESERVED, Cluster, Heard
from .errors import ProducerReplacedError
from .known_topics import KnownTopics, is_compacted, known_topics
from .messages import KEY, check_columns, check_has_key, messages, unpublishable
from .positions import PositionReader, TopicPosition, marker, prepare
from .producer import TransactionalProducer
from .topics import committed, identity, partitions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@attrs.frozen(kw_only=True)
class KafkaSink(StagedSink):
    """Publishes rows to Kafka, each once, in one transaction for each checkpoint.

    Rows have the columns of Spark's own Kafka sink and no others: ``value`` (string or binary), and if wanted ``key``
    (string or binary), ``topic`` (string), ``headers`` (array<struct<key: string, value: binary>>) and ``partition``
    (int). A row whose ``partition`` is null goes to the partition that Kafka's own partitioner chooses by its key.
    Rows of one key keep the order of their batches. A row without a key for a compacted topic, and one for a topic or a
    partition that there is not, fails its batch. If rows name topics or partitions, each batch asks Kafka for them.

    Consumers see whole checkpoints if they read with ``isolation.level=read_committed``. While a checkpoint is
    published, for as long as that takes, they wait at its first row. A publisher that is killed meanwhile makes them
    wait until the pipeline is started again, and at most for ``transaction.timeout.ms``: 5 minutes unless the options
    say otherwise. Publishing a checkpoint must take less than that.

    What was last published is kept by writer in the topic ``position_topic``, in the same transaction. It is made if it
    is missing. Delete nothing from it: the next start would publish again what the checkpoint has. The transactional
    ids begin with its name and a slash. A topic that was deleted and created again counts as one to which nothing was
    published: from Kafka 2.8 on, its id differs. The sink needs Kafka 2.5; from 3.6 on, the broker itself refuses rows
    that are still on their way from a publisher which was shut out.

    What is published cannot be taken back, so a pipeline cannot go back behind it.

    It needs the package confluent-kafka: ``pip install 'chandy[kafka]'``.
    """

    target: ClassVar[str] = "Kafka"

    bootstrap_servers: str = attrs.field(validator=filled)
    """Where the cluster is: ``host:port``, several with commas between them."""
    topic: str | None = attrs.field(default=None, validator=optional(filled))
    """The topic of all rows, also if they have a column ``topic``. None: the column says it, row by row."""
    uid: str = attrs.field(default="sink", validator=filled)
    options: Mapping[str, Any] = attrs.field(
        factory=dict, validator=settings("librdkafka", RESERVED), repr=False
    )
    """Settings of librdkafka, such as ``security.protocol`` and ``sasl.password``. Logs do not show them."""
    timeout: Duration = attrs.field(default="1 minute", validator=positive_duration)
    """How long to wait for any answer, and for rows to go on."""
    position_topic: str = attrs.field(default="chandy-positions", validator=filled)
    """The compacted topic that keeps what was last published."""
    _known: KnownTopics = attrs.field(factory=KnownTopics, kw_only=True, alias="_known", repr=False, eq=False)
    """What the cluster said of the topics when the batch began."""

    @property
    def place(self) -> Topic | None:
        """The topic. None: the rows name theirs."""
        return None if self.topic is None else Topic(Topic.servers_of(self.bootstrap_servers), self.topic)

    def committed_offsets(self, seconds: float) -> Mapping[int, int]:
        """Return how far consumers that read what is committed can read the topic, as the contract has it."""
        return (
            {} if self.topic is None else committed(attrs.evolve(self._cluster, timeout=seconds), self.topic)
        )

    @override
    def for_rows(self, rows: DataFrame) -> KafkaSink:
        """Ask which topics and partitions there are, if the rows name them."""
        if self.topic is not None and "partition" not in rows.columns:
            return self
        return attrs.evolve(self, _known=known_topics(self._cluster, self.topic))

    def check(self, schema: pa.Schema) -> Limits:
        """Check the columns and that the topics are there, and make that of the positions.

        Returns:
            Whether each row needs a key.

        Raises:
            OutputError: a column or a topic is not as it must be.
            ConfigError: an option is unknown or wrong.
            TargetUnavailableError: Kafka cannot be reached.
            SetupError: confluent-kafka is missing.
        """
        check_columns(schema, self.topic)
        prepare(self._cluster, self.position_topic)
        if self.topic is None:
            return Limits()
        heard = Heard()
        admin = self._cluster.admin(heard)
        partitions(self._cluster, admin, self.topic, heard)
        if not is_compacted(self._cluster, admin, self.topic, heard):
            return Limits()
        check_has_key(schema, self.topic)
        return Limits(never_null=frozenset({KEY}))

    @override
    def unpublishable(self, rows: pa.Table) -> str | None:
        return unpublishable(rows, self.topic) or self._known.refusal(rows, self.topic)

    def recover(self, fence: Fence) -> Committer:
        """Shut out earlier lives, end what they have left open, and read what was last published.

        Raises:
            As ``TwoPhaseSink.recover``; OutputError: a topic or a permission is missing.
        """
        cluster = self._cluster
        prepare(cluster, self.position_topic)
        reader = PositionReader(cluster, self.position_topic, fence.writer)
        try:
            # A writer that may not publish must not fence the one that does.
            if seen := reader.committed():
                seen.taken_by(fence)
            publisher = _Publisher(self, cluster, fence)
            try:
                # From here on the record does not change but by this producer, or by a later one that shuts it out.
                publisher.take(reader.latest())
            except BaseException:
                publisher.close()
                raise
        finally:
            reader.close()
        return publisher

    @property
    def _cluster(self) -> Cluster:
        return Cluster(self.bootstrap_servers, self.options, seconds(self.timeout))


class _Publisher(Committer):
    """Publishes epochs, each with the new position in one transaction."""

    def __init__(self, sink: KafkaSink, cluster: Cluster, fence: Fence) -> None:
        self._sink = sink
        self._cluster = cluster
        self._fence = fence
        self._record = TopicPosition.first(fence)
        self._heard = Heard()
        self._admin = cluster.admin(self._heard)
        self._topic = self._present_topic()
        self._begun = time.monotonic()
        self._producer: TransactionalProducer | None = None
        with self._closing_on_doubt():
            self._producer = TransactionalProducer(cluster, f"{sink.position_topic}/{fence.writer}")

    @property
    def position(self) -> int | None:
        return self._record.epoch_in(self._topic)

    def take(self, found: TopicPosition | None) -> None:
        """Record that this life publishes from now on, after what was found."""
        taken = found.taken_by(self._fence) if found else TopicPosition.first(self._fence)
        if taken != found:
            self._transact(None, taken)
        self._record = taken

    def commit(self, epoch: Epoch) -> None:
        with self._closing_on_doubt():
            if self._present_topic() != self._topic:
                raise TargetUnavailableError(
                    self._cluster.name,
                    f"topic {self._sink.topic!r}, or that of positions, was deleted and recreated",
                    is_understood=True,
                )
        following = self._record.moved(epoch.id, self._topic)
        self._transact(epoch, following)
        self._record = following

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _present_topic(self) -> TargetIds | None:
        """The topic that has the name now; None if the rows name theirs."""
        if self._sink.topic is None:
            return None
        return identity(self._cluster, self._admin, self._sink.position_topic, self._sink.topic, self._heard)

    def _transact(self, epoch: Epoch | None, position: TopicPosition) -> None:
        if self._producer is None:
            raise TargetUnavailableError(self._cluster.name, "the connection is closed", is_understood=True)
        with self._closing_on_doubt():
            self._begun = time.monotonic()
            self._producer.begin()
            try:
                if epoch is not None:
                    for rows in StagedRows(epoch).tables():
                        for message in messages(rows, self._sink.topic):
                            self._producer.send(message)
                # Other writers wait for the end of a transaction in the topic of positions when they recover. So it is
                # part of this one as late as possible.
                self._producer.flush()
                self._producer.send(marker(self._sink.position_topic, self._fence.writer, position))
                self._producer.flush()
            except (TargetUnavailableError, ProducerReplacedError):
                raise
            except BaseException:
                self._abort()
                raise
            self._producer.commit()

    def _abort(self) -> None:
        """Take back what was sent, so that nobody waits for it. If that fails, the next producer does it.

        This one is of no more use. The broker has not counted the rows that it has refused, but the client has, and
        the next row for their partition would seem to come out of order.
        """
        if self._producer is None:
            return
        # The error that has led here is the one to be raised.
        with suppress(Exception):
            self._producer.abort()
        self.close()

    @contextmanager
    def _closing_on_doubt(self) -> Iterator[None]:
        """Close the connection once it can no longer be used, and tell a later life from a passing fault."""
        try:
            yield
        except TargetUnavailableError:
            self.close()
            raise
        except ProducerReplacedError as error:
            self.close()
            raise self._judged(str(error)) from None

    def _judged(self, reason: str) -> Exception:
        """Return the error for a producer that was shut out: by a later life only if that has taken the record.

        Another connection of this life shuts this one out, too, and so does an earlier life, for a moment, before it
        reads that it is one.
        """
        reader = PositionReader(self._cluster, self._sink.position_topic, self._fence.writer)
        try:
            found = reader.latest()
        finally:
            reader.close()
        if found is not None:
            try:
                found.taken_by(attrs.evolve(self._fence, may_take_over=False))
            except FencedError as error:
                return error
            except OutputTakenError:
                owner = f"the pipeline with checkpoints in {found.store}"
                return FencedError(self._fence.store, self._fence.generation, found.generation, owner)
        if time.monotonic() - self._begun > self._cluster.transaction_timeout:
            reason += (
                f"; the broker ends a transaction after {self._cluster.transaction_timeout:g} s: raise "
                "transaction.timeout.ms in the sink's `options`, or take checkpoints more often"
            )
        return TargetUnavailableError(self._cluster.name, f"the producer can no longer be used: {reason}")
