"""Spans of OpenTelemetry: one for each checkpoint, with its phases and operators, and one for each recovery.

Only OpenTelemetry's API is called (https://opentelemetry.io/docs/specs/otel/trace/api/): without an SDK, which the
user's program sets up, nothing happens. Spans are made afterwards, from what was measured anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from ..protocol.statistics import CheckpointStatistics
from ..recovery.metrics import RecoveryMetrics
from ..recovery.pipeline_events import CheckpointMeasured, PipelineEvent, Recovered
from ..version import __version__
from .documents import OperatorPart

Facts = dict[str, AttributeValue]


@attrs.define
class Traces:
    """Makes the spans of a pipeline. One thread calls ``take``."""

    pipeline: str
    tracer: Tracer = attrs.field(factory=lambda: trace.get_tracer("chandy", __version__))
    _recovery: float | None = attrs.field(default=None, init=False)
    """When the recovery began whose span was made last: each of its queries tells of it."""

    def take(self, event: PipelineEvent) -> None:
        """Make the span of what has ended."""
        match event:
            case CheckpointMeasured(statistics=statistics):
                self._checkpoint(statistics)
            case Recovered(recovery=recovery) if recovery.begun_at != self._recovery:
                self._recovery = recovery.begun_at
                self._recovered(recovery)

    def _checkpoint(self, one: CheckpointStatistics) -> None:
        facts: Facts = {"id": one.id, "kind": one.kind.value, "bytes": one.size, "new_bytes": one.new_bytes}
        root = self._span("checkpoint", one.triggered_at, None, _named("checkpoint", facts))
        if one.reason is not None:
            root.set_status(Status(StatusCode.ERROR, one.reason.value))
        phases = self._follow(root, one.triggered_at, attrs.asdict(one.phases).items())
        if "collecting" in phases:
            self._operators(phases["collecting"], one)
        root.end(_nanoseconds(one.triggered_at + (one.duration or 0.0)))

    def _operators(self, collecting: Span, one: CheckpointStatistics) -> None:
        """Make a span for each operator: from the start of its first snapshot to its last acknowledgement."""
        for uid, shards in one.by_operator.items():
            part = OperatorPart.of(shards)
            facts: Facts = {
                "operator": uid,
                "shards": len(shards),
                "bytes": part.size,
                "new_bytes": part.new_bytes,
                "slowest_sync": part.sync,
                "slowest_async": part.async_,
            }
            began = min(shard.trigger + shard.start_delay for shard in shards)
            span = self._span(f"snapshot {uid}", began, collecting, _named("snapshot", facts))
            span.end(_nanoseconds(max(shard.ack for shard in shards)))

    def _recovered(self, one: RecoveryMetrics) -> None:
        facts: Facts = {
            "cause": one.cause,
            "in_place": one.in_place,
            "downloaded_bytes": one.downloaded_bytes,
        }
        if one.checkpoint is not None:
            facts |= {"checkpoint": one.checkpoint}
        root = self._span("recovery", one.noticed_at, None, _named("recovery", facts))
        parts = ("waiting", "stopping", "restoring", "starting", "first_batch")
        self._follow(root, one.noticed_at, ((part, getattr(one, part) or 0.0) for part in parts))
        root.end(_nanoseconds(one.noticed_at + (one.total or 0.0)))

    def _follow(self, root: Span, began: float, parts: Iterable[tuple[str, float]]) -> dict[str, Span]:
        """Make a span for each part that took any time, one after the other; return them by name."""
        made = {}
        for name, seconds in parts:
            if seconds > 0:
                made[name] = self._span(name.replace("_", " "), began, root, {})
                made[name].end(_nanoseconds(began + seconds))
            began += seconds
        return made

    def _span(self, name: str, began: float, parent: Span | None, facts: Facts) -> Span:
        """Begin a span; one without a parent is the root of a trace of its own."""
        context = Context() if parent is None else trace.set_span_in_context(parent, Context())
        facts = {"chandy.pipeline": self.pipeline, **facts}
        return self.tracer.start_span(name, context, start_time=_nanoseconds(began), attributes=facts)


def _named(what: str, facts: Facts) -> Facts:
    return {f"chandy.{what}.{name}": value for name, value in facts.items()}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
