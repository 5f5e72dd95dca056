"""What a cluster says of its topics, so that rows that no topic takes fail before they are staged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from ...sinks.two_phase.errors import OutputError, TargetUnavailableError
from .cluster import Cluster, Heard, failure_of, library
from .errors import described

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.admin import AdminClient

_PATIENCE_S: Final = 2.0
"""Seconds that a batch waits for a cluster that is away: then its rows are looked at when they are published."""
_CREATES: Final = "allow.auto.create.topics"
_INTERNAL: Final = "__"
"""How the names begin of topics that Kafka itself writes."""


@attrs.frozen
class TopicFacts:
    """What a topic takes."""

    partitions: int
    is_compacted: bool = False
    """Whether each row needs a key."""


@attrs.frozen
class KnownTopics:
    """The topics that are known."""

    by_name: Mapping[str, TopicFacts] = attrs.field(factory=dict)
    is_all: bool = False
    """Whether there are no others, nor will be by writing to them."""

    def refusal(self, rows: pa.Table, topic: str | None) -> str | None:
        """Say which row no topic takes; None if there is none that is known not to be taken.

        Args:
            rows: with the columns of messages.
            topic: the topic of all rows; None: each names its own.
        """
        import pyarrow.compute as pc

        if topic is not None:
            return self._refusal(rows, topic)
        names = pc.unique(rows["topic"]).to_pylist()
        parts = ((name, rows.filter(pc.equal(rows["topic"], name))) for name in names if name is not None)
        return next((found for name, part in parts if (found := self._refusal(part, name))), None)

    def _refusal(self, rows: pa.Table, topic: str) -> str | None:
        import pyarrow.compute as pc

        facts = self.by_name.get(topic)
        if facts is None:
            return f"topic {topic!r}, which the cluster does not have" if self.is_all else None
        if facts.is_compacted and ("key" not in rows.column_names or rows["key"].null_count):
            return f"a row without a key for topic {topic!r}, which is compacted"
        last = pc.max(rows["partition"]).as_py() if "partition" in rows.column_names else None
        if last is not None and last >= facts.partitions:
            return f"partition {last} of topic {topic!r}, which has {facts.partitions}"
        return None


def known_topics(cluster: Cluster, topic: str | None) -> KnownTopics:
    """Ask a cluster for its topics; a cluster that does not answer soon is asked again for the next batch.

    Args:
        cluster: where they are.
        topic: the only one that is asked for; None: all.
    """
    hasty = attrs.evolve(cluster, timeout=min(cluster.timeout, _PATIENCE_S))
    heard = Heard()
    admin = hasty.admin(heard)
    try:
        listed = admin.list_topics(topic, timeout=hasty.timeout).topics
    except library().KafkaException:
        return KnownTopics()
    found = {name: len(one.partitions) for name, one in listed.items() if one.partitions and not one.error}
    try:
        compacted = _compacted(
            hasty, admin, [name for name in found if not name.startswith(_INTERNAL)], heard
        )
    except TargetUnavailableError:
        return KnownTopics()
    by_name = {name: TopicFacts(count, name in compacted) for name, count in found.items()}
    return KnownTopics(by_name, is_all=topic is None and not cluster.options.get(_CREATES, False))


def is_compacted(cluster: Cluster, admin: AdminClient, topic: str, heard: Heard) -> bool:
    """Return whether each row of a topic needs a key; not if the user may not see its settings.

    Raises:
        TargetUnavailableError: there is no answer.
    """
    return topic in _compacted(cluster, admin, [topic], heard)


_settings: dict[tuple[str, str], bool] = {}
"""Whether topics were compacted when they were seen first, by cluster and name: they are many, and seldom altered."""


def _compacted(cluster: Cluster, admin: AdminClient, topics: Iterable[str], heard: Heard) -> set[str]:
    from confluent_kafka.admin import ConfigResource, ResourceType

    topics = list(topics)
    new = [topic for topic in topics if (cluster.servers, topic) not in _settings]
    asked = (
        admin.describe_configs(
            [ConfigResource(ResourceType.TOPIC, topic) for topic in new], request_timeout=cluster.timeout
        )
        if new
        else {}
    )
    for resource, answer in asked.items():
        try:
            policy = answer.result(cluster.timeout + 1)["cleanup.policy"].value or ""
        except (library().KafkaException, TimeoutError) as error:
            raised = cluster.error("did not describe its topics", error, heard)
            if isinstance(raised, OutputError):
                # A user who may not see the settings may still write.
                continue
            failure = failure_of(error)
            reason = described(failure) if failure else "no answer"
            raise TargetUnavailableError(cluster.name, f"it did not describe its topics: {reason}") from None
        _settings[cluster.servers, resource.name] = "compact" in policy
    return {topic for topic in topics if _settings.get((cluster.servers, topic), False)}
