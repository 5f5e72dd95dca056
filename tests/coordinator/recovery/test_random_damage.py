"""A byte of a storage changes, and the pipeline crashes and starts again and again.

Real are the storage, the coordinator's threads and decisions, and the state host with its RocksDB. Spark is not there:
the test writes the logs of the batches and does what their tasks do. The full run does so more often.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import attrs
import pytest

from chandy.coordinator.channels.contract import Channels
from chandy.coordinator.config import CheckpointConfig
from chandy.coordinator.errors import CheckpointError
from chandy.coordinator.execution.connected_hosts import ConnectedHosts
from chandy.coordinator.execution.executor import CheckpointExecutor
from chandy.coordinator.execution.locked_protocol import LockedProtocol
from chandy.coordinator.execution.recording import Recording
from chandy.coordinator.permit import NOTHING_PERMITTED
from chandy.coordinator.protocol.events import PipelineRestored
from chandy.coordinator.query import CheckpointedQuery, Definition
from chandy.coordinator.recovery import launcher
from chandy.coordinator.recovery.launcher import Launcher
from chandy.coordinator.recovery.restart import FixedDelay
from chandy.coordinator.recovery.runs import Run, Runs
from chandy.coordinator.recovery.supervisor import Supervisor
from chandy.coordinator.restore import restore_point
from chandy.coordinator.restore.local_recovery import LeftoverRuns, LocalRecovery
from chandy.coordinator.restore.query_directories import QueryDirectories
from chandy.coordinator.sinks.at_least_once import AtLeastOnceSink
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.spark import progress
from chandy.coordinator.spark.writer_facts import SinkFacts, SourceFacts, Trigger, WriterFacts
from chandy.state.failure_marks import mark
from chandy.state.host.changes import Changes
from chandy.state.host.memory import Memory
from chandy.state.host.state_host import StateHost
from chandy.state.rpc.messages import BeginTask, HostHello, Message, OpenShards, Reply
from chandy.storage import DamagedCheckpointError
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.files import FileCache
from chandy.storage.checkpoints.layout import CHECKPOINTS, SHARED
from chandy.storage.checkpoints.manifest import CheckpointKind, Manifest, OperatorRecord
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import ChandyError
from tests.builders import failover

from ...coordinator.stand_ins import watch_of
from ...effort import chance, examples
from ...waiting import DEADLINE, eventually
from ..stand_ins import NoTicks
from ..strict_machine import StrictStateMachine

RETAINED = 5
SHARDS = 3
TOKEN = "secret"
FACTS = WriterFacts(
    SinkFacts("noop"), "append", Trigger.PROCESSING_TIME, sources=(SourceFacts("json", replayable=True),)
)
OPERATOR = OperatorRecord("op", "q", "{}", {}, (None,) * SHARDS)
DEFINITION = Definition("q", None, None, FACTS, AtLeastOnceSink("noop"), (OPERATOR,), ())  # type: ignore[arg-type]
_numbers = itertools.count()


class Calls:
    """``Control`` of a host in the process of its coordinator."""

    def __init__(self, hosts: ConnectedHosts) -> None:
        self._hosts = hosts

    def send(self, message: Message[Reply]) -> Reply:
        answer: Reply = self._hosts.handlers[type(message)](message)  # type: ignore[assignment]
        return answer


class SparkRun:
    """A run of a query: it goes on until it is stopped, or a task has failed."""

    id = runId = "a UUID"  # noqa: N815 (as in PySpark)

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failure = ""

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self.over.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        over = self.over.wait(timeout)
        if self.failure:
            raise RuntimeError(self.failure)
        return over

    def fail(self, error: Exception) -> None:
        mark(error, TOKEN)
        self.failure = "".join(traceback.format_exception(error))
        self.over.set()

    def stop(self) -> None:
        self.over.set()


class DamagedLife:
    """One life of a driver and its state host."""

    def __init__(self, storage: Path, cache: Path, *, ahead: bool) -> None:
        """``ahead``: whether shards are opened before tasks need them, as in local mode."""
        self.folder = storage.parent / f"life-{next(_numbers)}"
        self.catalog = Catalog(LocalStore(storage))
        self.made = contextlib.ExitStack()
        self.made.callback(shutil.rmtree, self.folder, ignore_errors=True)
        files = FileCache(cache)
        generation = self.catalog.take_over("driver", time.time())
        point = restore_point.choose(self.catalog, "latest")
        directories = QueryDirectories(self.folder / "work", "p")
        recovery = LocalRecovery(
            root=self.catalog.store.uri,
            generation=generation.generation,
            workspace=directories.path,
            changelogs=self.folder / "changelogs",
            enabled=False,
            boot="",
            leftovers=LeftoverRuns(),
        )
        self.runs = Runs(Channels(), Recording())
        interrupted = threading.Event()
        find_damage = partial(restore_point.find_damage, self.catalog, interrupted)
        protocol = LockedProtocol(
            StrictStateMachine(
                pipeline="p",
                generation=generation.generation,
                root=self.catalog.store.uri,
                limits=CheckpointConfig(interval=None, retained=RETAINED).limits,
                next_id=generation.next_id,
                failover=failover(FixedDelay("0 s", attempts=3)),
                completed=restore_point.known(self.catalog, None),
                base=point.manifest.id if point else None,
            ),
            time.time,
        )
        self.supervisor = Supervisor(
            protocol=protocol,
            launcher=Launcher(
                directories=directories,
                runs=self.runs,
                cache=files,
                ticks=cast(Any, NoTicks()),
                local_recovery=recovery,
                open_ahead=self.open_ahead if ahead else lambda *_: None,
                find_damage=find_damage,
                ending=interrupted,
                owner=SinkOwner(self.catalog.store.uri, "p"),
                may_begin_anew=True,
                permits=NOTHING_PERMITTED,
            ),
            runs=self.runs,
            local_recovery=recovery,
            find_damage=find_damage,
            ending=interrupted,
            clock=time.time,
            restored=point,
            token=TOKEN,
        )
        self.executor = CheckpointExecutor(
            protocol,
            catalog=self.catalog,
            store=self.catalog.store,
            open_store=open_store,
            watch=watch_of(self.catalog, generation.generation),
            progress=self.runs,
            clock=time.time,
            host_timeout=1e9,
            reports=self.supervisor,
            recording=Recording(),
        )
        self.made.callback(self.executor.close)
        if point is not None:
            self.executor.protocol.handle(PipelineRestored(point.manifest.id))
        memory = Memory(32 << 20)
        self.host = StateHost("host", Calls(self.executor.hosts), self.folder / "host", memory, files)
        self.made.callback(self.host.close)
        self.supervisor.begin(self.executor)
        self.made.callback(self.supervisor.close)
        hello = HostHello("host", "unix://host", "machine", "executor", 1)
        welcomed = threading.Event()
        listener = threading.Thread(target=self.listen, args=(hello, welcomed), daemon=True)
        listener.start()
        self.made.callback(listener.join)
        self.made.callback(self.executor.abandon)
        assert welcomed.wait(DEADLINE)
        self.query: CheckpointedQuery | None = None

    def listen(self, hello: HostHello, welcomed: threading.Event) -> None:
        for order in self.executor.hosts.orders(hello):
            welcomed.set()
            self.host.obey(order)

    def open_ahead(
        self, query_id: str, operators: tuple[OperatorRecord, ...], failed: Callable[[str], None]
    ) -> None:
        """As ``LocalHost`` does, without its thread: a shard may have failed before the host has answered."""
        try:
            for operator in operators:
                self.host.open(OpenShards(query_id, operator.uid, tuple(range(len(operator.shards)))))
        except ChandyError as error:
            failed(str(error))

    def start(self) -> None:
        self.query = self.supervisor.start(DEFINITION)

    @property
    def error(self) -> Exception | None:
        """What has ended the query."""
        return self.query.exception() if self.query else None

    @property
    def run(self) -> Run:
        (run,) = self.runs.all()
        return run

    def batch(self, size: int) -> None:
        """Run the next batch, as Spark and its tasks do."""
        run, number = self.run, progress.newest_committed(self.run.directory) + 1
        for name in ("offsets", "commits"):
            (run.directory / name).mkdir(exist_ok=True)
        times = f'{{"batchWatermarkMs":0,"batchTimestampMs":{number},"conf":{{}}}}'
        (run.directory / "offsets" / str(number)).write_text(f"v1\n{times}\n{number}")
        task = BeginTask(run.query_id, number, "op", tuple(range(SHARDS)))
        try:
            self.host.begin(task)
            for key, shard in self.host.shards(task).items():
                value = random.Random(number * SHARDS + key).randbytes(size)
                shard.stage(number, Changes.of(shard.name, {b"%d-%d" % (key, number % 4): value}))
        except ChandyError as error:
            cast(SparkRun, run.spark).fail(error)
            return
        (run.directory / "commits" / str(number)).write_text("v1\n{}")

    def checkpoint(self) -> Manifest | None:
        """Take a checkpoint; None if it has failed."""
        try:
            return self.catalog.read(self.executor.request(CheckpointKind.MANUAL).result(DEADLINE).id)
        except CheckpointError:
            return None

    def await_outcome(self) -> Exception | None:
        """Take checkpoints until one is known to be whole, or damage has ended the query; return its error."""

        def is_over() -> bool:
            if self.error is None and (taken := self.checkpoint()) is not None and not taken.unverified:
                return True
            return self.error is not None

        eventually(is_over, "a verified checkpoint or an error")
        return self.error


@contextlib.contextmanager
def life(storage: Path, cache: Path, *, ahead: bool = True) -> Iterator[DamagedLife]:
    """A life that ends without a word to its successor."""
    made = DamagedLife(storage, cache, ahead=ahead)
    with made.made:
        yield made


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "start_spark", lambda *args, **kwargs: SparkRun())


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, Path]:
    """A storage of five checkpoints, with large files that they share and with packs, and the machine's cache."""
    storage, cache = tmp_path / "first" / "storage", tmp_path / "first" / "cache"
    with life(storage, cache) as first:
        first.start()
        for number in range(5):
            # Some changes are large enough for a file of their own, some go into the pack.
            first.batch(100_000 if number % 2 else 1000)
            assert first.checkpoint() is not None
    assert whole(storage) == {1, 2, 3, 4, 5}
    return storage, cache


def whole(storage: Path) -> set[int]:
    """The checkpoints that restore, byte for byte."""
    catalog = Catalog(LocalStore(storage))
    return {one.id for one in catalog.readable() if verify(catalog.store, one).ok}


def latest_is_whole(storage: Path) -> bool:
    newest = Catalog(LocalStore(storage)).list_ids()[-1]
    return newest in whole(storage)


@attrs.frozen
class Damage:
    """One byte of one object."""

    key: str
    position: int
    bits: int

    def put(self, storage: Path) -> None:
        """Change the byte where it lies: whatever is a link to the object has it, too."""
        with (storage / self.key).open("r+b") as file:
            file.seek(self.position)
            (was,) = file.read(1)
            file.seek(self.position)
            file.write(bytes([was ^ self.bits]))

    @classmethod
    def draw(cls, storage: Path, moments: random.Random) -> Damage:
        store = LocalStore(storage)
        key = moments.choice(store.list(CHECKPOINTS) + store.list(SHARED))
        return cls(key, moments.randrange(store.stat(key).size), moments.randrange(1, 256))


def copy_place(place: tuple[Path, Path], folder: Path, machine: str) -> tuple[Path, Path]:
    """Copy a storage; the cache is another machine's, has copies of its files, or has links to them."""
    storage, cache = folder / "storage", folder / "cache"
    shutil.copytree(place[0], storage)
    cache.mkdir(mode=0o700)
    for path in (place[1] / "files").glob("*/*") if machine != "another" else ():
        target = cache / "files" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        stored = storage / SHARED / path.parent.name / f"{path.name}.sst"
        if machine == "linked" and stored.exists():
            target.hardlink_to(stored)
        else:
            shutil.copy(path, target)
    return storage, cache


def start_again(storage: Path, cache: Path, damage: Damage, moments: random.Random) -> bool:
    """Start, do something, and crash; return whether the damage was named, if there was the time for it."""
    before, was_whole = whole(storage), latest_is_whole(storage)
    hurried, busy, ahead = moments.random() < 0.4, moments.random() < 0.5, moments.random() < 0.6
    error: Exception | None = None
    try:
        with life(storage, cache, ahead=ahead) as this:
            this.start()
            if busy:
                this.batch(2000)
            if hurried:
                for _ in range(moments.randrange(4)):
                    this.checkpoint()
                error = this.error
            else:
                error = this.await_outcome()
    except DamagedCheckpointError as found:
        error = found
    after, how = whole(storage), f"{damage}, {hurried=}, {busy=}, {ahead=}"
    if error is not None:
        assert isinstance(error, DamagedCheckpointError), f"{error!r}: {how}"
        assert error.key == damage.key, how
    if was_whole:
        # The life before may have ended before it deleted what retention had dropped.
        assert len(after) >= min(len(before), RETAINED), f"{before} was whole, and now {after}: {how}"
        return False
    assert error is not None or hurried, f"nobody has named the damage: {how}"
    assert before <= after, f"{before} was whole, and now {after}: {how}"
    if error is not None:
        assert error.intact == max(before, default=None) or error.intact in after, how
    return error is not None


@pytest.mark.parametrize("number", range(examples(2)))
def test_damage_is_named_at_every_start_and_what_was_whole_stays_whole(
    place: tuple[Path, Path], tmp_path: Path, number: int
) -> None:
    moments = chance("damage", number)
    storage, cache = copy_place(
        place, tmp_path / "copy", moments.choice(["another", "copied", "linked", "linked"])
    )
    damage = Damage.draw(storage, moments)
    damage.put(storage)
    for _ in range(3):
        start_again(storage, cache, damage, moments)
