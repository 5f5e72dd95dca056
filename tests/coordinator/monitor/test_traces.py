"""Checkpoints and recoveries as spans, read back from OpenTelemetry's own SDK."""

from __future__ import annotations

import attrs
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from chandy.coordinator.monitor.traces import Traces
from chandy.coordinator.protocol.statistics import CheckpointStatistics
from chandy.coordinator.recovery.metrics import RecoveryMetrics
from chandy.coordinator.recovery.pipeline_events import CheckpointMeasured, PipelineEnded, Recovered

from .known_pipeline import statistics

RECOVERY = RecoveryMetrics(
    "boom", 7, False, 102.0, waiting=2.0, stopping=1.0, restoring=0.5, starting=0.0, first_batch=3.0
)


@attrs.define
class Traced:
    """Spans of a pipeline, and what has been exported of them."""

    exporter: InMemorySpanExporter = attrs.field(factory=InMemorySpanExporter)
    traces: Traces = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces("flights", provider.get_tracer("test"))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def seconds(self) -> dict[str, tuple[float, float]]:
        """The start and the end of each span, by name."""
        return {one.name: ((one.start_time or 0) / 1e9, (one.end_time or 0) / 1e9) for one in self.spans}

    def parents(self) -> dict[str, str | None]:
        """The name of each span's parent, None for a root, by name."""
        names = {one.context.span_id: one.name for one in self.spans if one.context}
        return {one.name: names[one.parent.span_id] if one.parent else None for one in self.spans}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def known(id: int) -> CheckpointStatistics:
    found = statistics().checkpoint(id)
    assert found is not None
    return found


def test_a_checkpoint_has_its_phases_and_operators(traced: Traced) -> None:
    traced.traces.take(CheckpointMeasured(at=13.0, statistics=known(1)))
    assert traced.seconds() == {
        "checkpoint": (10.0, 12.0),
        "planning": (10.0, 10.25),
        "collecting": (10.25, 11.75),
        "snapshot totals": (10.0, 11.0),
        "finalizing": (11.75, 12.0),
    }
    assert traced.parents() == {
        "checkpoint": None,
        "planning": "checkpoint",
        "collecting": "checkpoint",
        "snapshot totals": "collecting",
        "finalizing": "checkpoint",
    }
    facts = {one.name: dict(one.attributes or {}) for one in traced.spans}
    assert facts["checkpoint"] == {
        "chandy.pipeline": "flights",
        "chandy.checkpoint.id": 1,
        "chandy.checkpoint.kind": "periodic",
        "chandy.checkpoint.bytes": 200,
        "chandy.checkpoint.new_bytes": 14,
    }
    assert facts["snapshot totals"]["chandy.snapshot.shards"] == 2
    assert facts["snapshot totals"]["chandy.snapshot.slowest_async"] == 0.2


def test_one_that_failed_is_an_error_and_ends_in_its_phase(traced: Traced) -> None:
    traced.traces.take(CheckpointMeasured(at=21.0, statistics=known(2)))
    assert traced.seconds() == {"checkpoint": (20.0, 21.0), "planning": (20.0, 21.0)}
    (root,) = (one for one in traced.spans if one.parent is None)
    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, "EXPIRED")


def test_a_recovery_of_several_queries_is_one_trace(traced: Traced) -> None:
    for query in ("a", "b"):
        traced.traces.take(Recovered(at=107.0, query=query, recovery=attrs.evolve(RECOVERY)))
    assert traced.seconds() == {
        "recovery": (100.0, 106.5),
        "waiting": (100.0, 102.0),
        "stopping": (102.0, 103.0),
        "restoring": (103.0, 103.5),
        "first batch": (103.5, 106.5),
    }
    assert set(traced.parents().values()) == {None, "recovery"}
    traced.traces.take(Recovered(at=110.0, query="a", recovery=attrs.evolve(RECOVERY, begun_at=109.0)))
    assert [one.name for one in traced.spans].count("recovery") == 2


def test_traces_have_nothing_in_common(traced: Traced) -> None:
    for id in (1, 2):
        traced.traces.take(CheckpointMeasured(at=30.0, statistics=known(id)))
    traced.traces.take(PipelineEnded(at=31.0, error=None))
    roots = {one.context.trace_id for one in traced.spans if one.parent is None and one.context}
    assert len(roots) == 2
    assert {one.context.trace_id for one in traced.spans if one.context} == roots
