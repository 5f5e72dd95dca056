"""All pipelines of a storage, as it has them: who leads each, and how far it has come. No driver is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from ...storage import runtime
from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.layout import replicated_by
from ...storage.errors import ChandyError
from ..leadership.leadership import is_dead
from .stored import StoredPipeline

_LIST_SECONDS: Final = 60.0
"""How often to look for pipelines that are new: that lists all objects of the storage."""


@attrs.frozen(kw_only=True)
class PipelineStanding:
    """A pipeline of a storage at one moment."""

    name: str
    state: str
    """In some words."""
    is_well: bool | None
    """None: nobody can say, because no driver is asked."""
    leader: str = ""
    """The driver that leads it, or led it; empty if none does."""
    generation: int = 0
    behind: float | None = None
    """By how many offsets it was behind its sources when that was last stored; None if that is not known."""
    checkpoint: int | None = None
    """The latest that has completed; None: none has."""
    completed_at: float | None = None
    size: int | None = None
    replica_of: str = ""
    """The pipeline whose state it replicates; empty if it is no replica."""


@attrs.define
class StoredPipelines:
    """The pipelines of a storage. The store is read when something is asked of it."""

    uri: str
    clock: Callable[[], float]
    _known: dict[str, StoredPipeline] = attrs.field(factory=dict, init=False)
    _listed_at: float | None = attrs.field(default=None, init=False)
    _listing: runtime.Lock = attrs.field(factory=runtime.lock, init=False)

    def names(self) -> tuple[str, ...]:
        """Return the names of all pipelines.

        Raises:
            NothingHereError: there is none.
        """
        with self._listing:
            now = self.clock()
            if self._listed_at is None or now - self._listed_at >= _LIST_SECONDS:
                found = locate.pipelines(self.uri)
                self._known = {
                    name: self._known.get(name) or StoredPipeline(Catalog(store), self.clock)
                    for name, store in found.items()
                }
                self._listed_at = now
            return tuple(self._known)

    def known(self, name: str) -> StoredPipeline | None:
        """Return a pipeline that was there when they were listed last; None if there was no such one."""
        return self._known.get(name)

    def standings(self) -> tuple[PipelineStanding, ...]:
        """Return where all pipelines stand, replicas last.

        Raises:
            NothingHereError: there is none.
        """
        names = sorted(self.names(), key=lambda name: (replicated_by(name) is not None, name))
        return tuple(standing(name, self._known[name]) for name in names)


def standing(name: str, pipeline: StoredPipeline) -> PipelineStanding:
    """Return where a pipeline stands."""
    facts, catalog = pipeline.facts(), pipeline.catalog
    try:
        generation = catalog.newest_generation()
        driver = catalog.leader(generation) if generation else None
        is_gone = driver is not None and is_dead(catalog, driver)
    except (ChandyError, OSError) as error:
        return PipelineStanding(name=name, state=f"the storage cannot be read: {error}", is_well=False)
    ended = pipeline.history()[-1:] if driver is None else ()
    failed = any(entry.what == "failed for good" and entry.generation == generation for entry in ended)
    return PipelineStanding(
        name=name,
        state="has failed for good"
        if failed
        else "nobody leads it"
        if driver is None
        else "its driver is gone"
        if is_gone
        else "is led",
        is_well=False if failed or is_gone else None,
        leader=f"{driver.host}, pid {driver.pid}" if driver else "",
        generation=generation,
        behind=_latest_behind(pipeline),
        checkpoint=facts.completed,
        completed_at=facts.last_completed_at,
        size=facts.size,
        replica_of=replicated_by(name) or "",
    )


def _latest_behind(pipeline: StoredPipeline) -> float | None:
    spans = pipeline.trends().day.spans
    return next(
        (spans[span].behind for span in sorted(spans, reverse=True) if spans[span].behind is not None), None
    )
