"""How far a replica has come, for programs and for what shows a pipeline from outside."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class ReplicaStatus:
    """How far a replica has come."""

    name: str
    operator: str
    state: str
    format: str
    """"table", "upsert", "debezium" or "changes"."""
    targets: tuple[str, ...]
    """The sinks, by their uids."""
    checkpoint: int | None
    """The checkpoint of the pipeline up to which changes are written; None: none in this life of the driver yet. They
    are visible in the target unless that is away."""
    is_active: bool
    """Whether it runs or is about to restart."""
    error: str | None
    """Why it has failed for good; None if it has not."""
