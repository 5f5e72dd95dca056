"""Empties a machine: has its shards move, takes the checkpoints that they move with, and waits."""

from __future__ import annotations

import time
from typing import Final

from ...storage.manifest import CheckpointKind
from ..protocol import events as on
from ..protocol.copies import MovePhase
from ..protocol.errors import DrainError
from .executor import CheckpointExecutor

_LOOK_SECONDS: Final = 1.0
"""How often it is looked whether another checkpoint is needed."""
_NAMED: Final = 3


def drain(executor: CheckpointExecutor, machine: str, seconds: float) -> None:
    """Move all shards of a machine to others; return when it has none.

    Args:
        executor: the protocol.
        machine: its host name.
        seconds: how long to wait.

    Raises:
        DrainError: it has no state host, there is no other machine, or it still has shards when the time is up.
    """
    executor.handle(on.DrainRequested(machine))
    end = time.monotonic() + seconds
    asked = None
    while left := executor.read(lambda protocol: protocol.shards_on(machine)):
        if asked is None or asked.done():
            # A move begins with a checkpoint; whether it fails, the next look tells.
            waits = any(phase in (None, MovePhase.PLANNED) for _, _, phase in left)
            asked = executor.request(CheckpointKind.MANUAL) if waits else None
        remaining = end - time.monotonic()
        if remaining <= 0:
            names = [
                f"shard {shard.shard} of {shard.uid!r} {phase.value if phase else 'has no move yet'}"
                for _, shard, phase in left[:_NAMED]
            ]
            raise DrainError(
                f"machine {machine!r} is not drained yet",
                f"no shards there within {seconds:g} s",
                f"{len(left)}: {', '.join(names)}",
                "wait for longer; what has not moved goes on to do so",
            )
        executor.wait_until(lambda protocol: not protocol.shards_on(machine), min(_LOOK_SECONDS, remaining))
