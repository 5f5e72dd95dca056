"""What a program's coordinator is to do instead of leading its pipeline: its program does not know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...storage import runtime
from ..errors import ArgumentError
from .rerun import Rerun

if TYPE_CHECKING:
    from .shadow import Shadow


class Requested:
    """What was requested in this process."""

    def __init__(self) -> None:
        self.pipeline = ""
        self.rerun: Rerun | None = None
        self.is_taken = False


@contextmanager
def instead_of(pipeline: str, rerun: Rerun) -> Iterator[Requested]:
    """Have the next coordinator of a pipeline run given batches, and no other one be made, inside of the ``with``."""
    requested = runtime.own(Requested)
    requested.pipeline, requested.rerun, requested.is_taken = pipeline, rerun, False
    try:
        yield requested
    finally:
        requested.rerun = None


def requested(pipeline: str) -> Rerun | None:
    """Return what a new coordinator of a pipeline is to do instead of leading it; None: it leads.

    Raises:
        ArgumentError: another pipeline's batches run in this process, or these do already.
    """
    found = runtime.own(Requested)
    if found.rerun is None:
        return None
    if found.is_taken or pipeline != found.pipeline:
        raise ArgumentError(
            "no pipeline can be led while batches are run again",
            f"one coordinator, of pipeline {found.pipeline!r}",
            "a second one" if pipeline == found.pipeline else f"one of pipeline {pipeline!r}",
            "run the batches of each pipeline on their own, with a program that makes this one alone",
        )
    found.is_taken = True
    return found.rerun


def shadowing(shadow: Shadow | None, pipeline: str, storage: str) -> Rerun | None:
    """Return what a shadow does instead of leading the pipeline; None if it is none."""
    if shadow is None:
        return None
    # Only a shadow loads what reads state.
    from .shadow_rerun import ShadowRerun

    return ShadowRerun(shadow, pipeline, storage)
