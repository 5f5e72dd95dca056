"""A driver that is frozen between any two steps of what it does, while another one takes over and goes on.

The steps are those of the product: calls to stores, and changes of files in an output. After each of them the driver
may stand still for longer than a successor waits. Whatever it does when it wakes, what the successor has then stays.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest

from chandy.coordinator.adopt import adopted_store
from chandy.coordinator.adopt.adopted_store import AdoptingPipeline, AdoptionRecord
from chandy.coordinator.connectors.files.log import FileLog
from chandy.coordinator.connectors.files.sink import FilesSink
from chandy.coordinator.execution.successor_watch import SuccessorWatch
from chandy.coordinator.sinks import file_sink_log
from chandy.coordinator.sinks.file_sink import FileSink
from chandy.coordinator.sinks.file_sink_log import LOG
from chandy.coordinator.sinks.owner import SinkOwner
from chandy.coordinator.sinks.sink import StartPoint
from chandy.coordinator.sinks.two_phase.contract import Fence
from chandy.coordinator.sinks.two_phase.errors import OutputError
from chandy.coordinator.sinks.two_phase.publisher import Publisher
from chandy.coordinator.spark import starting
from chandy.storage.backends.local import LocalStore
from chandy.storage.backends.open import open_store
from chandy.storage.checkpoints import collect, savepoint, savepoint_claim
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.manifest import FileRef, Handle
from chandy.storage.checkpoints.proof import FenceProof, Unshared
from chandy.storage.errors import ChandyError, FencedError
from chandy.testing import SinkPipeline

from ..builders import make_manifest, shared
from ..effort import some

TIMEOUT = 30.0
"""What a successor waits."""
SAVEPOINT_OF = "p, generation 1, checkpoint 3"
STORE_CALLS = ("read", "write", "create", "list", "delete", "delete_all", "upload", "stat")
FILE_CALLS = ("rename", "unlink", "mkdir")


def handle(digit: str) -> Handle:
    """A snapshot of one shared file."""
    return Handle((FileRef("1.sst", shared(digit), 5, digit * 64),))


@attrs.define(slots=False)
class TwoDrivers:
    """A pipeline's storage and outputs, and one driver that has begun."""

    folder: Path
    now: float = 1000.0

    def __attrs_post_init__(self) -> None:
        self.store = LocalStore(self.folder / "store")
        self.catalog = Catalog(self.store)
        generation = self.catalog.take_over("first", 0.0).generation
        self.watch = SuccessorWatch(
            self.catalog,
            generation,
            trusts_look=TIMEOUT / 2,
            hold_lease=lambda: 0.0,
            within=None,
            clock=lambda: self.now,
        )
        self.output = self.folder / "output"
        for batch in range(4):
            self.run_batch("first", batch)
        for id in (1, 2):
            self.store.write(shared(str(id)), b"state")
            self.catalog.commit(make_manifest(id, generation, [handle(str(id))]))
        self.pipeline = SinkPipeline(FilesSink(f"file://{self.folder}/files", uid="files"), self.store.uri)
        self.publisher = self.publisher_of(1, self.watch.proof)
        self.publisher.begin(0)
        self.publisher.publish_now(
            [self.pipeline.epoch(1, [(1, "a")]), self.pipeline.epoch(2, [(2, "b")])], 0
        )
        self.epochs = [self.pipeline.epoch(id, [(id, "c")]) for id in (3, 4)]
        self.savepoint = LocalStore(self.folder / "savepoint")
        savepoint.claim_savepoint(self.savepoint, SAVEPOINT_OF)
        self.savepoint.write(shared("3"), b"state")

    @property
    def proof(self) -> FenceProof:
        return self.watch.proof

    def publisher_of(self, generation: int, proof: FenceProof) -> Publisher:
        fence = Fence("flights", "delays", "files", self.store.uri, generation)
        return Publisher(self.pipeline.sink, fence, proof, on_failure=lambda error: None)

    def run_batch(self, driver: str, batch: int) -> None:
        """Write a batch as Spark's file sink does."""
        data = self.output / f"part-{batch}-{driver}.parquet"
        entry = self.output / LOG / str(batch)
        entry.parent.mkdir(parents=True, exist_ok=True)
        data.write_text(driver)
        entry.write_text("v1\n" + json.dumps({"path": f"file://{data}", "size": 1, "action": "add"}))

    def beginning(self, last: int, proof: FenceProof) -> StartPoint:
        """Where a query begins that has a batch in its checkpoint."""
        where = self.folder / f"log-{proof.generation}-{last}"
        where.mkdir()
        kept = {}
        for name, path in file_sink_log.files_at(self.output, last).items():
            kept[name] = where / name
            kept[name].write_bytes(path.read_bytes())
        return StartPoint(SinkOwner(self.store.uri, "p"), proof, kept, may_begin_anew=True)

    # --- what the driver does -------------------------------------------------------------------------------

    def begins(self) -> Callable[[], object]:
        beginning = self.beginning(1, self.proof)
        return lambda: FileSink(self.output, "parquet").begin("q", beginning)

    def begins_again(self) -> Callable[[], object]:
        self.begins()()
        for batch in (2, 3):
            self.run_batch("again", batch)
        # The batches that were set aside are brought back.
        late = StartPoint(SinkOwner(self.store.uri, "p"), self.proof, {}, may_begin_anew=True)
        return lambda: FileSink(self.output, "parquet").begin("q", late)

    def resumes(self) -> Callable[[], object]:
        beginning = self.beginning(1, self.proof)
        return lambda: FileSink(self.output, "parquet").resume("q", beginning, 3)

    def discards(self) -> Callable[[], object]:
        one, two = self.catalog.completed()
        return lambda: collect.ended(collect.discard(self.store, [one], lambda: [two], self.proof))

    def gives_up_a_checkpoint(self) -> Callable[[], object]:
        # Its manifest is durable, though the driver was told that it is not.
        self.catalog.commit(make_manifest(3, generation=self.proof.generation))
        self.store.write("checkpoints/3/h-0.pack", b"progress")
        return lambda: collect.discard_aborted(self.store, 3, self.proof)

    def gives_up_a_savepoint(self) -> Callable[[], object]:
        savepoint.commit_savepoint(self.savepoint, make_manifest(3, 1, [handle("3")]))
        return lambda: savepoint.discard_savepoint(self.savepoint, SAVEPOINT_OF, self.proof)

    def drops_what_it_has_claimed(self) -> Callable[[], object]:
        savepoint.commit_savepoint(self.savepoint, make_manifest(3, 1, [handle("3")]))
        savepoint_claim.claim_restored(self.catalog, self.savepoint, self.proof)
        self.catalog.commit(make_manifest(5, generation=self.proof.generation))
        return lambda: savepoint_claim.drop_claimed(self.catalog, open_store, 1, self.proof)

    def adopts(self) -> Callable[[], object]:
        (self.folder / "offset").write_text("v1")
        files = {"working/offsets/7": self.folder / "offset"}
        life = AdoptingPipeline(self.store.uri, "p", self.proof.generation, {})
        source = AdoptionRecord("/old", "5f3a", 7, 8)
        return lambda: adopted_store.write(life, "q", source, files, (), {}, 0.0, self.proof)

    def publishes(self) -> Callable[[], object]:
        return lambda: self.publisher.publish_now(self.epochs, 0)

    def takes_back(self) -> Callable[[], object]:
        return lambda: self.publisher.rewind(1, 0)

    # --- the successor --------------------------------------------------------------------------------------

    def is_taken_over(self) -> dict[Path, bytes]:
        """Take over, go on, and return the files that there are then."""
        self.now += 2 * TIMEOUT
        generation = self.catalog.take_over("second", 1.0).generation
        last = min(2, file_sink_log.newest(self.output))
        successor = _SuccessorsProof(generation)
        with suppress(ChandyError):
            # The output may be half-way back: what the first life has undone is not whole.
            FileSink(self.output, "parquet").begin("q", self.beginning(last, successor))
        for batch in range(last + 1, 6):
            self.run_batch("second", batch)
        publisher = self.publisher_of(generation, successor)
        publisher.begin(0)
        publisher.publish_now([self.pipeline.epoch(id, [(id, "d")]) for id in (5, 6)], 0)
        return self.files()

    def files(self) -> dict[Path, bytes]:
        found = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        # What its readers read: entries that newer ones repeat may go.
        folder = self.folder / "files"
        log = FileLog(LocalStore(folder), f"file://{folder}")
        lines = {path: found.pop(path) for path in list(found) if path.is_relative_to(folder / LOG)}
        if lines:
            found[folder / LOG] = "\n".join(sorted(log.lines(log.newest().number))).encode()
        return found


class _SuccessorsProof(Unshared):
    """The proof of the driver that is the newest."""

    def __init__(self, generation: int) -> None:
        self._generation = generation

    @property
    def generation(self) -> int:
        return self._generation


@contextmanager
def frozen_after(step: int, freeze: Callable[[], object]) -> Iterator[list[int]]:
    """Freeze the driver after so many steps; yield how many it has taken."""
    if step == 0:
        freeze()
    taken, local = [0], threading.local()

    def stepping(right: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            # A step of a step is none.
            if getattr(local, "is_in_step", False):
                return right(*given, **more)
            local.is_in_step = True
            try:
                return right(*given, **more)
            finally:
                taken[0] += 1
                if taken[0] == step:
                    freeze()
                local.is_in_step = False

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in STORE_CALLS:
            patch.setattr(LocalStore, name, stepping(getattr(LocalStore, name)))
        for name in FILE_CALLS:
            patch.setattr(Path, name, stepping(getattr(Path, name)))
        yield taken


NEVER = -1
"""No step is the one after which the driver is frozen."""
ACTS = [
    TwoDrivers.begins,
    TwoDrivers.begins_again,
    TwoDrivers.resumes,
    TwoDrivers.discards,
    TwoDrivers.gives_up_a_checkpoint,
    TwoDrivers.gives_up_a_savepoint,
    TwoDrivers.drops_what_it_has_claimed,
    TwoDrivers.adopts,
    TwoDrivers.publishes,
    TwoDrivers.takes_back,
]


def freeze(folder: Path, act: Callable[[TwoDrivers], Callable[[], object]], step: int) -> int:
    """Freeze the driver after a step of an act, and check what is left; return how many steps it has taken."""
    world = TwoDrivers(folder)
    acts, found = act(world), dict[Path, bytes]()
    with (
        frozen_after(step, lambda: found.update(world.is_taken_over())) as taken,
        suppress(FencedError, OutputError),
    ):
        acts()
    left = world.files()
    lost = [str(path.relative_to(folder)) for path, content in found.items() if left.get(path) != content]
    assert not lost, f"frozen after step {step}: {lost}"
    return taken[0]


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_wherever_a_driver_is_frozen_it_leaves_alone_what_its_successor_has(
    tmp_path: Path, act: Callable[[TwoDrivers], Callable[[], object]]
) -> None:
    steps = freeze(tmp_path / "never", act, NEVER)
    assert steps > 0, "it has taken no steps"
    for step in some(range(steps + 1), 4, "frozen", act.__name__):
        freeze(tmp_path / str(step), act, step)


class OneQuerySession:
    """A Spark session in which one query can be started, and what the writer of it is asked for."""

    def __init__(self, during: Callable[[], object]) -> None:
        self.during = during
        self.active: list[OneQuerySession] = []
        self.starts: list[OneQuerySession] = []
        self.id, self.isActive, self.status = "id", True, {"message": "Waiting for data to arrive"}

    @property
    def streams(self) -> OneQuerySession:
        return self

    _spark = streams

    def option(self, name: str, value: str) -> None:
        pass

    def start(self) -> OneQuerySession:
        self.starts.append(self)
        self.active.append(self)
        self.during()
        return self

    def stop(self) -> None:
        self.active.remove(self)


@pytest.mark.parametrize("when", ["before", "while Spark starts it"])
def test_a_driver_that_is_frozen_around_the_start_of_a_query_leaves_none_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for setting in ("_restored", "_unless_set", "followed"):
        monkeypatch.setattr(starting, setting, lambda *_: nullcontext())
    world = TwoDrivers(tmp_path)
    world.proof.check()
    session: Any = OneQuerySession((lambda: None) if when == "before" else world.is_taken_over)
    if when == "before":
        world.is_taken_over()
    with pytest.raises(FencedError):
        starting.start(session, location="/work", query_id="id", proof=world.proof)
    assert session.active == []
    assert len(session.starts) == (when != "before")
