"""A sink whose tasks write into their target themselves; it is never run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from chandy.coordinator.sinks.two_phase.contract import (
    Committer,
    Fence,
    Publish,
    Staged,
    TwoPhaseSink,
    WriteContext,
)


@attrs.frozen
class WritingSink(TwoPhaseSink):
    target = "somewhere"
    publish: Publish = "checkpoint"
    uid: str = "writing"

    def write(self, batches: Iterator[Any], context: WriteContext) -> Staged:
        raise NotImplementedError

    def recover(self, fence: Fence) -> Committer:
        raise NotImplementedError
