"""A pipeline as its storage has it, for the same pages: whether a driver runs or not, none is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs

from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.journal import JournalEntry, read_journal
from ...storage.checkpoints.manifest import Manifest
from ...storage.errors import ChandyError
from ...storage.ids import CheckpointId
from ..assigned_shard import AssignedShard
from ..protocol.statistics import History, Statistics
from ..protocol.totals import PhaseSeconds
from ..recovery.metrics import RecoveryMetrics
from ..verdict import ShadowVerdict
from ..verdicts import read_verdicts
from .facts import Facts, Home, QueryFacts
from .state_sizes import StateSizes
from .trend_keeper import read_trends
from .trends import Measured, Trends


@attrs.define
class StoredPipeline:
    """The ``Source`` of a pipeline that is only stored. The store is read when something is asked of it."""

    catalog: Catalog
    clock: Callable[[], float]
    _ids: list[CheckpointId] = attrs.field(factory=list, init=False)
    _manifests: list[Manifest] = attrs.field(factory=list, init=False)
    """The manifests of the checkpoints, oldest first."""
    _verdicts: list[ShadowVerdict] = attrs.field(factory=list, init=False)
    """What shadows have found."""
    _trouble: str = attrs.field(default="", init=False)
    """Why the store could not be read; empty if it could."""
    _sizes: StateSizes = attrs.field(factory=StateSizes, init=False)
    _reading: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    @property
    def orders(self) -> None:
        """Nothing: nobody is there who could obey."""

    def facts(self) -> Facts:
        """Return what the newest checkpoint says."""
        found = self._read()
        newest = found[-1] if found else None
        sizes = self._sizes.of(newest, None)
        return Facts(
            generation=newest.generation if newest else 0,
            life=None,
            because=self._trouble,
            now=self.clock(),
            began=0.0,
            interval=None,
            longest_interval=None,
            totals=_history(found).totals,
            restored=0,
            last_completed_at=newest.completed_at if newest else None,
            completed=newest.id if newest else None,
            size=newest.size if newest else None,
            operators=sizes,
            checkpoints_in_progress=0,
            checkpoints_queued=0,
            queries={
                query.name: QueryFacts(
                    life=None,
                    committed=query.batch,
                    operators=tuple(uid for uid, one in sizes.items() if one.query == query.name),
                )
                for query in (newest.queries if newest else ())
            },
            hosts={},
            disks={},
            shards={},
            shards_unassigned=newest.shard_count if newest else 0,
            shards_moving=0,
            shards_with_standby=0,
            unpublished={},
            recoveries={},
            recovery_seconds=None,
            channels=newest.channels if newest else (),
            shadows={verdict.shadow: verdict for verdict in self._verdicts},
            home=Home(storage=self.catalog.store.uri),
        )

    def statistics(self) -> Statistics:
        """Return what is known of the checkpoints that are kept."""
        return _history(self._read()).snapshot()

    def assignment(self) -> tuple[AssignedShard, ...]:
        """Return the shards of the newest checkpoint. No machine has them."""
        found = self._read()
        return tuple(
            AssignedShard(operator.query, operator.uid, shard, None, None, size=handle.size if handle else 0)
            for operator in (found[-1].operators if found else ())
            for shard, handle in enumerate(operator.shards)
        )

    def recoveries(self) -> tuple[RecoveryMetrics, ...]:
        """Return none: the history names them."""
        return ()

    def history(self) -> tuple[JournalEntry, ...]:
        """Return what has failed in the latest lives of the driver, oldest first."""
        try:
            return tuple(read_journal(self.catalog.store))
        except (ChandyError, OSError):
            # ``facts`` says so.
            return ()

    def trends(self) -> Trends:
        """Return what the newest driver has stored; at least the checkpoints that are kept."""
        try:
            found = read_trends(self.catalog.store)
        except (ChandyError, OSError):
            found = Trends()
        if found == Trends():
            for one in _history(self._read()).snapshot().checkpoints:
                found = found.plus(one.completed_at or one.triggered_at, Measured.checkpoint(one))
        return found

    def _read(self) -> list[Manifest]:
        with self._reading:
            try:
                ids = self.catalog.list_ids()
                if ids != self._ids:
                    self._manifests = sorted(self.catalog.readable(), key=lambda one: one.id)
                    self._ids = ids
                self._verdicts = read_verdicts(self.catalog.store)
                self._trouble = ""
            except (ChandyError, OSError) as error:
                # A store that is away for a moment: what was read before is shown with it.
                self._trouble = str(error)
            return self._manifests


def _history(manifests: Sequence[Manifest]) -> History:
    history = History()
    for one in manifests:
        history.started(one.id, one.kind, one.triggered_at)
        history.completed(
            one.id, one.completed_at, size=one.size, new_bytes=one.new_bytes, phases=PhaseSeconds()
        )
    return history
