"""What a program's coordinator is to do instead of leading its pipeline: its program does not know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...storage import runtime
from ...storage.backends.open import open_store, pipeline_uri
from ...storage.checkpoints.catalog import Catalog
from ...storage.logs import logger
from ..errors import ArgumentError
from ..leadership.heir import leads_again
from ..leadership.leadership import has_ended
from .rerun import Rerun

if TYPE_CHECKING:
    from .shadow import Shadow

log = logger(__name__)


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
    """Return what a shadow does instead of leading the pipeline; None if it is none, or has taken the pipeline over."""
    if shadow is None or _has_led(shadow, Catalog(open_store(pipeline_uri(storage, pipeline)))):
        return None
    # Only a shadow loads what reads state.
    from .shadow_rerun import ShadowRerun

    return ShadowRerun(shadow, pipeline, storage)


def _has_led(shadow: Shadow, catalog: Catalog) -> bool:
    generation = catalog.newest_generation()
    driver = catalog.leader(generation)
    claim = catalog.claimed(generation)
    if not leads_again(shadow.name, claim, has_ended=driver is None or has_ended(driver)):
        return False
    log.warning(
        "this shadow has taken the pipeline over, and its driver has ended: the program leads again",
        shadow=shadow.name,
        generation=generation,
    )
    return True
