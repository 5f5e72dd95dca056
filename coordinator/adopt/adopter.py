"""Adopts queries of plain Spark for one pipeline: looks at a checkpoint, refuses what does not fit, takes it over."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from ...state.operators.ticks import TICKS
from ...storage.checkpoints.manifest import OperatorRecord
from ...storage.checkpoints.proof import FenceProof
from ...storage.errors import ChandyError
from ...storage.ids import NO_BATCH
from ...storage.logs import logger
from ..errors import AdoptionError, IncompleteDirectoryError
from ..permit import Permit, Permits
from ..restore.adoptions import Adoptions
from ..restore.restore_point import SINK, WORKING, RestorePoint
from ..restore.run_record import same_operators
from ..sinks.file_sink_log import newest
from ..sinks.sink import Sink
from ..spark.listing import link_or_copy
from ..spark.plain_checkpoint import (
    PlainCheckpoint,
    files_to_adopt,
    read_checkpoint,
    with_new_sources,
    without_state,
)
from ..spark.progress import Files
from ..spark.session import runs_query
from ..spark.writer_facts import WriterFacts
from . import adopted_store, adopters, keyed_state
from .adopted_store import Adopted, AdoptingPipeline, AdoptionRecord
from .adopters import AdoptedBy
from .findings import AdoptableState, Adoption, Target, examine, matched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logger(__name__)


@attrs.frozen
class Successor:
    """The query that goes on where a plain one has stopped."""

    name: str
    facts: WriterFacts
    """Of its writer."""
    sink: Sink


@attrs.frozen
class Adopter:
    """Adopts queries for one life of a pipeline."""

    spark: SparkSession
    storage: str
    """The URI that pipelines are given, for the record of who has adopted what."""
    life: AdoptingPipeline
    restored: RestorePoint | None
    """The checkpoint that the life begins from. What it has is not adopted again."""
    adoptions: Adoptions
    """Where queries begin that were adopted."""
    proof: FenceProof
    """Is checked before anything is adopted."""
    folder: Callable[[], Path]
    """Returns a directory that the driver and all tasks see under one path."""
    operators: Callable[[str, Sequence[str]], tuple[OperatorRecord, ...]]
    """Returns the records of a query's operators by their uids."""
    time_mode: Callable[[str], str]
    """Returns the time mode of an operator, as PySpark names it."""
    permits: Permits
    """What may be given up: state that no operator declares."""

    def look(self, path: str, successor: Successor | None = None) -> Adoption:
        """Say what a query would take over from a checkpoint; nothing is changed.

        Args:
            path: the ``checkpointLocation`` of the plain query.
            successor: the query that is to go on; None if it is not known yet.

        Raises:
            AdoptionError: there is no checkpoint of Spark, or a part of one.
        """
        found = read_checkpoint(path)
        target = None if successor is None else self._target(path, successor)
        return self._examine(found, target, self._stored(found, target))

    def begin(self, path: str, query: str, facts: WriterFacts, sink: Sink) -> None:
        """Let a query that is about to start begin where a plain one has stopped, if this is its first start.

        Args:
            path: the ``checkpointLocation`` of the plain query.
            query, facts, sink: the query's name, the facts of its writer, and where it writes.

        Raises:
            AdoptionError: the checkpoint does not fit, is another one than was adopted before, went on since, or was
                adopted by another query of the storage.
            FencedError: another driver has taken the pipeline over.
        """
        if self.restored is not None and self.restored.has(query):
            log.info(
                "nothing is adopted: the query goes on from a checkpoint of its own",
                checkpoint=self.restored.manifest.id,
                path=path,
            )
            self._warn_if_moved(path, query)
            return
        target = self._target(path, Successor(query, facts, sink))
        adopted = self._adopt(path, query, target, facts, sink)
        self.adoptions.add(query, adopted.point)

    def _target(self, path: str, successor: Successor) -> Target:
        facts, location = successor.facts, successor.sink.location
        wanted = _to_drop(path, successor.name)
        return Target(
            query=successor.name,
            sources=tuple(source.name for source in facts.sources if source.name != TICKS),
            native_state=facts.native_state,
            operators=self.operators(successor.name, facts.operators),
            modes={uid: self.time_mode(uid) for uid in facts.operators},
            output=None if location is None else str(location),
            output_batch=NO_BATCH if location is None else newest(location),
            drops_state=self.permits.given.covers(wanted),
            to_drop=self.permits.advice(wanted),
        )

    def _adopt(self, path: str, query: str, target: Target, facts: WriterFacts, sink: Sink) -> Adopted:
        """Return what a query begins from: what it has adopted before, or now adopts."""
        known = adopted_store.find(self.life.root, query)
        if known is not None:
            _check_known(known, path, query, target.operators)
            self._record(known.source.query_id, path, query)
            log.info(
                "goes on from what it has adopted before", query=query, adopted=known.point.root, path=path
            )
            return known
        found = read_checkpoint(path)
        stored = self._stored(found, target)
        report = self._examine(found, target, stored)
        if not report.is_possible:
            raise AdoptionError(
                f"query {query!r} cannot adopt the checkpoint in {path}",
                "one that fits",
                " ".join(report.obstacles),
                "coordinator.adoption(path, writer) says so without starting anything",
            )
        if target.drops_state:
            self.permits.use(_to_drop(path, query))
        self._record(found.query_id, path, query)
        adopted = self._take(found, query, target, facts, sink, stored)
        for line in report.takes:
            log.info("adopted", query=query, what=line)
        return adopted

    def _record(self, query_id: str, path: str, query: str) -> None:
        """Record that a query adopts one of plain Spark, which nobody else of the storage may have done."""
        own = AdoptedBy(self.life.pipeline, query)
        if (by := adopters.record(self.storage, query_id, own)) != own:
            raise AdoptionError(
                f"query {query!r} cannot adopt the checkpoint in {path}",
                "one that no other query has adopted",
                f"that {by} has",
                adopters.way_out(self.storage, query_id),
            )

    def _rival(self, query_id: str, query: str) -> str:
        """Return what to say if another query has adopted this one, "" if none has. The name "" is not known yet."""
        by = adopters.find(self.storage, query_id)
        if by is None or (by.pipeline == self.life.pipeline and query in ("", by.query)):
            return ""
        return f"{by} has adopted it: {adopters.way_out(self.storage, query_id)}."

    def _warn_if_moved(self, path: str, query: str) -> None:
        """Say so if plain Spark has gone on with a query that goes on here from checkpoints of its own."""
        try:
            known, now = adopted_store.find(self.life.root, query), read_checkpoint(path)
        except ChandyError:
            # Nothing of it is needed any more.
            return
        if known is not None and now.query_id == known.source.query_id and _has_moved(known.source, now):
            log.warning(
                "plain Spark has gone on with the query after it was adopted: what it reads is processed twice",
                query=query,
                path=path,
                adopted_batch=known.source.committed,
                newest_batch=now.planned,
            )

    def _examine(
        self, found: PlainCheckpoint, target: Target | None, stored: dict[int, AdoptableState]
    ) -> Adoption:
        return examine(
            found,
            target,
            stored,
            runs_here=runs_query(self.spark, found.query_id),
            rival=self._rival(found.query_id, "" if target is None else target.query),
        )

    def _stored(self, found: PlainCheckpoint, target: Target | None) -> dict[int, AdoptableState]:
        """Read the schemas of the state that operators of Chandy would take over."""
        if target is None or not _converts(found, target):
            return {}
        return {
            operator.id: keyed_state.stored(self.spark, found, operator)
            for operator in found.keyed
            if operator.is_of_python
        }

    def _take(
        self,
        found: PlainCheckpoint,
        query: str,
        target: Target,
        facts: WriterFacts,
        sink: Sink,
        stored: dict[int, AdoptableState],
    ) -> Adopted:
        converts = _converts(found, target)
        with TemporaryDirectory(prefix="adopt-", dir=self.folder()) as temporary:
            folder = Path(temporary)
            try:
                working = files_to_adopt(found, native_state=target.native_state)
                kept = sink.files_at(found.committed)
            except IncompleteDirectoryError as error:
                raise AdoptionError(
                    f"query {query!r} cannot adopt the checkpoint in {found.directory}",
                    error.expected,
                    error.found,
                    "copy the directory again as a whole, or begin without it",
                ) from error
            files = {f"{SINK}/{name}": path for name, path in kept.items()}
            for name, path in _prepared(
                working, facts, folder / WORKING, keeps_state=target.native_state
            ).items():
                files[f"{WORKING}/{name}"] = path
            operators: tuple[OperatorRecord, ...] = ()
            shards: dict[tuple[str, int], Files] = {}
            if converts:
                pairs = matched(found, stored, target.operators)
                operators = tuple(one for one in target.operators if one.uid in pairs)
                for record in operators:
                    shards |= keyed_state.convert(
                        self.spark,
                        found,
                        pairs[record.uid],
                        record,
                        stored[pairs[record.uid].id],
                        target.modes.get(record.uid, ""),
                        folder / "shards" / record.uid,
                    )
            # The query may run elsewhere, and may have gone on while its files were read.
            again = read_checkpoint(str(found.directory))
            if (again.committed, again.planned) != (found.committed, found.planned):
                raise _moved(query, found, again)
            source = AdoptionRecord(str(found.directory), found.query_id, found.committed, found.planned)
            return adopted_store.write(
                self.life, query, source, files, operators, shards, time.time(), self.proof
            )


def _to_drop(path: str, query: str) -> Permit:
    """Return what permits a query to leave state of a checkpoint of plain Spark behind."""
    return Permit(dropped_state={query or "query": path})


def _converts(found: PlainCheckpoint, target: Target) -> bool:
    """Return whether operators of Chandy take over the state of ``transformWithState``."""
    return bool(found.keyed and target.operators) and not target.native_state and found.committed >= 0


def _prepared(files: Files, facts: WriterFacts, folder: Path, *, keeps_state: bool) -> Files:
    """Link the files, and rewrite the logs that say something else of the query that goes on."""
    added = tuple(at for at, source in enumerate(facts.sources) if source.name == TICKS)
    prepared = {}
    for name, path in files.items():
        target, log = folder / name, name.partition("/")[0]
        if not (log == "offsets" and added) and not (log == "commits" and not keeps_state):
            link_or_copy(path, target)
        elif name.endswith(".crc"):
            # Spark's checksum of what is rewritten.
            continue
        else:
            text = path.read_text()
            _write(target, with_new_sources(text, added) if log == "offsets" else without_state(text))
        prepared[name] = target
    return prepared


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _check_known(known: Adopted, path: str, query: str, operators: tuple[OperatorRecord, ...]) -> None:
    """Refuse to go on from what was adopted before, if that is not what the program says now."""
    source, place = known.source, known.point.root
    advice = f"delete {place} to adopt it again, if no checkpoint of the pipeline has the query"
    try:
        now = read_checkpoint(path)
    except AdoptionError:
        # Everything that is needed of it was taken.
        now = None
    if now is not None and now.query_id != source.query_id:
        raise AdoptionError(
            f"query {query!r} cannot adopt {path}",
            f"the checkpoint in {source.path}, which it has adopted before",
            "another one",
            advice,
        )
    if now is not None and _has_moved(source, now):
        raise AdoptionError(
            f"query {query!r} cannot go on from what it has adopted",
            f"the checkpoint in {path} as it was, with batch {source.committed} as the newest",
            f"batch {now.planned}: plain Spark has gone on with it",
            advice,
        )
    kept = tuple(one for one in operators if known.point.operator(one.uid) is not None)
    were = known.point.operators(query, kept)
    if not same_operators(
        [_bare(one) for one in were], [_bare(attrs.evolve(one, query=query)) for one in kept]
    ):
        raise AdoptionError(
            f"query {query!r} does not fit what it has adopted",
            "the same keys, states and shards until its first checkpoint",
            "others",
            advice,
        )


def _has_moved(source: AdoptionRecord, now: PlainCheckpoint) -> bool:
    """Return whether plain Spark has gone on with a query since it was adopted."""
    return (now.committed, now.planned) != (source.committed, source.planned)


def _bare(record: OperatorRecord) -> OperatorRecord:
    return attrs.evolve(record, shards=(None,) * len(record.shards))


def _moved(query: str, was: PlainCheckpoint, now: PlainCheckpoint) -> AdoptionError:
    return AdoptionError(
        f"query {query!r} cannot adopt the checkpoint in {was.directory}",
        "a query that has stopped",
        f"one that went on from batch {was.planned} to batch {now.planned} meanwhile",
        "stop it first, for good",
    )
