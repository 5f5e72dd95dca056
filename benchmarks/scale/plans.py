"""The JSON arguments of the two processes of a turn."""

from __future__ import annotations

import attrs

from chandy.state.rpc.messages import Endpoint

from .made import Fleet


@attrs.frozen
class Plan:
    """The argument of the coordinator's process."""

    fleet: Fleet
    warm_up: int
    """Checkpoints that are not measured: until retention deletes one for each that completes."""
    checkpoints: int
    """Measured checkpoints."""
    folder: str


@attrs.frozen
class Assignment:
    """The argument of the process of the simulated hosts."""

    endpoint: Endpoint
    fleet: Fleet
    store: str
    """Folder of the coordinator's local store. The hosts put empty objects for their handles there."""
