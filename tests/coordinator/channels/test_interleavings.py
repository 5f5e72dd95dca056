"""Two queries that read what a third one writes, whatever happens: batches, cuts, publishes, crashes and restores.

The protocol (``CheckpointStateMachine``), the commit of a manifest, the steps back, the sinks (``TransactionalSink``
with ``FilesSink``, and Spark's own file sink as Chandy puts it back), the files of a query that a checkpoint keeps and
the working directories that are made from them, and all that looks at channels are the real ones, on a real disk.
Around them is a small model that takes one step when it is told to: Spark's batches, its file source and its file sink,
with their logs as Spark writes them, and the threads of the driver.

A row is a record of the writer's input and the attempt that wrote it. So three things can be told of a reader: it has
no row twice, it has no row of an attempt that was taken back, and in the end it has all. And of each checkpoint: what
its manifest says of a channel is what the writer has at its cut, without what the reader has at its own.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, MutableSequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from chandy.coordinator.channels import observer, state
from chandy.coordinator.channels.observer import Channels
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.protocol import events as on
from chandy.coordinator.protocol.pending import CheckpointPhase
from chandy.coordinator.protocol.query_state import Queries
from chandy.coordinator.query import Definition
from chandy.coordinator.recovery import rollback
from chandy.coordinator.recovery.runs import Run, Runs
from chandy.coordinator.restore.restore_point import RestorePoint, base_point, choose, restore_query
from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import Sink, StartPoint
from chandy.coordinator.sinks.two_phase import query_sink, staging
from chandy.coordinator.sinks.two_phase.contract import Fence, Staged, TwoPhaseSink, WriteContext
from chandy.coordinator.sinks.two_phase.errors import OutputAheadError, OutputLostError
from chandy.coordinator.sinks.two_phase.query_sink import TransactionalSink
from chandy.coordinator.spark import progress
from chandy.coordinator.spark.seeding import seed
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import ChannelRecord, CheckpointKind, Manifest, OutputRecord
from chandy.storage.checkpoints.proof import Unshared
from chandy.storage.errors import ChandyError
from chandy.storage.store import Store

from ...effort import always_kept, sampled, until_found
from ..limits import limits_of
from ..sinks.two_phase.stepped_publisher import SteppedPublisher
from ..stepped_executor import SteppedExecutor, SteppedRollback, Work
from ..strict_machine import StrictStateMachine
from .listed_files import entries, lines, listed, local

STEPS = 30
WRITER, READERS = "writer", ("reader", "slow")
"""The queries, in the order in which they are started. The second reader is often behind."""
LIMITS = limits_of(
    interval=None,
    # A user may go back to any of them.
    retained=100,
    max_concurrent=2,
    tolerable_failures=10**6,
    timeout="30 s",
    savepoint_timeout="60 s",
    max_queued=20,
    max_unpublished=3,
)
COMPACTED = 3
"""Every how many entries Spark compacts its logs here, so that the model comes to it. Chandy's own log has its own."""
Row = tuple[int, int]

_unique = itertools.count(1)


# --- logs as Spark writes and reads them --------------------------------------------------------------------


def append(log: Path, number: int, added: list[dict[str, Any]]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    compacts = (number + 1) % COMPACTED == 0
    all_of_them = [*(lines(log) if compacts else []), *added]
    new = log / f".{number}"
    new.write_text("\n".join(["v1", *(json.dumps(one, separators=(",", ":")) for one in all_of_them)]))
    new.rename(log / f"{number}{'.compact' if compacts else ''}")


@functools.cache
def rows_of(path: Path) -> list[Row]:
    columns = pq.read_table(path).to_pydict()
    return list(zip(columns["record"], columns["attempt"], strict=True))


def table(rows: list[Row]) -> pa.Table:
    columns = {"record": [record for record, _ in rows], "attempt": [attempt for _, attempt in rows]}
    return pa.table(columns, pa.schema([("record", pa.int64()), ("attempt", pa.int64())]))


def write_log(directory: Path, log: str, batch: int, line: str = "{}") -> None:
    (directory / log).mkdir(parents=True, exist_ok=True)
    new = directory / log / f".{batch}"
    new.write_text(f"v1\n{{}}\n{line}")
    new.rename(directory / log / str(batch))


def offset(directory: Path, batch: int) -> Any:
    return (
        json.loads((directory / "offsets" / str(batch)).read_text().splitlines()[2]) if batch >= 0 else None
    )


# --- the queries under Spark --------------------------------------------------------------------------------


@attrs.define
class Query:
    """A query in its working directory. All that it knows is there, so that it can start again at any moment."""

    run: Run
    output: Path

    @property
    def directory(self) -> Path:
        return self.run.directory

    @property
    def planned(self) -> int:
        return progress.newest_planned(self.directory)

    @property
    def is_between_batches(self) -> bool:
        return self.planned < 0 or progress.is_committed(self.directory, self.planned)

    def commit(self, batch: int) -> None:
        write_log(self.directory, "commits", batch, '{"nextBatchWatermarkMs":0}')


@attrs.define
class Writer(Query):
    """Writes the records 0, 1, 2, ..."""

    world: World

    def batch(self, size: int, stage: str = "") -> None:
        """Run a batch, or run the one again that has not committed. ``stage`` says where it ends early."""
        batch = self.planned
        if self.is_between_batches:
            end = (offset(self.directory, batch) or 0) + size
            batch += 1
            write_log(self.directory, "offsets", batch, str(end))
        if stage == "planned":
            return
        begin, end = offset(self.directory, batch - 1) or 0, offset(self.directory, batch)
        attempt = next(_unique)
        rows = [(record, attempt) for record in range(begin, end)]
        sink = self.run.definition.sink
        if isinstance(sink, TransactionalSink):
            if sink.is_full:
                return
            sink.take(rows, batch)  # type: ignore[arg-type]
        elif batch not in entries(self.output / "_spark_metadata"):
            # Spark's file sink passes over a batch that it has.
            self.add_files(batch, rows)
        else:
            rows = self.world.attempts[self.run.query_id, batch]
        self.world.attempts[self.run.query_id, batch] = rows
        if stage != "written":
            self.commit(batch)

    def add_files(self, batch: int, rows: list[Row]) -> None:
        added = []
        for some in (rows[::2], rows[1::2]):
            if some:
                path = self.output / f"part-{next(_unique)}.parquet"
                pq.write_table(table(some), path)
                added.append(
                    {"path": path.as_uri(), "size": path.stat().st_size, "isDir": False, "action": "add"}
                )
        append(self.output / "_spark_metadata", batch, added)


@attrs.define
class Reader(Query):
    """Reads the files that the log of a directory names, oldest first."""

    def batch(self, most: int, stage: str = "") -> None:
        batch = self.planned
        if self.is_between_batches:
            log = self.directory / "sources" / "0"
            seen = {local(one["path"]) for one in lines(log)}
            new = [uri for uri in listed(self.output) if local(uri) not in seen][:most]
            if new:
                number = max(entries(log), default=-1) + 1
                append(log, number, [{"path": uri, "timestamp": 1, "batchId": number} for uri in new])
            if stage == "source":
                return
            end = max(entries(log), default=-1)
            before = offset(self.directory, batch)
            if end < 0 or (before is not None and before["logOffset"] == end):
                return
            batch += 1
            write_log(self.directory, "offsets", batch, json.dumps({"logOffset": end}, separators=(",", ":")))
        if not stage:
            self.commit(batch)

    @property
    def rows(self) -> list[Row]:
        """All that it has read, batch by batch."""
        return rows_read(self.directory, self.planned)


def rows_read(directory: Path, batch: int) -> list[Row]:
    if batch < 0:
        return []
    end = offset(directory, batch)["logOffset"]
    by_path = {
        one["path"]: None
        for number, path in sorted(entries(directory / "sources" / "0").items())
        for line in path.read_text().splitlines()[1:]
        if (one := json.loads(line))["batchId"] <= end
    }
    return [row for uri in by_path for row in rows_of(local(uri))]


# --- the driver ---------------------------------------------------------------------------------------------


@attrs.frozen
class NoSink(Sink):
    @property
    def guarantee(self) -> Any:
        raise NotImplementedError


def facts(*sources: SourceFacts) -> WriterFacts:
    return WriterFacts(SinkFacts("noop"), "append", Trigger.PROCESSING_TIME, sources=sources)


class NotedRuns(Runs):
    """Looks at each manifest before it is written."""

    def __init__(self, life: Life, channels: Channels) -> None:
        super().__init__(channels)
        self._life = life

    def pre_commit(self, query: str, checkpoint: int) -> tuple[OutputRecord, ...]:
        outputs = super().pre_commit(query, checkpoint)
        if self._life.world.publishes_meanwhile and query == WRITER:
            self._life.publish()
        return outputs

    def channels(self, manifest: Manifest) -> tuple[ChannelRecord, ...]:
        found = super().channels(manifest)
        root = self._life.machine.checkpoints.pending[manifest.id].root
        try:
            self._life.world.note(self._life, attrs.evolve(manifest, channels=found), root)
        except AssertionError as error:
            # The product does without what it is not told.
            self._life.world.broken.append(error)
        return found


class Life(SteppedExecutor):
    """One life of a coordinator."""

    def __init__(self, world: World, restore: str | int) -> None:
        self.world = world
        catalog, root = Catalog(world.store), world.store.uri
        point = choose(catalog, restore)
        started = catalog.take_over("driver", world.tick(), point.manifest.id + 1 if point else 1)
        is_chosen = restore not in ("latest", "none")
        chosen = attrs.evolve(started, restored=str(restore))
        self.keep_chosen = partial(catalog.amend, chosen) if is_chosen else lambda: None
        self.initial = self.point = point
        observed = Channels(world.tick)
        self.runs = NotedRuns(self, observed)
        machine = StrictStateMachine(
            pipeline="pipeline",
            generation=started.generation,
            root=root,
            limits=LIMITS,
            next_id=started.next_id,
            completed=tuple(catalog.completed()),
            base=point.manifest.id if point and point.root == root else None,
        )
        super().__init__(machine, catalog, self.runs)
        # Which of two jobs is first is said by their lanes alone.
        self.manifests = self.works
        self.queries: dict[str, Query] = {}
        self.first_epoch = started.next_id
        self.fence = Fence("pipeline", WRITER, "", self.root, started.generation)
        self.sink = self.make_sink()
        read = facts(SourceFacts("parquet", True, None, {"path": str(world.output)}))
        self.definitions = {
            WRITER: Definition(WRITER, None, None, facts(), self.sink, (), ()),  # type: ignore[arg-type]
            **{name: Definition(name, None, None, read, NoSink(), (), ()) for name in READERS},  # type: ignore[arg-type]
        }
        for name, definition in self.definitions.items():
            observed.add(definition)
            self.restore(name, point)
        self.handle(on.PipelineRestored(point.manifest.id if point else None))

    def make_sink(self) -> Sink:
        if not self.world.is_transactional:
            return FileSink(self.world.output, "parquet", COMPACTED)
        return TransactionalSink(
            [FilesSink(str(self.world.output))],
            self.fence,
            Unshared(),
            max_unpublished=LIMITS.max_unpublished,
            first_epoch=self.first_epoch,
            on_published=lambda checkpoint: self.handle(on.Published(checkpoint, WRITER)),
            on_failure=self.fail,
        )

    @staticmethod
    def fail(error: ChandyError) -> None:
        raise AssertionError(f"the pipeline has failed: {error}")

    @property
    def writer(self) -> Writer:
        found = self.queries[WRITER]
        assert isinstance(found, Writer)
        return found

    @property
    def base(self) -> str | int | None:
        """The checkpoint or savepoint that it stands on, as a user names it."""
        point = base_point(self.machine) or self.initial
        return point and (point.manifest.id if point.root == self.root else point.root)

    def reader(self, number: int) -> Reader:
        found = self.queries[READERS[number]]
        assert isinstance(found, Reader)
        return found

    def restore(self, name: str, point: RestorePoint | None) -> None:
        """As ``Launcher.restore``."""
        definition = self.definitions[name]
        directory = self.world.folder / "runs" / str(next(_unique)) / "working"
        directory.parent.mkdir(parents=True)
        has = point is not None and point.has(name)
        if point is not None and has:
            restored = restore_query(
                point, name, directory, None, threading.Event(), compact_interval=COMPACTED
            )
            query_id, files = restored.query_id, restored.sink_log
        else:
            query_id, files = seed(directory / "nothing", directory, compact_interval=COMPACTED), None
        batch = point.batch(name) if point else -1
        beginning = StartPoint(
            SinkOwner(self.root, "pipeline"),
            Unshared(),
            files,
            may_begin_anew=True,
            directory=directory,
            checkpoint=point.manifest.id if point else None,
            batch=batch,
            root=point.root if point else "",
            outputs=point.outputs(name) if point else (),
            keep_chosen=self.keep_chosen,
        )
        definition.sink.begin(name, beginning)
        self.keep_chosen()
        run = Run(next(_unique), definition, directory, query_id)
        self.runs.put(run)
        output = self.world.output
        self.queries[name] = Writer(run, output, self.world) if name == WRITER else Reader(run, output)
        if name == WRITER and point is not None and has:
            before = self.world.contents[point.root, point.manifest.id]
            self.world.attempts.update({(query_id, number): rows for number, rows in before.items()})
        self.handle(on.QueryAdded(name, query_id, batch=batch, operators=(), sources={}))

    # --- events and instructions

    def tick(self) -> float:
        return self.world.tick()

    def open(self, uri: str) -> Store:
        return open_store(uri)

    def work(self, works: MutableSequence[Work], number: int) -> None:
        super().work(works, number)
        if self.world.broken:
            raise self.world.broken[0]

    def publish(self) -> None:
        if isinstance(self.sink, TransactionalSink):
            for one in self.sink._publishers.values():
                assert isinstance(one, SteppedPublisher)
                one.step()

    def quiet(self, *, publishes: bool = True) -> None:
        while True:
            self.notice_commits()
            if self.instructions:
                self.dispatch()
            elif self.works:
                self.work(self.works, 0)
            else:
                break
        before = self.instructions
        if publishes:
            self.publish()
            if self.instructions > before:
                self.quiet()


@attrs.define
class Steps(SteppedRollback):
    """The steps back of one life."""

    life: Life

    def settle_manifests(self) -> None:
        self.life.quiet(publishes=False)

    def choose_restore_point(self) -> RestorePoint | None:
        self.life.point = base_point(self.life.machine) or self.life.initial
        return self.life.point

    def queries(self) -> tuple[str, ...]:
        return (WRITER, *READERS)

    def restore(self, query: str, point: RestorePoint | None, resumed: Any) -> None:
        self.life.restore(query, point)


# --- the world ----------------------------------------------------------------------------------------------


class World:
    """A disk, and the one life of the coordinator that is alive."""

    parent: ClassVar[Path]

    def __init__(self, *, is_transactional: bool) -> None:
        self.is_transactional = is_transactional
        self.folder = Path(tempfile.mkdtemp(dir=self.parent))
        self.store = LocalStore(self.folder / "store")
        self.output = self.folder / "out"
        self.output.mkdir()
        self.now = 1000.0
        self.attempts: dict[tuple[str, int], list[Row]] = {}
        """What the last attempt at each batch of a run of the writer has written."""
        self.contents: dict[tuple[str, int], dict[int, list[Row]]] = {}
        """By checkpoint what it has of the writer's output, by batch."""
        self.publishes_meanwhile = False
        """Whether output is published after a pre-commit has said that it is not."""
        self.broken: list[AssertionError] = []
        self.life = Life(self, "none")

    def tick(self) -> float:
        self.now += 0.001
        return self.now

    @property
    def points(self) -> list[str | int]:
        ids: list[str | int] = list(self.store_ids())
        saved = self.folder / "savepoints"
        places = sorted(saved.iterdir()) if saved.is_dir() else ()
        return [*ids, *(place.as_uri() for place in places if (place / "manifest.json").exists())]

    def store_ids(self) -> list[int]:
        return [manifest.id for manifest in Catalog(self.store).completed()]

    def begin(self, restore: str | int) -> bool:
        """Kill the driver and start it again; return whether that was possible.

        What the checkpoint has and readers have seen stays as it is.
        """
        seen = {uri: rows_of(local(uri)) for uri in listed(self.output)}
        try:
            self.life = Life(self, restore)
        except (OutputAheadError, OutputLostError) as error:
            # What was published comes after it, or was taken back for an older one: nothing has been started.
            assert self.is_transactional
            assert restore != "latest", error
            return False
        if point := self.life.point:
            has = {row for rows in self.contents[point.root, point.manifest.id].values() for row in rows}
            gone = [uri for uri in seen.keys() - listed(self.output) if has & set(seen[uri])]
            assert not gone or not self.is_transactional, (
                f"what checkpoint {restore} has was taken back: {gone}"
            )
        return True

    def note(self, life: Life, manifest: Manifest, root: str) -> None:
        """Look at a checkpoint that is about to complete: the writer's output at its cut, and the readers' input."""
        cuts = {query.name: query.batch for query in manifest.queries}
        query_id = life.writer.run.query_id
        content = {
            batch: rows
            for (one, batch), rows in self.attempts.items()
            if one == query_id and batch <= cuts[WRITER]
        }
        self.contents[root, manifest.id] = content
        written = Counter(row for rows in content.values() for row in rows)
        for number, name in enumerate(READERS):
            has_read = Counter(rows_read(life.reader(number).directory, cuts[name]))
            ahead = has_read - written
            assert not ahead, f"{name} has read what the writer does not have at its cut: {ahead}"
            (channel,) = [one for one in manifest.channels if one.reader == name]
            left = (written - has_read).total()
            assert channel.files is not None, "nobody knows what is in the channel"
            if channel.files.rows is not None:
                told = channel.rows_to_publish + channel.files.rows
                assert told == left, (
                    f"{left} rows are between the cuts of {WRITER} and {name}, not {told}: {channel}"
                )
            # Spark does not write down how many rows a file has.
            assert (channel.files.rows is not None) == (self.is_transactional or not channel.files.files)
            assert bool(channel.files.files or channel.rows_to_publish) == bool(left)

    def check(self) -> None:
        """Readers have no row twice, and none that the newest life of the writer does not have."""
        query_id = self.life.writer.run.query_id
        current = {row for (one, _), rows in self.attempts.items() if one == query_id for row in rows}
        for number, name in enumerate(READERS):
            rows = Counter(self.life.reader(number).rows)
            assert set(rows.values()) <= {1}, f"{name} has rows twice"
            assert set(rows) <= current, f"{name} has rows that were taken back: {set(rows) - current}"


def write_batch(
    rows: Any, sink: TwoPhaseSink, store: str, folder: str, batch: int, attempt: object
) -> tuple[Staged, ...]:
    """As ``staging.write_batch``, with two partitions and without Spark."""
    found = [
        sink.write(iter(table(half).to_batches()), WriteContext(store, folder, batch, number))
        for number, half in enumerate((rows[::2], rows[1::2]))
    ]
    return tuple(one for one in found if one.rows)


# --- the machine --------------------------------------------------------------------------------------------

SMALL = st.integers(0, 7)


class Machine(RuleBasedStateMachine):
    """Whatever can happen, in any order."""

    is_transactional: ClassVar[bool] = True

    @initialize()
    def start(self) -> None:
        self.world = World(is_transactional=self.is_transactional)

    @property
    def life(self) -> Life:
        return self.world.life

    @rule(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def the_writer_runs_batches(self, sizes: list[int]) -> None:
        for size in sizes:
            self.life.writer.batch(size)

    @rule(size=st.integers(1, 3), stage=st.sampled_from(["planned", "written"]))
    def a_batch_of_the_writer_ends_early(self, size: int, stage: str) -> None:
        self.life.writer.batch(size, stage)

    @rule(number=st.integers(0, 1), most=st.integers(1, 4))
    def a_reader_runs_a_batch(self, number: int, most: int) -> None:
        self.life.reader(number).batch(most)
        self.world.check()

    @rule(number=st.integers(0, 1), stage=st.sampled_from(["source", "planned"]))
    def a_batch_of_a_reader_ends_early(self, number: int, stage: str) -> None:
        self.life.reader(number).batch(2, stage)

    @rule(size=st.integers(0, 3), publishes=st.booleans())
    def a_checkpoint_is_taken(self, size: int, publishes: bool) -> None:
        self.life.writer.batch(size)
        self.finish_batches()
        self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        self.life.quiet(publishes=publishes)

    @rule(elsewhere=SMALL)
    def a_checkpoint_is_asked_for(self, elsewhere: int) -> None:
        if elsewhere == 0:
            place = (self.world.folder / "savepoints" / str(next(_unique))).as_uri()
            self.life.handle(on.CheckpointRequested(CheckpointKind.SAVEPOINT, place))
        else:
            self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))

    @rule(steps=st.integers(1, 6), which=SMALL)
    def the_driver_works(self, steps: int, which: int) -> None:
        for _ in range(steps):
            self.step(which)

    def step(self, which: int) -> None:
        self.life.notice_commits()
        if self.life.instructions:
            self.life.dispatch()
        elif self.life.works:
            self.life.work(self.life.works, which)

    @rule(
        steps=st.integers(3, 14),
        sizes=st.lists(st.integers(0, 2), min_size=1, max_size=3),
        number=st.integers(0, 1),
        published_at=st.integers(0, 14),
        which=SMALL,
    )
    def queries_run_while_a_checkpoint_is_taken(
        self, steps: int, sizes: list[int], number: int, published_at: int, which: int
    ) -> None:
        self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        for at, size in zip(range(steps), itertools.cycle(sizes), strict=False):
            if at == published_at:
                self.life.publish()
            self.step(which)
            self.life.writer.batch(size)
            self.life.reader(number).batch(2)
        self.world.check()

    @rule()
    def output_is_published(self) -> None:
        self.life.publish()

    @rule(size=st.integers(1, 2))
    def output_is_published_while_a_checkpoint_is_taken(self, size: int) -> None:
        self.a_checkpoint_is_taken(size, publishes=False)
        self.world.publishes_meanwhile = True
        self.a_checkpoint_is_taken(size, publishes=False)
        self.world.publishes_meanwhile = False

    @rule(chance=SMALL)
    def the_pipeline_goes_back(self, chance: int) -> None:
        if chance < 3:
            rollback.go_back(Steps(self.life), resume=False)
            self.world.check()

    @rule(chance=SMALL)
    def the_driver_is_killed(self, chance: int) -> None:
        if chance < 4:
            self.begin("latest")

    @rule(steps=st.integers(1, 16), publishes=st.booleans(), chance=SMALL)
    def the_driver_is_killed_while_a_checkpoint_is_taken(
        self, steps: int, publishes: bool, chance: int
    ) -> None:
        if chance > 3:
            return
        self.life.writer.batch(1)
        self.finish_batches()
        self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        for _ in range(steps):
            self.step(0)
        if publishes:
            self.life.publish()
            self.life.reader(0).batch(2)
        self.begin("latest")

    @rule(which=SMALL, then=st.sampled_from(["runs", "dies", "returns"]), chance=SMALL)
    def an_older_checkpoint_is_restored(self, which: int, then: str, chance: int) -> None:
        """The driver may die before it has a checkpoint of its own, and a user may come back to where it stood."""
        points = self.world.points
        if points and chance < 4:
            before, stood = set(listed(self.world.output)), self.life.base
            self.begin(points[-1 - which % len(points)])
            if then == "dies":
                self.begin("latest")
            elif then == "returns" and stood is not None and before >= set(listed(self.world.output)):
                assert self.world.begin(stood), f"nothing was published since, and {stood} is refused"
                assert before <= set(listed(self.world.output)) or not self.world.is_transactional
                self.world.check()

    def begin(self, restore: str | int) -> None:
        if not self.world.begin(restore):
            # Whatever was chosen and refused, the pipeline goes on where it stands.
            assert self.world.begin("latest")
        self.world.check()

    def finish_batches(self) -> None:
        for query in self.life.queries.values():
            if not query.is_between_batches:
                query.batch(1)  # type: ignore[attr-defined]

    def teardown(self) -> None:
        """Whatever has happened, the next checkpoints complete, and then the readers have each row once."""
        if not hasattr(self, "world"):
            return
        self.life.quiet()
        self.finish_batches()
        self.life.quiet()
        self.life.writer.batch(2)
        self.finish_batches()
        for _ in range(2):
            request = self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
            self.life.quiet()
            outcome = self.life.outcomes[request]
            assert isinstance(outcome, Manifest), outcome
            for number in (0, 1):
                self.life.reader(number).batch(1000)
                self.finish_batches()
                self.life.reader(number).batch(1000)
        self.world.check()
        writer = self.life.writer
        for number, name in enumerate(READERS):
            records = sorted(record for record, _ in self.life.reader(number).rows)
            assert records == list(range(offset(writer.directory, writer.planned))), f"{name} lacks rows"
        request = self.life.handle(on.CheckpointRequested(CheckpointKind.MANUAL))
        self.life.quiet()
        outcome = self.life.outcomes[request]
        assert isinstance(outcome, Manifest), outcome
        for channel in outcome.channels:
            assert channel.files is not None
            assert (channel.rows_to_publish, channel.files.files) == (0, 0), "the channel is not empty"
        shutil.rmtree(self.world.folder)


class WithSparksSink(Machine):
    """The same with Spark's own file sink, whose rows are visible as soon as their batch commits."""

    is_transactional = False


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    monkeypatch.setattr(query_sink, "Publisher", SteppedPublisher)
    monkeypatch.setattr(staging, "write_batch", write_batch)
    # There are very many small files.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        monkeypatch.setattr(World, "parent", Path(folder), raising=False)
        monkeypatch.setenv("CHANDY_RUNTIME_DIR", folder)
        yield


@pytest.mark.parametrize("machine", [Machine, WithSparksSink], ids=["transactional", "spark's own"])
def test_readers_get_each_row_once_and_channels_have_what_is_between(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=always_kept(4, STEPS))


def test_a_reader_has_rows_once_when_a_driver_dies_that_had_gone_back_to_an_older_checkpoint() -> None:
    machine = Machine()
    machine.start()
    machine.output_is_published_while_a_checkpoint_is_taken(1)
    machine.a_checkpoint_is_taken(0, publishes=False)
    machine.a_reader_runs_a_batch(0, 1)
    machine.a_checkpoint_is_taken(0, publishes=True)
    machine.begin(1)
    machine.begin("latest")
    machine.a_checkpoint_is_taken(0, publishes=False)
    machine.teardown()


# --- does it find anything? ---------------------------------------------------------------------------------

Bug = Callable[[pytest.MonkeyPatch], None]
FOUND = (AssertionError, ChandyError, OSError, KeyError)
"""What shows a bug: the files may not be what the product expects, before any promise is looked at."""


def cut_upstream_first(patch: pytest.MonkeyPatch) -> None:
    right = Queries.downstream_first
    patch.setattr(Queries, "downstream_first", lambda queries: right(queries)[::-1])


def leave_the_log_of_the_sink_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(file_sink_log, "restore", lambda output, files, proof: file_sink_log.Rollback())


def keep_what_the_source_has_read_since(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint keeps the log of a source as it is, not as of the cut."""
    right = progress._source_ends
    patch.setattr(
        progress, "_source_ends", lambda directory, batch: dict.fromkeys(right(directory, batch), 10**9)
    )
    patch.setattr(progress, "missing_entry", lambda names, batch: None)


def count_what_is_visible_twice(patch: pytest.MonkeyPatch) -> None:
    """The driver may not know yet what readers see already."""
    patch.setattr(state, "_visible", lambda output, written: output.published if output else None)


def count_what_later_checkpoints_have_published(patch: pytest.MonkeyPatch) -> None:
    right = state.unread
    patch.setattr(state, "unread", lambda published, read, checkpoint: right(published, read, 10**9))


def forget_what_compact_entries_repeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        observer,
        "_since_latest_compact",
        lambda found: {name: path for name, path in found.items() if not name.endswith(".compact")},
    )


def remember_the_cut_before(patch: pytest.MonkeyPatch) -> None:
    """What was seen at one cut counts for another."""

    def at(channels: Channels, manifest: Manifest) -> Any:
        older = {name: next(iter(by_cut.values())) for name, by_cut in channels._read.items() if by_cut}
        written = {
            (name, sink): one
            for name, by_cut in channels._written.items()
            for sink, one in next(iter(reversed(by_cut.values()))).items()
        }
        return state.records(channels._links, manifest, written, older)

    patch.setattr(Channels, "at", at)


@pytest.mark.parametrize(
    ("machine", "bug"),
    sampled(
        [
            (WithSparksSink, leave_the_log_of_the_sink_as_it_is),
            (WithSparksSink, forget_what_compact_entries_repeat),
            (Machine, count_what_is_visible_twice),
            (Machine, remember_the_cut_before),
        ],
        2,
    ),
    ids=lambda one: one.__name__,
)
def test_the_machine_finds(machine: type[Machine], bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(FOUND):
        run_state_machine_as_test(machine, settings=until_found(STEPS))


# --- bugs that random schedules show late: each has a schedule of its own ------------------------------------


def what_comes_after_the_first_cut_is_read_before_the_next(machine: Machine) -> None:
    machine.the_writer_runs_batches([1])
    machine.a_checkpoint_is_asked_for(NEXT)
    while not any(pending.parts for pending in machine.life.machine.checkpoints.pending.values()):
        machine.step(0)
    machine.the_writer_runs_batches([2])
    for number in range(len(READERS)):
        machine.a_reader_runs_a_batch(number, 4)
    machine.life.quiet()


def a_reader_goes_on_behind_its_cut_and_the_driver_is_killed(machine: Machine) -> None:
    machine.a_checkpoint_is_taken(2, publishes=True)
    machine.a_checkpoint_is_taken(2, publishes=True)
    machine.a_reader_runs_a_batch(0, 1)
    machine.a_checkpoint_is_asked_for(NEXT)
    until_all_cuts_are_chosen(machine)
    # What the writer has added is taken back with it.
    machine.the_writer_runs_batches([2])
    machine.a_reader_runs_a_batch(0, 7)
    machine.life.quiet()
    machine.the_driver_is_killed(0)


def a_checkpoint_is_published_while_a_savepoint_is_taken(machine: Machine) -> None:
    machine.a_checkpoint_is_taken(2, publishes=True)
    machine.a_checkpoint_is_asked_for(SAVEPOINT)
    until_all_cuts_are_chosen(machine)
    while machine.life.instructions:
        machine.life.dispatch()
    later = list(machine.life.works)
    machine.life.works.clear()
    machine.a_checkpoint_is_taken(2, publishes=True)
    machine.life.works += later
    machine.life.quiet()


def until_all_cuts_are_chosen(machine: Machine) -> None:
    while not any(
        pending.phase is CheckpointPhase.COLLECTING
        for pending in machine.life.machine.checkpoints.pending.values()
    ):
        machine.step(0)


SAVEPOINT = 0
"""Has a savepoint be asked for."""
NEXT = 7
"""Has a checkpoint be asked for, not a savepoint."""
RARE: list[tuple[type[Machine], Bug, Callable[[Machine], None]]] = [
    (WithSparksSink, cut_upstream_first, what_comes_after_the_first_cut_is_read_before_the_next),
    (
        WithSparksSink,
        keep_what_the_source_has_read_since,
        a_reader_goes_on_behind_its_cut_and_the_driver_is_killed,
    ),
    (Machine, keep_what_the_source_has_read_since, a_reader_goes_on_behind_its_cut_and_the_driver_is_killed),
    (
        Machine,
        count_what_later_checkpoints_have_published,
        a_checkpoint_is_published_while_a_savepoint_is_taken,
    ),
]


@pytest.mark.parametrize(
    ("machine", "schedule"), [(machine, one) for machine, _, one in RARE], ids=lambda one: one.__name__
)
def test_a_schedule_keeps_the_promises(machine: type[Machine], schedule: Callable[[Machine], None]) -> None:
    run_schedule(machine, schedule)


@pytest.mark.parametrize(("machine", "bug", "schedule"), RARE, ids=lambda one: one.__name__)
def test_a_schedule_finds(
    machine: type[Machine], bug: Bug, schedule: Callable[[Machine], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(FOUND):
        run_schedule(machine, schedule)


def run_schedule(kind: type[Machine], schedule: Callable[[Machine], None]) -> None:
    machine = kind()
    machine.start()
    schedule(machine)
    machine.teardown()
