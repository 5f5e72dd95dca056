"""The metrics of a pipeline, as Prometheus scrapes them. Nothing is counted for them: each scrape reads the facts.

Names and units follow Prometheus' conventions (https://prometheus.io/docs/practices/naming/). No label names a shard or
a key, so that there are as many series with ten thousand shards as with ten.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from ...state.rpc.metrics import OperatorMetrics
from ...storage.store import StoreRequests
from ..protocol.life import LifePhase, QueryPhase
from ..protocol.totals import SECONDS, Totals
from ..version import __version__
from .activity import QueryActivity
from .facts import Facts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The type of what ``exposition`` returns."""
_STANDS_BY: Final = "stands by"
"""What a driver does that waits while another one leads, or that begins."""

_OF_QUERY: Final[tuple[tuple[str, str, Callable[[QueryActivity], float]], ...]] = (
    ("batches", "Batches that a query has run.", lambda one: one.batches),
    ("rows", "Rows that a query has read from its sources.", lambda one: one.rows),
    ("batch_seconds", "What the batches of a query took.", lambda one: one.seconds),
)
"""What a query counts: the name, what it says, and the figure."""
_OF_OPERATOR: Final[tuple[tuple[str, str, Callable[[OperatorMetrics], float]], ...]] = (
    ("rows", "Rows that an operator has taken.", lambda one: one.rows),
    ("late_rows", "Rows that an operator has dropped because they were late.", lambda one: one.late_rows),
    ("keys", "Keys whose rows an operator has processed, once in each batch.", lambda one: one.keys),
    ("dead_letters", "Dead letters that an operator has written.", lambda one: one.dead_letters),
)
"""What an operator counts."""
_OF_STORE: Final[tuple[tuple[str, str, Callable[[StoreRequests], int]], ...]] = (
    (
        "requests",
        "Requests of the driver to the store of the checkpoints, with retries.",
        lambda one: one.attempts,
    ),
    (
        "retries",
        "Requests that were sent again after the store had failed for a moment.",
        lambda one: one.retries,
    ),
    ("failures", "Operations that have failed, whatever was tried.", lambda one: one.failures),
)
"""What is counted of the store."""


def exposition(pipeline: str, facts: Facts | None) -> bytes:
    """Return the metrics of a pipeline in Prometheus' text format.

    Args:
        pipeline: its name, which every series has as a label.
        facts: what is known of it; None if the driver has not taken it over yet.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(lambda: families(pipeline, facts)))
    return generate_latest(registry)


class _Once(Collector):
    """Gives metrics that are computed when they are asked for."""

    def __init__(self, compute: Callable[[], Iterable[Metric]]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        return self._compute()


def families(pipeline: str, facts: Facts | None) -> Iterator[Metric]:
    """Yield the metrics of a pipeline; the arguments are those of ``exposition``."""
    make = _Families(pipeline)
    yield InfoMetricFamily("chandy_build", "The version of Chandy.", value={"version": __version__})
    life = facts.life if facts else None
    yield make.gauge(
        "chandy_driver_state",
        "1 for what the driver does, 0 for all else.",
        {(_STANDS_BY,): float(facts is None), **{(one.value,): float(one is life) for one in LifePhase}},
        ["state"],
    )
    if facts is None:
        return
    yield from _of_checkpoints(make, facts)
    yield from _of_queries(make, facts)
    yield from _of_operators(make, facts)
    yield from _of_state(make, facts)
    if facts.store is not None:
        for name, says, of in _OF_STORE:
            yield make.counter(f"chandy_store_{name}", says, {(): float(of(facts.store))}, [])


class _Families:
    """Makes families of metrics whose first label is the pipeline."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def gauge(
        self, name: str, says: str, values: Mapping[tuple[str, ...], float | None], labels: list[str]
    ) -> Metric:
        """Return a gauge; a value of None is left out."""
        return self._filled(GaugeMetricFamily(name, says, labels=["pipeline", *labels]), values)

    def counter(
        self, name: str, says: str, values: Mapping[tuple[str, ...], float], labels: list[str]
    ) -> Metric:
        """Return a counter, whose name gets ``_total`` at its end."""
        return self._filled(CounterMetricFamily(name, says, labels=["pipeline", *labels]), values)

    def durations(self, name: str, says: str, totals: Totals) -> Metric:
        """Return a histogram of seconds."""
        family = HistogramMetricFamily(name, says, labels=["pipeline"])
        counts = itertools.accumulate(totals.durations)
        bounds = [*(f"{bound:g}" for bound in SECONDS), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
        family.add_metric([self._pipeline], buckets, totals.seconds)
        return family

    def _filled(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        values: Mapping[tuple[str, ...], float | None],
    ) -> Metric:
        for labels, value in values.items():
            if value is not None:
                family.add_metric([self._pipeline, *labels], value)
        return family


def _of_checkpoints(make: _Families, facts: Facts) -> Iterator[Metric]:
    totals = facts.totals
    yield make.counter(
        "chandy_checkpoints",
        "Checkpoints and savepoints that have ended. Those that completed have no reason.",
        {
            (kind.value, "failed" if reason else "completed", reason): float(count)
            for (kind, reason), count in totals.ended.items()
        },
        ["kind", "status", "reason"],
    )
    yield make.durations(
        "chandy_checkpoint_duration_seconds", "From the trigger of a checkpoint to its completion.", totals
    )
    yield make.counter(
        "chandy_checkpoint_phase_seconds",
        "How long completed checkpoints were in each of their phases.",
        {(name,): seconds for name, seconds in attrs.asdict(totals.phases).items()},
        ["phase"],
    )
    yield make.counter(
        "chandy_checkpoint_new_bytes",
        "Bytes that completed checkpoints have written, without those that they share with earlier ones.",
        {(): float(totals.new_bytes)},
        [],
    )
    yield make.counter(
        "chandy_checkpoints_restored", "Restores of a checkpoint.", {(): float(facts.restored)}, []
    )
    for name, says, value in (
        ("in_progress", "Checkpoints in progress.", facts.checkpoints_in_progress),
        ("queued", "Requests for checkpoints that wait.", facts.checkpoints_queued),
    ):
        yield make.gauge(f"chandy_checkpoints_{name}", says, {(): value}, [])
    yield make.gauge(
        "chandy_checkpoint_last_completed_id",
        "The id of the latest completed checkpoint.",
        {(): facts.completed},
        [],
    )
    yield make.gauge(
        "chandy_checkpoint_last_completed_timestamp_seconds",
        "When the latest checkpoint of this driver completed.",
        {(): facts.last_completed_at},
        [],
    )
    yield make.gauge(
        "chandy_checkpoint_size_bytes",
        "Bytes that a restore of the latest checkpoint of this driver reads.",
        {(): facts.size},
        [],
    )


def _of_queries(make: _Families, facts: Facts) -> Iterator[Metric]:
    yield make.gauge(
        "chandy_query_active",
        "Whether a query runs, and has committed since it last failed or has found no data.",
        {(name,): float(query.life is QueryPhase.RUNNING) for name, query in facts.queries.items()},
        ["query"],
    )
    yield make.gauge(
        "chandy_query_committed_batch",
        "The newest batch of a query that is known to have committed; -1 if none is.",
        {(name,): float(query.committed) for name, query in facts.queries.items()},
        ["query"],
    )
    activities = {name: query.activity for name, query in facts.queries.items()}
    for name, says, of in _OF_QUERY:
        yield make.counter(
            f"chandy_query_{name}",
            says,
            {(query,): float(of(one)) for query, one in activities.items()},
            ["query"],
        )
    yield make.gauge(
        "chandy_query_offsets_behind",
        "How far the partition of a source that is furthest behind was behind at the latest batch.",
        {(query,): one.behind for query, one in activities.items()},
        ["query"],
    )
    yield make.gauge(
        "chandy_query_watermark_timestamp_seconds",
        "The watermark of a query.",
        {(query,): one.watermark for query, one in activities.items()},
        ["query"],
    )
    yield make.gauge(
        "chandy_unpublished_checkpoints",
        "Completed checkpoints whose output the transactional sinks of a query have not published.",
        {(name,): float(one.checkpoints) for name, one in facts.unpublished.items()},
        ["query"],
    )
    yield make.gauge(
        "chandy_unpublished_oldest_timestamp_seconds",
        "When the oldest of these checkpoints completed.",
        {(name,): one.oldest for name, one in facts.unpublished.items()},
        ["query"],
    )
    yield make.gauge(
        "chandy_replica_active",
        "Whether a replica runs or is about to restart.",
        {(name,): float(one.is_active) for name, one in facts.replicas.items()},
        ["replica"],
    )
    yield make.gauge(
        "chandy_replica_checkpoint",
        "The id of the checkpoint up to which a replica has written the changes.",
        {(name,): one.checkpoint for name, one in facts.replicas.items()},
        ["replica"],
    )
    yield from _of_shadows(make, facts)
    yield make.counter(
        "chandy_recoveries",
        "Starts and restarts of queries, by how they went on.",
        {(kind,): float(count) for kind, count in facts.recoveries.items()},
        ["kind"],
    )
    yield make.gauge(
        "chandy_recovery_last_duration_seconds",
        "From the detection of the latest failure, or the start, to the first commit after it.",
        {(): facts.recovery_seconds},
        [],
    )


def _of_shadows(make: _Families, facts: Facts) -> Iterator[Metric]:
    shadows = {(name,): one for name, one in facts.shadows.items()}
    yield make.gauge(
        "chandy_shadow_equal",
        "Whether all that a shadow has compared was equal.",
        {labels: float(one.is_equal) for labels, one in shadows.items()},
        ["shadow"],
    )
    yield make.gauge(
        "chandy_shadow_batches",
        "Batches that a shadow has run and compared, in all of its lives.",
        {labels: float(one.batches) for labels, one in shadows.items()},
        ["shadow"],
    )
    yield make.gauge(
        "chandy_shadow_batches_skipped",
        "Batches that a shadow has passed over.",
        {labels: float(one.skipped) for labels, one in shadows.items()},
        ["shadow"],
    )
    yield make.gauge(
        "chandy_shadow_batches_behind",
        "Batches that a shadow is behind its leader.",
        {labels: float(one.behind) for labels, one in shadows.items()},
        ["shadow"],
    )
    yield make.gauge(
        "chandy_shadow_updated_timestamp_seconds",
        "When a shadow has written last what it has found.",
        {labels: one.updated_at for labels, one in shadows.items()},
        ["shadow"],
    )


def _of_operators(make: _Families, facts: Facts) -> Iterator[Metric]:
    work = {(uid,): one for uid, one in facts.work.items()}
    for name, says, of in _OF_OPERATOR:
        yield make.counter(
            f"chandy_operator_{name}",
            says,
            {labels: float(of(one)) for labels, one in work.items()},
            ["operator"],
        )
    yield make.counter(
        "chandy_operator_seconds",
        "What the tasks of an operator spent their time on. The seconds of parallel tasks add up.",
        {(*labels, part): seconds for labels, one in work.items() for part, seconds in one.parts.items()},
        ["operator", "part"],
    )


def _of_state(make: _Families, facts: Facts) -> Iterator[Metric]:
    sizes = {(one.query, uid): one for uid, one in facts.operators.items()}
    yield make.gauge(
        "chandy_operator_state_bytes",
        "Bytes of an operator's state in the newest checkpoint.",
        {labels: float(one.bytes) for labels, one in sizes.items()},
        ["query", "operator"],
    )
    yield make.gauge(
        "chandy_operator_state_entries",
        "About how many entries an operator's state has, by RocksDB's estimate at the newest checkpoint.",
        {labels: float(one.entries) for labels, one in sizes.items() if one.entries is not None},
        ["query", "operator"],
    )
    yield make.gauge(
        "chandy_operator_largest_shard_bytes",
        "Bytes of the largest shard of an operator's state in the newest checkpoint.",
        {labels: float(one.largest_shard) for labels, one in sizes.items()},
        ["query", "operator"],
    )
    yield make.gauge(
        "chandy_state_hosts",
        "State hosts that live.",
        {(machine,): float(count) for machine, count in facts.hosts.items()},
        ["machine"],
    )
    for name, says, of in (
        ("free", "Bytes that state hosts of a machine can still write.", attrgetter("free")),
        ("size", "Bytes of the disk of state hosts of a machine.", attrgetter("size")),
    ):
        yield make.gauge(
            f"chandy_disk_{name}_bytes",
            says,
            {(machine,): float(of(disk)) for machine, disk in facts.disks.items()},
            ["machine"],
        )
    yield make.gauge(
        "chandy_shards",
        "Shards of state that a machine has.",
        {(machine,): float(count) for machine, count in facts.shards.items()},
        ["machine"],
    )
    for name, says, value in (
        ("unassigned", "Shards that no task has needed yet.", facts.shards_unassigned),
        ("moving", "Shards that are about to move to another machine.", facts.shards_moving),
        ("with_standby", "Shards with a standby that is in sync.", facts.shards_with_standby),
    ):
        yield make.gauge(f"chandy_shards_{name}", says, {(): value}, [])
    for name, says, value in (
        ("promoted", "Shards of lost state hosts whose standbys have taken their place.", facts.promoted),
        (
            "reopened",
            "Shards of lost state hosts that others on their machines have opened from changelogs.",
            facts.reopened,
        ),
    ):
        yield make.counter(f"chandy_shards_{name}", says, {(): float(value)}, [])
