"""Makes the state machine of a pipeline that this driver has taken over."""

from __future__ import annotations

import platform
from importlib import metadata

from ...storage import runtime
from ...storage.ids import CheckpointId
from ..config import CheckpointConfig, tuned
from ..permit import Permit
from ..protocol.failover import Failover
from ..protocol.invariants import CheckedStateMachine
from ..protocol.state_machine import PipelineStateMachine
from ..version import __version__
from .taken_pipeline import TakenPipeline


def state_machine(
    pipeline: TakenPipeline, config: CheckpointConfig, *, follows_tasks: bool
) -> PipelineStateMachine:
    """Make the state machine of a pipeline, whose checkpoints go on after the restored one."""
    point = pipeline.point
    required: dict[str, CheckpointId] = (
        {}
        if point is None
        else {
            query.name: point.manifest.id
            for query in point.manifest.queries
            if not pipeline.permits.use(Permit(dropped_queries={query.name: point.manifest.id}))
        }
    )
    kind = CheckedStateMachine if tuned("CHECK_INVARIANTS", 0.0) else PipelineStateMachine
    return kind(
        pipeline=pipeline.name,
        generation=pipeline.generation.generation,
        root=pipeline.catalog.store.uri,
        limits=config.limits,
        next_id=pipeline.generation.next_id,
        failover=Failover(config.restart.tracker(), runtime.random),
        completed=pipeline.completed,
        base=pipeline.base,
        required=required,
        versions=_versions(),
        follows_tasks=follows_tasks,
    )


def _versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("pyspark", "rocksdict")}
    return {"chandy": __version__, "python": platform.python_version(), **found}
