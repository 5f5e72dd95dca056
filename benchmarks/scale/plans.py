"""What the two processes of a turn are told, as JSON, in their first argument."""

from __future__ import annotations

import attrs

from chandy.state.rpc.messages import Endpoint

from .made import Fleet


@attrs.frozen
class Plan:
    """Told to the coordinator's process."""

    fleet: Fleet
    warm_up: int
    """Checkpoints that do not count: until retention drops one for each that completes."""
    checkpoints: int
    """Those that count."""
    folder: str


@attrs.frozen
class Assignment:
    """Told to the process of the simulated hosts."""

    endpoint: Endpoint
    fleet: Fleet
    store: str
    """Folder of the coordinator's local store: the objects of the handles are put there, empty."""
