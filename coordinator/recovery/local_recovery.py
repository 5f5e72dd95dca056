"""Where queries stood whose processes were killed, and whether their changelogs lead there.

A driver that is killed leaves on its machine the working directories of its queries and the changelogs of their
shards: together with the checkpoint that the state grew from they are all that it takes to go on with the next
batch, as if nothing had happened. Beside each working directory lies a record that says whose it was. What does not
fit in every point is not used: going back to the checkpoint is always right.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ...state.errors import UnsafeDirectoryError
from ...state.local.changelog import admit, covers, remove, shard_folder, sweep
from ...state.local.locks import FileLock, try_acquire
from ...state.local.workspace import ALIVE
from ...state.rpc.messages import ResumePoint
from ...storage.codec import from_json, to_json
from ...storage.errors import CodecError
from ...storage.logs import logger
from ...storage.manifest import OperatorRecord
from ..sinks import file_sink_log
from ..spark.progress import newest_committed
from .query_directories import RECORD, WORKING_DIRECTORY
from .restore_point import RestorePoint, same_key

if TYPE_CHECKING:
    from ..query import Definition
    from .runs import Run

log = logger(__name__)
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@attrs.frozen
class RunRecord:
    """What a run of a query was, for the next life of its pipeline."""

    root: str
    """URI of the pipeline's own store."""
    generation: int
    round: int
    """Counts how often this generation has gone back: only runs of one round stand at one cut."""
    base: str
    """The checkpoint that the round began from, as ``base_of`` has it."""
    boot: str
    """The machine, from one of its starts to the next; empty: not known."""
    query: str
    query_id: str
    operators: tuple[OperatorRecord, ...]
    output: str | None
    """Output directory of Spark's own file sink, if it is that."""
    known: tuple[str, ...] = ()
    """The pipeline's queries so far, this one among them: what has once stood at one cut goes on together."""
    java: int = 0
    """Process id of the JVM that Spark runs in."""

    def write(self, folder: Path) -> None:
        """Write it beside the run's working directory."""
        new = folder / f".{RECORD}"
        new.write_bytes(to_json(self))
        new.rename(folder / RECORD)


@attrs.frozen
class Stood:
    """Where a query stood, and its working directory then."""

    resume_point: ResumePoint
    directory: Path


def boot_id() -> str:
    """Return what tells a machine, and each of its starts, from all others; "" if nothing does.

    Linux's ``boot_id``, see random(4). After another start, files may lack what had not reached the disk.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def base_of(point: RestorePoint | None) -> str:
    """Return what tells a checkpoint from all others, those of other pipelines too; "" for none."""
    return "" if point is None else f"{point.root}#{point.manifest.id}"


@attrs.frozen
class Left:
    """What a driver has left that was killed, on hold for this process."""

    runs: Mapping[str, tuple[RunRecord, Path]] = attrs.field(factory=dict)
    """By query the record and the working directory of its run."""
    known: frozenset[str] = frozenset()
    """All queries that were there, those too whose runs are not among these."""
    places: tuple[tuple[Path, FileLock], ...] = ()
    """The directories that all of it is in."""


def find_left(base: Path, changelogs: Path, wanted: Callable[[RunRecord], bool], root: str) -> Left:
    """Find what earlier lives of a pipeline have left on this machine, and delete what is not wanted of it.

    Args:
        base: where coordinators have their directories.
        changelogs: the folder of all changelogs.
        wanted: whether this life can go on from a run.
        root: URI of the pipeline's own store.
    """
    sweep(changelogs)
    runs: list[tuple[RunRecord, Path]] = []
    places: list[tuple[Path, FileLock]] = []
    for place in base.iterdir() if base.is_dir() else ():
        own = [one for one in _records(place) if one[0].root == root]
        lock = try_acquire(place / ALIVE) if own else None
        if lock is None:
            # Another pipeline's, or a living driver's.
            continue
        here = [one for one in own if wanted(one[0])]
        for record, _ in own:
            if record not in (one[0] for one in here):
                remove(changelogs, record.query_id)
        if here:
            runs += here
            places.append((place, lock))
        else:
            shutil.rmtree(place, ignore_errors=True)
            lock.release()
    newest = max((record.round for record, _ in runs), default=0)
    for record, _ in runs:
        if record.round != newest:
            remove(changelogs, record.query_id)
    known = frozenset(name for record, _ in runs for name in (record.query, *record.known))
    return Left({one[0].query: one for one in runs if one[0].round == newest}, known, tuple(places))


def lives(java: int) -> bool:
    """Whether a JVM may live: when its driver is killed it goes on for a moment, and may still write into a sink."""
    try:
        state = Path(f"/proc/{java}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    # One that has ended and that nobody waits for stays a zombie, see proc(5).
    return state not in "ZX"


def fits(record: RunRecord, *, generation: int, point: RestorePoint | None, boot: str) -> bool:
    """Whether a run may be gone on from, as far as its record tells.

    Args:
        record: the run.
        generation: of the coordinator that would go on from it.
        point: the latest checkpoint.
        boot: this machine, as ``boot_id`` has it.
    """
    # Any generation in between may have written into the sinks, from an earlier checkpoint.
    if record.generation != generation - 1 or not boot or record.boot != boot:
        return False
    # The run has grown from the checkpoint: that is where it began, or it has taken it.
    taken = point is not None and not point.is_savepoint and point.manifest.generation == record.generation
    return taken or record.base == base_of(point)


def stood(
    changelogs: Path,
    query_id: str,
    directory: Path,
    definition: Definition,
    output: Path | None,
    point: RestorePoint | None,
) -> Stood | None:
    """Return where a query stood, if the changelogs of all its shards lead there from a checkpoint.

    Args:
        changelogs: the folder of all changelogs.
        query_id: Spark's id of its run.
        directory: the run's working directory; Spark is not running in it.
        definition: the query.
        output: output directory of Spark's own file sink, if it is that.
        point: the checkpoint that its state grew from; None: there was none.
    """
    after, batch = point.batch(definition.name) if point else -1, newest_committed(directory)
    if batch < after or (output is not None and file_sink_log.newest(output) > batch):
        # A batch that the sink has and that has not committed would run again, but without its tasks: Spark sees it in
        # the sink's log. No shard would learn of it.
        return None
    shards = [(one.uid, number) for one in definition.operators for number in range(len(one.shards))]
    if not all(covers(shard_folder(changelogs, query_id, *one), after, batch) for one in shards):
        return None
    return Stood(ResumePoint(query_id, after, batch), directory)


class LocalRecovery:
    """What a pipeline can go on from where it stood: after its driver was killed, or one of its state hosts.

    Either all of its queries do, or none: else they would not stand at one cut.
    """

    def __init__(
        self,
        *,
        root: str,
        generation: int,
        changelogs: Path,
        kept: bool,
        boot: str,
        left: Left,
        java: int = 0,
    ) -> None:
        """Make it for one life of a pipeline.

        Args:
            root: URI of the pipeline's own store.
            generation: the life.
            changelogs: the folder of all changelogs.
            kept: whether this life keeps changelogs.
            boot: this machine, as ``boot_id`` has it.
            left: what the life before has left.
            java: process id of the JVM that Spark runs in.
        """
        self._java = java
        self._root = root
        self._generation = generation
        self._changelogs = changelogs
        self._kept = kept
        self._boot = boot
        self._left = left
        self._waiting = dict(left.runs)
        self._known = set(left.known)

    @classmethod
    def of(
        cls,
        base: Path,
        changelogs: Path,
        *,
        root: str,
        generation: int,
        point: RestorePoint | None,
        kept: bool,
        goes_on: bool,
        java: int,
    ) -> LocalRecovery:
        """Look for what the life before has left, and delete it if this one may not go on from it.

        Args:
            base: where coordinators have their directories.
            changelogs, root, generation, kept: as for the constructor.
            point: the checkpoint that this life restores.
            goes_on: whether it may go on behind it.
            java: as for the constructor.
        """
        boot = boot_id()

        def wanted(record: RunRecord) -> bool:
            gone = record.java == java or not lives(record.java)
            return kept and goes_on and gone and fits(record, generation=generation, point=point, boot=boot)

        left = find_left(base, changelogs, wanted, root)
        return cls(
            root=root,
            generation=generation,
            changelogs=changelogs,
            kept=kept,
            boot=boot,
            left=left,
            java=java,
        )

    def holds_back(self, query: str, point: RestorePoint | None) -> bool:
        """Whether a query that cannot go on where it stood keeps the others from it: it stood at the same cut."""
        return bool(self._waiting) and (query in self._known or (point is not None and point.has(query)))

    def left(self, definition: Definition, output: Path | None, point: RestorePoint | None) -> Stood | None:
        """Return where a query stood when the driver was killed; None if it cannot go on from there."""
        record, directory = self._waiting.get(definition.name, (None, None))
        if record is None or directory is None:
            return None
        if not _same(record.operators, definition.operators) or record.output != _text(output):
            log.info("query is not what it was", query=definition.name)
            return None
        return stood(self._changelogs, record.query_id, directory, definition, output, point)

    def give_up(self) -> None:
        """Go on from nothing that was left: the queries that are still to come begin at the checkpoint."""
        self._waiting.clear()

    def stood(self, runs: Iterable[Run], point: RestorePoint | None) -> dict[str, Stood]:
        """Return where all queries stood whose state host was killed; none if one cannot go on from there."""
        found: dict[str, Stood] = {}
        for run in runs if self._kept else ():
            where = stood(self._changelogs, run.query_id, run.directory, run.definition, run.output, point)
            # One that goes on from where it stood and fails before it has got any further would do so again.
            if where is None or (run.stood and run.stood.resume_point.batch == where.resume_point.batch):
                return {}
            found[run.definition.name] = where
        return found

    def note(self, run: Run, round: int, point: RestorePoint | None) -> None:
        """Take down a run that is about to begin, for the next life, and let its shards have changelogs."""
        if not self._kept:
            return
        self._known.add(run.definition.name)
        try:
            admit(self._changelogs, run.query_id, run.directory.parent)
            RunRecord(
                root=self._root,
                generation=self._generation,
                round=round,
                base=base_of(point),
                boot=self._boot,
                query=run.definition.name,
                query_id=run.query_id,
                operators=run.definition.operators,
                output=_text(run.output),
                known=tuple(sorted(self._known)),
                java=self._java,
            ).write(run.directory.parent)
        except (OSError, UnsafeDirectoryError) as error:
            log.warning("nothing is kept to go on from", query=run.definition.name, error=str(error))

    def unnote(self, runs: Iterable[Run]) -> None:
        """Let nobody go on from runs any more: what their sinks hold is about to be put back."""
        for run in runs:
            (run.directory.parent / RECORD).unlink(missing_ok=True)

    def over(self, query_ids: Iterable[str]) -> None:
        """Delete the changelogs of runs that nobody goes on from any more."""
        for query_id in query_ids:
            remove(self._changelogs, query_id)

    def close(self) -> None:
        """Delete what the life before has left."""
        self.over(record.query_id for record, _ in self._left.runs.values())
        for place, lock in self._left.places:
            shutil.rmtree(place, ignore_errors=True)
            lock.release()


def _records(place: Path) -> list[tuple[RunRecord, Path]]:
    found = []
    for path in place.glob(f"*/{RECORD}"):
        try:
            found.append((from_json(RunRecord, path.read_bytes()), path.parent / WORKING_DIRECTORY))
        except (OSError, CodecError) as error:
            log.warning("record of a run not read", path=str(path), error=str(error))
    return found


def _same(were: Sequence[OperatorRecord], operators: Sequence[OperatorRecord]) -> bool:
    """Whether operators have the same keys, states and shards as before."""
    return len(were) == len(operators) and all(
        attrs.evolve(was, key_schema=one.key_schema) == one and same_key(was.key_schema, one.key_schema)
        for was, one in zip(were, operators, strict=True)
    )


def _text(output: Path | None) -> str | None:
    return None if output is None else str(output)
