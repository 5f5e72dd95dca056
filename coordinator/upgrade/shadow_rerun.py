"""Makes a coordinator the shadow of its pipeline: it runs the leader's batches, in a storage folder of this life."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from ...storage import runtime
from ...storage.backends.open import open_store, pipeline_uri
from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.layout import SHADOWS
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.pins import Pins, reader_of
from ...storage.errors import ChandyError, DamagedError, NothingHereError, ObjectMissingError
from ...storage.logs import logger
from ...storage.uri import join_uri
from ...storage.verified import read_verified
from ..errors import ReplicaError, ShadowReplacedError
from ..execution.executor import CheckpointExecutor
from ..leadership.heir import Inheritance
from ..operators import Operators
from ..recovery.supervisor import Supervisor
from ..verdict import Finding, ShadowVerdict
from ..wiring.taken_pipeline import TakenPipeline
from .follower import Follower
from .leader import FollowedPipeline
from .rerun import Rerun
from .shadow import Shadow
from .switching import Switching

if TYPE_CHECKING:
    import pyarrow as pa

    from ..replication.formats import Format
    from ..replication.replica import Replica

log = logger(__name__)


class ShadowRerun(Rerun):
    """What a coordinator with ``shadow=`` does instead of leading its pipeline."""

    def __init__(self, shadow: Shadow, pipeline: str, storage: str) -> None:
        """Say what to do. Nothing is written before a coordinator takes it.

        Args:
            shadow: what the user says of it.
            pipeline: the leader's.
            storage: the leader's.

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
        self.follower = Follower.of(shadow, pipeline, FollowedPipeline(catalog), self._taken_rows, self._life)
        switching = Switching(
            catalog,
            shadow.name,
            self._life,
            shadow.equal_batches,
            self.follower.look,
            self._inherit,
            runtime.time,
        )
        self.follower.on_passed = switching.passed
        self.follower.is_hurried = lambda: switching.is_under_way
        super().__init__(
            _start(catalog, self.follower.verdict.passed),
            join_uri(root, SHADOWS.rstrip("/")),
            self._follow,
            pipeline=self._life,
            rows=rows,
            may_write=shadow.may_write,
            tells=True,
            is_awaited=False,
        )
        # The same in each life, so that one that was killed leaves nothing behind.
        self._pins = Pins(self.leader, reader_of(shadow.name))

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
    def release(self) -> None:
        if isinstance(self.error, ShadowReplacedError):
            # The pins and the folder are for the other one to release.
            return
        super().release()
        if self.inherited is not None:
            # Checkpoints of the pipeline name what is there.
            self.follower.forget(self.verdict.lives)
            return
        self._clean(self.verdict.lives)

    def rest(self, seconds: float) -> bool:
        """Wait, and return whether the program stops its coordinator."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_complete, seconds)

    def _follow(self, _: Rerun) -> None:
        self._clean(self.verdict.lives[:-1])
        self.follower.conduct(self)

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
