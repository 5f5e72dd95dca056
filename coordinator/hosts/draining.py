"""Empties machines and hosts: has their shards move, takes the checkpoints that they move with, and waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from ...storage.checkpoints.manifest import CheckpointKind
from ..checkpoint import Checkpoint
from ..execution.executor import CheckpointExecutor
from ..protocol import events as on
from ..protocol.copies import CopyPhase
from ..protocol.errors import DrainError
from ..protocol.placement import PlacedShards
from ..protocol.state_machine import CheckpointStateMachine

_LOOK_SECONDS: Final = 1.0
"""How often it is looked whether another checkpoint is needed."""
_NAMED: Final = 3


class Emptying:
    """Asks for the checkpoints with which shards leave.

    Args:
        executor: the protocol.
        left: returns the shards that are still to go.
    """

    def __init__(
        self, executor: CheckpointExecutor, left: Callable[[CheckpointStateMachine], PlacedShards]
    ) -> None:
        self._executor = executor
        self._left = left
        self._asked: Future[Checkpoint] | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the latest checkpoint that was asked for has failed."""
        return self._asked is not None and self._asked.done() and self._asked.exception() is not None

    def push(self) -> PlacedShards:
        """Ask for a checkpoint if a move waits for one, and return what is left."""
        left = self._executor.protocol.read(self._left)
        if left and (self._asked is None or self._asked.done()):
            # A move begins with a checkpoint; whether it fails, the next look tells.
            waits = any(phase in (None, CopyPhase.PLANNED) for _, _, phase in left)
            self._asked = self._executor.request(CheckpointKind.MANUAL) if waits else None
        return left


def drain(executor: CheckpointExecutor, machine: str, seconds: float) -> None:
    """Move all shards of a machine to others; return when it has none.

    Args:
        executor: the protocol.
        machine: its name.
        seconds: how long to wait.

    Raises:
        DrainError: it has no state host, there is no other machine, or it still has shards when the time is up.
    """
    executor.protocol.handle(on.DrainRequested(machine))
    end = time.monotonic() + seconds
    emptying = Emptying(executor, lambda state: state.placement.shards_on(machine))
    while left := emptying.push():
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
        executor.protocol.wait_until(
            lambda state: not state.placement.shards_on(machine), min(_LOOK_SECONDS, remaining)
        )
