"""Runs recorded batches of a pipeline again, with a program of today, and says where it gives something else.

Nothing of the pipeline is touched: its checkpoints and records are read, and its targets are not even asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ...state.reader.differences import OperatorDifferences, compare
from ...storage.backends.open import open_store
from ...storage.checkpoints import locate
from ...storage.checkpoints.batch_record import BatchRecord
from ...storage.checkpoints.catalog import Catalog
from ...storage.checkpoints.locate import Located
from ...storage.checkpoints.restore import read_file
from ...storage.disk.scratch import scratch_directory
from ...storage.errors import DamagedError, ObjectMissingError
from ...storage.ids import BatchId, CheckpointId
from ...storage.logs import logger
from ...storage.store import Store
from ..errors import ArgumentError, GivenBatchError, ProcessorFailedError, QueryFailedError
from ..operators import as_made
from .break_at import BreakAt, Debugged
from .ignoring import Ignored
from .kept import differing_states, kept_rows, kept_state, says_of
from .leader import FollowedPipeline, stage_of, staged_files
from .outputs import Sides, differing_outputs
from .requested import instead_of
from .rerun import BatchOutcome, Rerun
from .stretch import OLDEST, Leg, Place, Stretch, is_savepoint, stretch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

log = logger(__name__)

_ROWS: Final = 1000
"""The most rows of each side that are kept of an output that differs."""
_ITEMS: Final = 1000
"""The same of the items of a state."""
_SIDES: Final = Sides("record", "replay")


@attrs.frozen
class ReplayDifference:
    """Something that a replay has given and that is not what was recorded."""

    what: str
    """``"output"``, ``"watermark"``, ``"state"`` or ``"failure"``."""
    query: str
    batch: BatchId
    """Of a state, the last batch before the checkpoint."""
    says: str
    """How it differs; of a failure, its text."""
    name: str = ""
    """The uid of the sink or of the operator."""
    checkpoint: CheckpointId | None = None
    """The checkpoint at which states were compared."""
    example: str = ""
    """One row or key, as both sides have it."""
    kept: str = ""
    """The file with the first rows or items of both sides; empty if nothing was to be kept."""

    def __str__(self) -> str:
        place = f"batch {self.batch} of query {self.query!r}"
        if self.what == "failure":
            return f"{place} fails: {self.says}"
        if self.what == "watermark":
            return f"the watermark of {place} differs: {self.says}"
        what = f"the output of sink {self.name!r}" if self.what == "output" else f"operator {self.name!r}"
        where = f"in {place}" if self.what == "output" else f"at checkpoint {self.checkpoint}, after {place}"
        return f"{what} differs {where}: {self.says}" + (f"; {self.example}" if self.example else "")


@attrs.frozen
class ReplayStep:
    """What a replay has just done."""

    query: str
    """Empty for a checkpoint."""
    number: int
    """The batch or the checkpoint."""
    compared: bool
    """Whether there was a record to compare with: digests of a batch, or state."""
    differences: tuple[ReplayDifference, ...] = ()


@attrs.define
class ReplayResult:
    """What came of a replay."""

    start: CheckpointId
    """The checkpoint behind which it began; with ``until_different`` the last one that it began behind."""
    batches: int = 0
    """Batches that were run."""
    compared: int = 0
    """Those whose output could be compared."""
    checkpoints: list[CheckpointId] = attrs.field(factory=list)
    """The checkpoints at which states were compared."""
    operators: int = 0
    """Operators whose states were compared, at all checkpoints together."""
    differences: list[ReplayDifference] = attrs.field(factory=list)
    """What differs, where it does first; empty if nothing does."""


@attrs.define
class Replay:
    """One replay of a stretch of a pipeline's batches."""

    pipeline: str
    stretch: Stretch
    located: Mapping[CheckpointId, Located]
    until_different: bool = False
    """Whether halves of the stretch are tried, the later one first, instead of one batch after the other."""
    keep: Path | None = None
    """Folder for what differs."""
    ignored: Ignored = attrs.field(factory=Ignored)
    """Fields and columns that may differ."""
    debugged: Debugged | None = None
    """The key that is taken into a debugger. Then differences ahead of its batch end nothing; None: there is none."""
    tell: Callable[[ReplayStep], object] = lambda step: None
    """Called with each step."""
    result: ReplayResult = attrs.field(init=False)
    _rows: Store = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.result = ReplayResult(self.stretch.start.id)

    @classmethod
    def of(
        cls,
        storage: str,
        begin: Place | None = None,
        end: Place | None = None,
        *,
        name: str | None = None,
        until_different: bool = False,
        keep: Path | None = None,
        ignore: Iterable[str] = (),
        break_at: BreakAt | None = None,
        tell: Callable[[ReplayStep], object] = lambda step: None,
    ) -> Replay:
        """Find what is to be run.

        Args:
            storage: a storage as a coordinator is given it, the folder of one pipeline in it, or a copy of it.
            begin: behind which checkpoint, by its id or as a savepoint's URI, or ahead of which batch; "oldest". None:
                the oldest, or the newest ahead of the batch of ``break_at``.
            end: with which checkpoint, savepoint or batch it ends; "latest". None: that one, or the batch of
                ``break_at``.
            name: of the pipeline; None: there is only one.
            until_different, keep, tell: as the attributes.
            ignore: names of fields that may differ, as for ``Shadow``.
            break_at: the key that ``debug`` takes into a debugger.

        Raises:
            ArgumentError: with ``break_at``, the replay is to end elsewhere, or not to run all batches before.
            NothingHereError: there is no such pipeline or savepoint.
            GivenBatchError: there is no such checkpoint or batch, or a batch in between has no record.
            ConfigError: what is to be ignored is no name of a field.
        """
        if break_at is not None:
            if end is not None or until_different:
                raise ArgumentError(
                    "a replay that goes into a debugger ends with its batch",
                    "neither an end nor until_different",
                    "until_different" if until_different else f"the end {end!r}",
                )
            begin, end = break_at.place if begin is None else begin, break_at.place
        name, store = locate.only_pipeline(storage, name)
        pipeline = FollowedPipeline(Catalog(store))
        stages = {stage.id: stage for stage in pipeline.stages()}
        located = {id: pipeline.located(id) for id in stages}
        places = list[Place]()
        for given in (OLDEST if begin is None else begin, locate.LATEST if end is None else end):
            if not is_savepoint(given):
                places.append(given)
                continue
            found = locate.find(pipeline.catalog, given)
            id = found.manifest.id
            stages[id], located[id] = stage_of(found.store, found.manifest), found
            places.append(id)
        ordered = [stages[id] for id in sorted(stages)]
        return cls(
            name,
            stretch(ordered, *places),
            located,
            until_different,
            keep,
            Ignored.of(ignore),
            None if break_at is None else Debugged.of(break_at, ordered),
            tell,
        )

    def by(self, program: Callable[[], object], *, may_write: bool = False) -> ReplayResult:
        """Run the batches with the queries that a program starts.

        Args:
            program: makes a coordinator of the pipeline, starts queries with it, and waits for them. All of them end
                when the last batch has been run.
            may_write: whether functions of ``foreachBatch`` and ``foreach`` are called, which write by themselves.

        Raises:
            GivenBatchError: it does not make the coordinator, or not all queries that have batches; or the batches
                have neither digests nor state that could be compared.
            ChandyError: a checkpoint cannot be restored, or something else that is no fault of a batch.
            Exception: what the program raises, if nothing differed before.
        """
        with scratch_directory("replay") as scratch:
            self._rows = open_store(str(scratch / "rows"))
            parts = list(_latest_first(self.stretch)) if self.until_different else [self.stretch]
            rerun = Rerun(
                self.located[parts[0].start.id],
                str(scratch / "state"),
                partial(self._conduct, parts),
                rows=self._rows.uri,
                needed=[self.located[stage] for stage in self.stretch.checkpoints()],
                watched=partial(self.debugged.watched, self._rows.uri) if self.debugged else as_made,
                may_write=may_write,
            )
            with instead_of(self.pipeline, rerun) as requested:
                try:
                    program()
                except SystemExit as end:
                    if end.code and rerun.error is None and not self.result.differences:
                        raise
                except Exception:
                    if not self.result.differences:
                        raise
        if rerun.error is not None:
            raise rerun.error
        if not requested.is_taken:
            raise GivenBatchError(
                "no batch was run", f"a program with a coordinator of pipeline {self.pipeline!r}", "none"
            )
        is_compared = self.result.compared or self.result.operators
        if not (self.result.differences or is_compared or self.debugged):
            raise GivenBatchError(
                "nothing could be compared",
                "digests of the output, which transactional sinks take, or state of Chandy's operators",
                f"neither, in {self.result.batches} batches that ran without an error",
                "write by a transactional sink (sink=) from now on",
            )
        return self.result

    def debug(self) -> list[Row]:
        """Run the batch of the key of ``break_at`` in this process, once the replay is over; return what it gives.

        ``breakpoint()`` is called ahead of each call of the processor for the key, as PYTHONBREAKPOINT says.

        Raises:
            GivenBatchError: the replay has ended before the batch, or the processor was not called for the key in it.
            ChandyError: the processor has failed, or its output does not fit.
            KeyboardInterrupt: the user has left the debugger.
        """
        assert self.debugged is not None, "a key was named"
        return self.debugged.run()

    # --- beside the program ---------------------------------------------------------------------------------

    def _conduct(self, parts: Sequence[Stretch], rerun: Rerun) -> None:
        for number, part in enumerate(parts):
            self.result.start = part.start.id
            rerun.await_queries(sorted({query for leg in part.legs for query, _ in leg.batches}))
            if self.debugged is not None:
                self.debugged.choose(rerun.operators(self.debugged.query))
            if number:
                rerun.restore(self.located[part.start.id])
            for leg in part.legs:
                if self._differs(rerun, leg):
                    return

    def _differs(self, rerun: Rerun, leg: Leg) -> bool:
        """Run the batches of a leg, and return whether something differs."""
        for query, record in leg.batches:
            found, compared = self._batch(rerun, leg, query, record)
            self.result.batches += 1
            self.result.compared += compared
            if self._told(ReplayStep(query, record.batch, compared, tuple(found))):
                return True
        if not leg.is_whole:
            return False
        found = list(self._state(leg, rerun.checkpoint()))
        self.result.checkpoints.append(leg.stage.id)
        return self._told(ReplayStep("", leg.stage.id, True, tuple(found)))

    def _told(self, step: ReplayStep) -> bool:
        self.result.differences += step.differences
        self.tell(step)
        goes_on = self.debugged is not None and all(one.what != "failure" for one in step.differences)
        return bool(step.differences) and not goes_on

    def _batch(
        self, rerun: Rerun, leg: Leg, query: str, record: BatchRecord
    ) -> tuple[list[ReplayDifference], bool]:
        """Run a batch; return how it differs, and whether there was something to compare it with."""
        try:
            outcome = rerun.run(query, record)
        except (ProcessorFailedError, QueryFailedError) as error:
            return [ReplayDifference("failure", query, record.batch, str(error))], True
        finally:
            if self.debugged is not None and self.debugged.is_in(query, record.batch):
                self.debugged.take(self._rows)
        compared = bool(record.outputs and outcome.outputs)
        differing = (
            differing_outputs(record.outputs, outcome.outputs, self.ignored, _SIDES) if compared else {}
        )
        found = [
            self._output(leg, query, record.batch, uid, says, outcome) for uid, says in differing.items()
        ]
        if outcome.watermarks is not None and (says := outcome.watermarks.differing(_SIDES)):
            found.insert(0, ReplayDifference("watermark", query, record.batch, says))
        self._rows.delete_all(list(outcome.rows))
        return found, compared

    def _output(
        self, leg: Leg, query: str, batch: BatchId, uid: str, says: str, outcome: BatchOutcome
    ) -> ReplayDifference:
        ours = [_table(self._rows.read(key)) for key in outcome.rows]
        kept = kept_rows(
            self._recorded(leg, query, uid, batch), ours, self.ignored.columns(uid), _ROWS, _SIDES
        )
        path = self._keep(f"batch-{batch}-{query}-{uid}", kept.parquet)
        says = "; ".join(filter(None, (says, kept.says)))
        return ReplayDifference("output", query, batch, says, uid, None, kept.example, path)

    def _recorded(self, leg: Leg, query: str, uid: str, batch: BatchId) -> list[pa.Table] | None:
        """Return the rows of a batch as they were; None if nobody has them any more."""
        located = self.located[leg.stage.id]
        files = list(staged_files(located.manifest, query, uid, batch))
        with suppress(DamagedError, ObjectMissingError):
            return [_table(read_file(located.store, file)) for file in files] or None
        return None

    def _state(self, leg: Leg, own: Located) -> Iterator[ReplayDifference]:
        """Yield the operators whose state is not what it was at a checkpoint."""
        for found in compare(self.located[leg.stage.id], own, limit=_ITEMS, ignored=self.ignored.fields):
            self.result.operators += 1
            if found.change is not None or differing_states(found):
                yield self._operator(leg, found)

    def _operator(self, leg: Leg, found: OperatorDifferences) -> ReplayDifference:
        batch, states = leg.stage.cut(found.query), differing_states(found)
        says = [f"{state.name}: {says_of(state, _SIDES)}" for state in states]
        if found.change is not None:
            says.insert(0, f"the operator is {found.change.value}")
        kept = kept_state(found.uid, states, _SIDES)
        path = self._keep(f"checkpoint-{leg.stage.id}-{found.uid}", kept.parquet)
        return ReplayDifference(
            "state", found.query, batch, "; ".join(says), found.uid, leg.stage.id, kept.example, path
        )

    def _keep(self, name: str, parquet: bytes) -> str:
        if self.keep is None:
            return ""
        self.keep.mkdir(parents=True, exist_ok=True)
        path = self.keep / f"{name}.parquet"
        path.write_bytes(parquet)
        return str(path)


def _latest_first(whole: Stretch) -> Iterator[Stretch]:
    """Yield a stretch in parts, so that each is half of what is left, and the last one begins where it begins."""
    while (halves := whole.halves()) is not None:
        whole, later = halves
        yield later
    yield whole


def _table(data: bytes) -> pa.Table:
    import io

    import pyarrow.parquet as pq

    return pq.read_table(io.BytesIO(data))
