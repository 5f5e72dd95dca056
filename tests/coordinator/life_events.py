"""What tests tell the protocol of checkpoints about the life of its pipeline."""

from __future__ import annotations

from typing import Final

from chandy.coordinator.errors import PipelineFailedError, PipelineStateLostError
from chandy.coordinator.protocol.events import LifeChanged
from chandy.coordinator.protocol.life import Life, Setback
from chandy.storage import FencedError

_RUNNING: Final = Life().started()

RUNS: Final = LifeChanged(_RUNNING)
STOPPED: Final = LifeChanged(_RUNNING.stopped())
FAILED: Final = LifeChanged(_RUNNING.failed(PipelineFailedError("it cannot go on")))
FENCED: Final = LifeChanged(_RUNNING.failed(FencedError("file:///store", 1, 2, "another driver")))


def going_back(why: str) -> LifeChanged:
    """A pipeline goes back to a checkpoint."""
    return LifeChanged(_RUNNING.set_back(Setback(PipelineStateLostError(why), 0.0)))
