"""Writes into the journal what a pipeline tells of itself, on a thread of its own, and keeps it for the page."""

from __future__ import annotations

import threading
from typing import Final

import attrs

from ...storage.checkpoints.journal import Journal, JournalEntry, read_journal
from ...storage.errors import ChandyError
from ...storage.logs import logger
from ...storage.store import Store
from ..recovery.pipeline_events import (
    CheckpointFailed,
    HostReplaced,
    PipelineEnded,
    PipelineEvent,
    Recovered,
    Recovering,
    StartRefused,
)

log = logger(__name__)

_STORE_SECONDS: Final = 10.0
"""How long a request to the store may take. An entry that cannot be written is written with the next one."""


def entry_of(event: PipelineEvent) -> JournalEntry | None:
    """Return what the journal says of an event; None if it is not for the journal."""
    match event:
        case CheckpointFailed(id=id, reason=reason, detail=detail) if id is not None:
            says = f"{reason}: {detail}"
            return JournalEntry(at=event.at, what="checkpoint failed", says=says, checkpoint=id)
        case StartRefused(why=why):
            return JournalEntry(at=event.at, what="start refused", says=why)
        case Recovering(cause=cause, in_place=in_place):
            what = "restarts in place" if in_place else "goes back"
            return JournalEntry(at=event.at, what=what, says=cause)
        case Recovered(query=query, recovery=recovery):
            total = 0.0 if recovery.total is None else recovery.total
            says = f"query {query}, in {total:.1f} s"
            return JournalEntry(at=event.at, what="has recovered", says=says, checkpoint=recovery.checkpoint)
        case HostReplaced(why=why, promoted=promoted, reopened=reopened):
            says = f"{why}; shards from standbys: {promoted}, from changelogs: {reopened}"
            return JournalEntry(at=event.at, what="has lost a host", says=says)
        case PipelineEnded(error=error) if error is not None:
            what = "taken over" if event.is_fenced else "failed for good"
            return JournalEntry(at=event.at, what=what, says=str(error))
    return None


@attrs.define
class JournalWriter:
    """Writes the journal of a driver. One thread calls ``take``, any may ask for ``known``."""

    _store: Store
    _journal: Journal
    _earlier: tuple[JournalEntry, ...] | None = attrs.field(default=None, init=False)
    _loading: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _has_failed: bool = attrs.field(default=False, init=False)

    @classmethod
    def of(cls, store: Store, generation: int) -> JournalWriter:
        """Make the writer of a generation."""
        quick = store.within(_STORE_SECONDS)
        return cls(quick, Journal(quick, generation))

    def take(self, event: PipelineEvent) -> None:
        """Write an event down, if it is one for the journal. If the store fails, the log says so once."""
        entry = entry_of(event)
        if entry is None:
            return
        try:
            self._journal.add(entry)
            self._has_failed = False
        except (ChandyError, OSError) as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning("the journal cannot be written", error=str(error))

    def known(self) -> tuple[JournalEntry, ...]:
        """Return the entries of this driver and, as of the first call, of earlier ones, oldest first."""
        with self._loading:
            if self._earlier is None:
                self._earlier = self._read_earlier()
        return (*self._earlier, *self._journal.entries)

    def _read_earlier(self) -> tuple[JournalEntry, ...]:
        try:
            found = read_journal(self._store)
        except (ChandyError, OSError) as error:
            log.warning("the journal of earlier drivers cannot be read", error=str(error))
            return ()
        return tuple(one for one in found if one.generation < self._journal.generation)
