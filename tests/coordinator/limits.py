"""The limits of the protocol for tests, which also set those that are constants for users."""

from __future__ import annotations

from typing import Any, Final

import attrs

from chandy.coordinator import CheckpointConfig
from chandy.coordinator.protocol.limits import ProtocolLimits

_CONSTANTS: Final = ("history", "initial_delay", "max_queued", "max_unpublished")


def limits_of(**settings: Any) -> ProtocolLimits:
    """Return the limits of a configuration, with these settings and constants."""
    constants = {name: settings.pop(name) for name in _CONSTANTS if name in settings}
    return attrs.evolve(CheckpointConfig(**settings).limits, **constants)
