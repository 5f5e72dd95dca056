"""Whatever fails, and at whatever moment: the latest checkpoint restores, and nothing that is needed is gone."""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chandy.storage import FencedError, ObjectExistsError, Store
from chandy.storage.backends.open import open_store
from chandy.storage.backends.retrying import RetryingStore, RetryPolicy
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.collect import collect_garbage
from chandy.storage.checkpoints.manifest import Handle
from chandy.storage.checkpoints.restore import restore_files
from chandy.storage.checkpoints.snapshots import SnapshotWriter
from chandy.storage.checkpoints.verification import verify
from chandy.storage.errors import StoreFailedError

from ..builders import MemoryStore, make_manifest
from ..effort import chance, examples, rounds, some
from ..waiting import DEADLINE
from . import servers
from .conftest import s3_uri
from .faults import FAULTS, FINE, KILLED, LOST, FaultyStore, FaultyWorld
from .servers import Server

PLANS = st.lists(
    # Mostly fine, with faults strewn in.
    st.lists(st.sampled_from((FINE,) * 14 + FAULTS), max_size=60),
    min_size=1,
    max_size=3,
)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where thousands of small files come and go quickly."""


def play(store: Store, plans: list[list[str]], collects: bool, checkpoints: int = 3) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        files = Path(folder) / "files"
        files.mkdir()
        world = FaultyWorld(store, files)
        for number, plan in enumerate(plans):
            world.live(plan, checkpoints)
            world.check(Path(folder) / f"restored-{number}")
            if collects:
                # No driver lives: whatever is not needed may go.
                collect_garbage(Catalog(store), 1e12, older_than=0)
                world.check(Path(folder) / f"collected-{number}")


@settings(max_examples=examples(25), deadline=None)
@given(plans=PLANS, collects=st.booleans())
def test_after_any_faults_the_latest_checkpoint_restores(plans: list[list[str]], collects: bool) -> None:
    play(MemoryStore(), plans, collects)


@pytest.mark.parametrize(
    ("backend", "schedules"),
    [("moto", rounds(12, full=35)), ("rclone", rounds(20, full=64)), ("hdfs", 1)],
    indirect=["backend"],
    ids=["moto", "rclone", "hdfs"],
)
def test_after_faults_on_a_real_server_the_latest_checkpoint_restores(
    make_store: Callable[[], Store], backend: str, schedules: int
) -> None:
    plan = chance("faults", backend)
    store = make_store()
    for _ in range(schedules):
        plans = [plan.choices((FINE,) * 14 + FAULTS, k=30) for _ in range(2)]  # type: ignore[arg-type]
        play(store, plans, collects=True, checkpoints=2)
        store.delete_all(store.list())


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("fault", [KILLED, LOST])
def test_a_fault_at_each_single_operation_of_a_life_harms_nothing(fault: str, collects: bool) -> None:
    for position in some(range(60), 20, "faults", fault, collects):
        play(MemoryStore(), [[FINE] * 200, [FINE] * position + [fault]], collects)


# --- two drivers --------------------------------------------------------------------------------------------


@attrs.define
class Race:
    """Two drivers on one pipeline, each in a thread with a client of its own.

    Before each operation chance says who makes the next one, or that both do at once. So they meet on a busy machine,
    too.
    """

    open: Callable[[], Store]
    moments: random.Random
    announced: list[int] = attrs.field(factory=list)
    stopped: int = 0
    """Drivers that found another one to have taken over."""
    _living: int = 0
    _waiting: set[int] = attrs.field(factory=set)
    _changed: threading.Condition = attrs.field(factory=threading.Condition)

    def run(self) -> None:
        self._living = 2
        with ThreadPoolExecutor(2) as pool:
            for announced, stopped in pool.map(self._live, range(2)):
                self.announced += announced
                self.stopped += stopped

    def _live(self, number: int) -> tuple[list[int], bool]:
        catalog = Catalog(FaultyStore(self.open(), self._turns(number)))
        announced: list[int] = []
        try:
            began = catalog.take_over("driver", time.time())
            for id in range(began.next_id, began.next_id + 3):
                catalog.check_not_fenced(began.generation)
                manifest = make_manifest(id, began.generation)
                catalog.commit(manifest)
                catalog.confirm(manifest)
                announced.append(id)
        except (FencedError, ObjectExistsError):
            return announced, True
        finally:
            with self._changed:
                self._living -= 1
                self._go_on()
        return announced, False

    def _turns(self, number: int) -> Iterator[str]:
        while True:
            with self._changed:
                self._waiting.add(number)
                self._go_on()
                assert self._changed.wait_for(lambda: number not in self._waiting, DEADLINE)
            yield FINE

    def _go_on(self) -> None:
        if self._waiting and len(self._waiting) == self._living:
            both = sorted(self._waiting)
            self._waiting -= set(self.moments.choice([both, both[:1], both[-1:]]))
            self._changed.notify_all()


@pytest.mark.parametrize(
    ("backend", "races"),
    [("file", rounds(20, full=50)), ("moto", rounds(10, full=20)), ("hdfs", 2)],
    indirect=["backend"],
    ids=["file", "moto", "hdfs"],
)
def test_two_drivers_that_meet_at_random_moments_never_complete_one_id_twice_and_lose_none(
    make_store: Callable[[], Store], races: int
) -> None:
    moments = chance("drivers")
    store = make_store()
    at_once = min(races, 10)
    for _ in range(races // at_once):
        race = Race(make_store, moments)
        for _ in range(at_once):
            race.run()
            assert len(race.announced) == len(set(race.announced))
        completed = [manifest.id for manifest in Catalog(store).completed()]
        assert set(race.announced) <= set(completed)
        assert race.stopped, "they never met, and nothing was tested"
        store.delete_all(store.list())


# --- a server that is killed --------------------------------------------------------------------------------


class CountingProxy:
    """Passes bytes on to a server, and calls ``act`` once when so many have gone to it."""

    def __init__(self, target: int, after: int, act: Callable[[], None]) -> None:
        self._target, self._after, self._act = target, after, act
        self._lock = threading.Lock()
        self._passed = 0
        self.acted = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                if counts:
                    self._count(len(data))
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def _count(self, passed: int) -> None:
        with self._lock:
            self._passed += passed
            now = self._passed > self._after and not self.acted
            self.acted = self.acted or now
        if now:
            self._act()


@pytest.fixture
def own_rclone(s3_keys: None, tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "rclone").mkdir()
    server = servers.rclone(tmp_path / "rclone")
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("after", [1 << 20, 9 << 20, 20 << 20])
def test_a_server_that_is_killed_in_the_middle_of_an_upload_and_started_again_harms_nothing(
    own_rclone: Server, tmp_path: Path, after: int
) -> None:
    def checkpoint(store: Store, id: int, content: bytes, base: Handle | None) -> Handle:
        folder = tmp_path / str(id)
        folder.mkdir()
        (folder / "large.sst").write_bytes(content)
        (folder / "CURRENT").write_bytes(b"%d" % id)
        writer = SnapshotWriter(store, f"checkpoints/{id}/host.pack")
        writer.add("0", {path.name: path for path in folder.iterdir()}, base)
        handle = writer.finish()["0"].handle
        Catalog(store).commit(make_manifest(id, shards=[handle]))
        return handle

    direct = open_store(s3_uri(own_rclone, "p"))
    first = checkpoint(direct, 1, b"first" * 20_000, None)

    def restart() -> None:
        own_rclone.kill()
        own_rclone.start()

    proxy = CountingProxy(own_rclone.port, after, restart)
    through = open_store(f"s3://{servers.BUCKET}/p?endpoint=http://127.0.0.1:{proxy.port}&region=us-east-1")
    content = os.urandom(24 << 20)
    second = checkpoint(through, 2, content, first)
    proxy.close()
    assert proxy.acted
    for id, handle, expected in ((1, first, b"first" * 20_000), (2, second, content)):
        assert verify(direct, Catalog(direct).read(id)).ok
        restore_files(direct, handle, tmp_path / "restored")
        assert (tmp_path / "restored" / "large.sst").read_bytes() == expected
        shutil.rmtree(tmp_path / "restored")


def test_a_server_that_stays_away_is_told_with_object_operation_and_attempts(s3_keys: None) -> None:
    uri = f"s3://{servers.BUCKET}/{uuid.uuid4().hex}?endpoint=http://127.0.0.1:{servers.free_port()}&region=r"
    opened = open_store(uri)
    assert isinstance(opened, RetryingStore)
    store = RetryingStore(opened.store, RetryPolicy(attempts=3), sleep=lambda seconds: None)
    with pytest.raises(StoreFailedError, match=r"could not write 'a/b' in s3://.*3 attempts\)"):
        store.write("a/b", b"x")
