"""Makes a coordinator the shadow of its pipeline: it runs the leader's batches, in a storage folder of this life."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import attrs
from typing_extensions import override

from ...state.host.discovery import keep_spare
from ...storage import runtime
from ...storage.backends.open import open_store, pipeline_uri
from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.layout import SHADOWS
from ...storage.checkpoints.locate import Located
from ...storage.errors import ChandyError, DamagedError, FencedError, NothingHereError, ObjectMissingError
from ...storage.ids import CheckpointId
from ...storage.logs import logger
from ...storage.uri import join_uri
from ...storage.verified import read_verified
from ..errors import ReplicaError, ShadowReplacedError
from ..execution.executor import CheckpointExecutor
from ..leadership.heir import Inheritance
from ..operators import Operators
from ..recovery.supervisor import Supervisor
from ..supervised_run import Exit
from ..verdict import Finding, ShadowVerdict
from ..wiring.taken_pipeline import TakenPipeline
from .follower import Follower
from .leader import FollowedPipeline
from .own_pins import OwnPins
from .rerun import Rerun
from .shadow import Shadow
from .switching import Switching

if TYPE_CHECKING:
    import pyarrow as pa

    from ..replication.formats import Format
    from ..replication.replica import Replica

log = logger(__name__)


@attrs.frozen
class Former:
    """What a shadow has been that has led its pipeline before."""

    checkpoint: CheckpointId
    """Its last one, whose state it goes on with. Its name pins that already."""
    fenced: FencedError
    """By which it has learned of its successor. Its queries end with that."""
    seconds: float
    """For how long it follows."""


class ShadowRerun(Rerun):
    """What a coordinator with ``shadow=`` does instead of leading its pipeline, and one that a shadow has replaced."""

    def __init__(self, shadow: Shadow, pipeline: str, storage: str, former: Former | None = None) -> None:
        """Say what to do. Nothing is written before a coordinator takes it.

        Args:
            shadow: what the user says of it.
            pipeline: the leader's.
            storage: the leader's.
            former: what it has been; None: it has not led the pipeline.

        Raises:
            NothingHereError: the pipeline has no checkpoint yet.
            ChandyError: its storage cannot be read.
        """
        root = pipeline_uri(storage, pipeline)
        self.leader = open_store(root)
        """The store of the pipeline that is followed."""
        self._life = runtime.token()[:12]
        rows = join_uri(root, SHADOWS.rstrip("/"), self._life, "rows")
        self._rows_store = open_store(rows)
        catalog = Catalog(self.leader)
        self._former = former
        self._until = inf if former is None else runtime.monotonic() + former.seconds
        self.follower = Follower.of(
            shadow,
            pipeline,
            FollowedPipeline(catalog),
            self._taken_rows,
            self._life,
            is_new=former is not None,
        )
        switching = self._switching = Switching(
            catalog, shadow, self._life, self.follower.look, keep_spare, self._inherit, runtime.time
        )
        self.follower.on_passed = switching.passed
        self.follower.is_hurried = lambda: switching.is_under_way
        start = (
            locate.find(catalog, former.checkpoint)
            if former
            else _start(catalog, self.follower.verdict.passed)
        )
        super().__init__(
            start,
            join_uri(root, SHADOWS.rstrip("/")),
            self._follow,
            pipeline=self._life,
            rows=rows,
            may_write=shadow.may_write,
            tells=True,
            is_awaited=False,
        )
        # The same in each life, so that one that was killed leaves nothing behind.
        self._pins = OwnPins(self.leader, shadow.reader)

    @property
    def verdict(self) -> ShadowVerdict:
        """What it has found so far."""
        return self.follower.verdict

    @override
    def begin(
        self,
        supervisor: Supervisor,
        executor: CheckpointExecutor,
        own: TakenPipeline,
        operators: Operators,
        lead: Callable[[Inheritance], None],
    ) -> None:
        def tell(finding: Finding) -> None:
            supervisor.news.shadow_differs(self.verdict.shadow, finding)

        self.follower.on_difference = tell
        super().begin(supervisor, executor, own, operators, lead)

    @override
    def replica(self, name: str, operator: str, state: str | None, format: Format | None) -> Replica:
        raise ReplicaError(
            f"replica {name!r} cannot be kept",
            "a coordinator that leads",
            "one that may lead later, and follows",
        )

    @override
    def exit(self, ended: Exit) -> Exit:
        # Started again, its program would take the pipeline back.
        return super().exit(ended) if self._former is None else Exit.FENCED

    @override
    def _end_queries(self) -> None:
        if self._former is None or self._is_complete:
            super()._end_queries()
        else:
            self._supervisor.fenced(self._former.fenced)

    @override
    def _release(self) -> None:
        if isinstance(self.error, ShadowReplacedError):
            # The pins and the folder are for the other one to release.
            return
        super()._release()
        if self.inherited is not None:
            # Checkpoints of the pipeline name what is there.
            self.follower.forget(self.verdict.lives)
            return
        self._clean(self.verdict.lives)

    def rest(self, seconds: float) -> bool:
        """Wait, and return whether the program stops its coordinator, or the time of a former leader is over."""
        with self._changed:
            if self._changed.wait_for(lambda: self._is_complete, seconds):
                return True
        return runtime.monotonic() >= self._until and not self._switching.is_under_way

    def _follow(self, _: Rerun) -> None:
        self._clean(self.verdict.lives[:-1])
        try:
            self.follower.conduct(self)
        finally:
            self._switching.give_up("the shadow has ended")

    def _clean(self, lives: Sequence[str]) -> None:
        """Delete the folders of lives that are over, unless the pipeline's checkpoints name what is there."""
        try:
            needed = frozenset[str]().union(*(one.keys() for one in Catalog(self.leader).readable()))
            for life in lives:
                folder = f"{SHADOWS}{life}/"
                if not any(key.startswith(folder) for key in needed):
                    self.leader.delete_all(self.leader.list(folder))
                    self.follower.forget([life])
        except (ChandyError, OSError) as error:
            log.warning("cannot delete what a shadow has left; the next life tries again", error=str(error))

    def _inherit(self, inherited: Inheritance) -> None:
        self.inherited = inherited

    def _taken_rows(self, key: str) -> Iterator[pa.Table]:
        """Yield the rows in a file that a batch has left, which is then deleted."""
        import pyarrow.parquet as pq

        yield read_verified(self._rows_store, key, lambda data: pq.read_table(io.BytesIO(data)))
        self._rows_store.delete(key)


def _start(catalog: Catalog, passed: int | None) -> Located:
    """Return the checkpoint that the life before has passed last, or else the next one that is there, or the newest."""
    for checkpoint in () if passed is None else [id for id in catalog.list_ids() if id >= passed]:
        # Retention may come first, and what is damaged or void leads nowhere.
        with suppress(NothingHereError, ObjectMissingError, DamagedError):
            return locate.find(catalog, checkpoint)
    return locate.find(catalog, locate.LATEST)
