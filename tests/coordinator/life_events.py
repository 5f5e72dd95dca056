"""What happens to the life of a pipeline in tests of its protocol."""

from __future__ import annotations

from typing import Final

from chandy.coordinator.errors import PipelineFailedError
from chandy.coordinator.protocol.decisions import EndExplained, GoingBack, Stopped, WentBack
from chandy.storage import FencedError

RUNS: Final = WentBack()
STOPPED: Final = Stopped()
FAILED: Final = EndExplained(PipelineFailedError("it cannot go on"))
FENCED: Final = EndExplained(FencedError("file:///store", 1, 2, "another driver"))


def going_back(why: str) -> GoingBack:
    """A pipeline goes back to a checkpoint."""
    return GoingBack(why, 0.0)
