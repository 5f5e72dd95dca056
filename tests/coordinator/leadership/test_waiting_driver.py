"""Drivers that stand by: one of them claims the pipeline when its leader ends, and the others go on waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from typing_extensions import override

from chandy.coordinator.errors import SetupError
from chandy.coordinator.leadership import leadership
from chandy.coordinator.leadership import waiting_driver as module
from chandy.coordinator.leadership.election import Decision, Election
from chandy.coordinator.leadership.leadership import Leadership, await_predecessors, sight
from chandy.coordinator.leadership.lease import HeldLease
from chandy.coordinator.leadership.waiting_driver import WaitingDriver, Won
from chandy.state.local.machine import machine_id
from chandy.state.local.processes import Process, started_at
from chandy.storage import runtime
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import DriverRecord, LeaseRecord
from chandy.storage.checkpoints.files import FileCache, file_sha256
from chandy.storage.checkpoints.layout import manifest_key, shared_key
from chandy.storage.checkpoints.manifest import FileRef, Handle
from chandy.storage.checkpoints.manifest_json import encode_manifest
from chandy.storage.errors import StoreFailedError

from ...builders import MemoryStore, make_manifest
from ...waiting import DEADLINE, eventually

SHORT = 0.3
NEVER = 3600.0


class AnswersLost(MemoryStore):
    """A store that writes, and whose answer does not arrive."""

    is_lost = False

    def write(self, key: str, data: bytes) -> None:
        super().write(key, data)
        if self.is_lost:
            raise StoreFailedError(self.uri, key, "write", "connection reset", transient=True)


class SilentStore(MemoryStore):
    """A store that does not answer while ``away`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.away = threading.Event()
        self.asked = 0

    @override
    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        self._ask()
        return super().read(key, offset, length)

    @override
    def list(self, prefix: str = "") -> list[str]:
        self._ask()
        return super().list(prefix)

    def _ask(self) -> None:
        self.asked += 1
        if self.away.is_set():
            raise StoreFailedError(self.uri, "", "read", "it is away", transient=True)


@pytest.fixture
def store() -> SilentStore:
    return SilentStore()


@pytest.fixture
def catalog(store: SilentStore) -> Catalog:
    return Catalog(store)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.02)


@attrs.define
class MovedClock:
    """The clock of the standbys, which the test alone moves: no pause of this process makes a leader silent."""

    store: SilentStore
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(runtime, name)

    def run_until_one_wins(self, standbys: list[Waiting]) -> None:
        """Let the time of a lease go by in steps; the standbys look in between."""

        def has_won() -> bool:
            return any(one.won for one in standbys)

        while not has_won():
            asked = self.store.asked
            eventually(lambda before=asked: has_won() or self.store.asked > before + 20)
            self.now += NEVER / 10


@pytest.fixture
def clock(store: SilentStore, monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    made = MovedClock(store)
    monkeypatch.setattr(leadership, "runtime", made)
    return made


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine, which does nothing."""
    with subprocess.Popen(["sleep", "1000"]) as made:
        yield made
        made.kill()


_waiting: list[Waiting] = []


@pytest.fixture(autouse=True)
def end_them() -> Iterator[None]:
    yield
    while _waiting:
        _waiting.pop().end()


@attrs.define(slots=False)
class Waiting:
    """A standby that waits on a thread of its own."""

    catalog: Catalog
    folder: Path
    clock_is_off_by: float = 0.0
    warmed: threading.Event = attrs.field(factory=threading.Event)
    won: list[Won] = attrs.field(factory=list)
    needed: threading.Event = attrs.field(factory=threading.Event)
    over: threading.Event = attrs.field(factory=threading.Event)

    def __attrs_post_init__(self) -> None:
        _waiting.append(self)
        standby = WaitingDriver(
            self.catalog,
            NEVER,
            FileCache(self.folder / "cache"),
            self.warm_up,
            lambda: time.time() + self.clock_is_off_by,
            self.check,
        )
        self.thread = threading.Thread(target=self.wait, args=(standby,), daemon=True)
        self.thread.start()

    def wait(self, standby: WaitingDriver) -> None:
        with contextlib.suppress(SetupError):
            self.won.append(standby.wait())

    def check(self) -> None:
        if self.over.is_set():
            raise SetupError("the test is over", "", "", "")

    def end(self) -> None:
        self.over.set()
        self.thread.join(DEADLINE)

    def warm_up(self, needed: threading.Event) -> None:
        self.needed = needed
        self.warmed.set()

    def stands_by(self) -> Waiting:
        assert self.warmed.wait(DEADLINE)
        return self


def leads(catalog: Catalog, generation: int, seconds: float) -> HeldLease:
    """A leader on another machine, which renews its lease."""
    catalog.take_leadership(DriverRecord(generation, "far", "another machine", 7, 1, 8, 1))
    lease = HeldLease(catalog, generation, seconds)
    lease.begin()
    return lease


def a_leader(catalog: Catalog, seconds: float) -> HeldLease:
    claim = catalog.claim("driver", 1.0)
    lease = leads(catalog, claim.generation, seconds)
    catalog.start(claim)
    return lease


def looks(store: SilentStore, some: int = 20) -> None:
    """Wait until the standbys have looked a few times more."""
    before = store.asked
    eventually(lambda: store.asked > before + some, "more looks")


def test_who_finds_nobody_leads_without_warming_up(catalog: Catalog, tmp_path: Path) -> None:
    only = Waiting(catalog, tmp_path)
    eventually(lambda: bool(only.won))
    assert (only.won[0].claim.generation, only.won[0].followed) == (1, None)
    assert not only.warmed.is_set()


def test_one_of_two_standbys_wins_and_the_other_waits_for_it(
    catalog: Catalog, store: SilentStore, clock: MovedClock, tmp_path: Path
) -> None:
    leader = a_leader(catalog, NEVER)
    standbys = [Waiting(catalog, tmp_path).stands_by() for _ in range(2)]
    looks(store)
    assert not any(one.won for one in standbys)
    leader.end()
    clock.run_until_one_wins(standbys)
    (winner,) = [one for one in standbys if one.won]
    (other,) = [one for one in standbys if not one.won]
    assert winner.won[0].claim.generation == 2
    assert winner.won[0].followed == 1
    assert (winner.needed.is_set(), other.needed.is_set()) == (True, False)
    silence = winner.won[0].silence
    assert silence is not None
    assert silence.generation == 1
    second = leads(catalog, 2, NEVER)
    looks(store)
    assert not other.won
    # It dies before it has started.
    second.end()
    clock.run_until_one_wins([other])
    assert other.won[0].claim.generation == 3


def test_a_generation_that_somebody_has_claimed_is_not_claimed_again(catalog: Catalog) -> None:
    first = catalog.claim_after(0, "one", 1.0)
    assert first is not None
    assert catalog.claim_after(0, "another", 1.0) is None
    assert catalog.newest_generation() == 1


def test_a_clock_that_is_wrong_by_an_hour_changes_nothing(
    catalog: Catalog, store: SilentStore, clock: MovedClock, tmp_path: Path
) -> None:
    leader = a_leader(catalog, NEVER)
    standbys = [Waiting(catalog, tmp_path, off).stands_by() for off in (-3600.0, 3600.0)]
    looks(store, 100)
    assert not any(one.won for one in standbys)
    leader.end()
    clock.run_until_one_wins(standbys)
    assert sum(len(one.won) for one in standbys) == 1


def test_a_leader_whose_process_dies_here_is_followed_whatever_its_lease(
    catalog: Catalog, tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    claim = catalog.claim("driver", 1.0)
    began = started_at(process.pid) or 0
    catalog.take_leadership(DriverRecord(1, "near", machine_id(), process.pid, began, process.pid, began))
    catalog.renew(LeaseRecord(1, NEVER, 1))
    catalog.start(claim)
    standby = Waiting(catalog, tmp_path).stands_by()
    assert not standby.won
    process.kill()
    process.wait()
    eventually(lambda: bool(standby.won))
    assert standby.won[0].silence is None


def test_a_leader_elsewhere_without_a_lease_is_named_again_and_again_with_what_to_do(
    catalog: Catalog,
    store: SilentStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "Reminder", lambda first: OftenDue())
    claim = catalog.claim("driver", 1.0)
    catalog.take_leadership(DriverRecord(claim.generation, "far", "another machine", 7, 1, 8, 1))
    catalog.start(claim)
    standby = Waiting(catalog, tmp_path).stands_by()
    eventually(lambda: caplog.text.count("process 7 on far") > 1)
    assert "start a driver without standby=True" in caplog.text
    assert not standby.won


class OftenDue:
    """A ``Reminder`` that is due each time."""

    def is_due(self, waited: float) -> bool:
        return True


def test_a_storage_that_is_away_makes_nobody_take_over(
    catalog: Catalog, store: SilentStore, tmp_path: Path
) -> None:
    leader = a_leader(catalog, NEVER)
    standby = Waiting(catalog, tmp_path).stands_by()
    store.away.set()
    looks(store, 5)
    store.away.clear()
    looks(store)
    assert not standby.won
    catalog.step_down(1)
    eventually(lambda: bool(standby.won))
    leader.end()


def test_a_stop_on_purpose_lasts_until_the_next_driver(
    catalog: Catalog, store: SilentStore, clock: MovedClock, tmp_path: Path
) -> None:
    leader = a_leader(catalog, NEVER)
    standby = Waiting(catalog, tmp_path).stands_by()
    leader.stop()
    catalog.step_down(1)
    looks(store)
    assert not standby.won
    started = Waiting(catalog, tmp_path)
    eventually(lambda: bool(started.won))
    assert started.won[0].claim.generation == 2
    second = leads(catalog, 2, NEVER)
    looks(store)
    assert not standby.won
    second.end()
    clock.run_until_one_wins([standby])


def test_a_leader_of_this_process_hands_over(catalog: Catalog, store: SilentStore, tmp_path: Path) -> None:
    claim = catalog.claim("driver", 1.0)
    leading = Leadership.take(catalog, claim, Process.of(os.getpid()), NEVER)
    catalog.start(claim)
    standby = Waiting(catalog, tmp_path).stands_by()
    looks(store)
    assert not standby.won
    leading.step_down()
    eventually(lambda: bool(standby.won))


def test_who_could_not_run_the_pipeline_leaves_it_to_others(catalog: Catalog, tmp_path: Path) -> None:
    def check() -> None:
        raise SetupError("this standby cannot take over", "its JVM", "none", "start it again")

    with pytest.raises(SetupError):
        WaitingDriver(catalog, NEVER, FileCache(tmp_path), lambda needed: None, time.time, check).wait()
    assert catalog.newest_generation() == 0


# --- taking over from a leader that is frozen ---------------------------------------------------------------


def test_a_leader_whose_lease_has_run_out_is_not_waited_for_again(
    catalog: Catalog, tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = catalog.claim("driver", 1.0)
    began = started_at(process.pid) or 0
    catalog.take_leadership(DriverRecord(1, "near", machine_id(), process.pid, began, process.pid, began + 1))
    catalog.renew(LeaseRecord(1, SHORT, 1))
    catalog.start(claim)
    standby = Waiting(catalog, tmp_path)
    eventually(lambda: bool(standby.won))
    won = standby.won[0]

    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    asked = SimpleNamespace(monotonic=runtime.monotonic, sleep=sleep, own=runtime.own, lock=runtime.lock)
    monkeypatch.setattr(leadership, "runtime", asked)
    await_predecessors(catalog, won.claim, SHORT, won.silence)
    assert catalog.leader(1) is None


def test_a_leader_that_wakes_before_the_claim_is_waited_for(catalog: Catalog, tmp_path: Path) -> None:
    first = catalog.claim("driver", 1.0)
    catalog.take_leadership(DriverRecord(1, "far", "another machine", 7, 1, 8, 1))
    lease = LeaseRecord(1, SHORT, 1)
    catalog.renew(lease)
    catalog.start(first)
    standby = Waiting(catalog, tmp_path)
    eventually(lambda: bool(standby.won))
    won = standby.won[0]
    # It wakes, renews its lease, and sees the claim only when it looks for a successor.
    catalog.renew(attrs.evolve(lease, renewals=2))
    waiter = threading.Thread(
        target=await_predecessors, args=(catalog, won.claim, NEVER, won.silence), daemon=True
    )
    waiter.start()
    looks_until = time.monotonic() + 2 * SHORT
    eventually(lambda: time.monotonic() > looks_until)
    assert waiter.is_alive()
    catalog.step_down(1)
    waiter.join(DEADLINE)
    assert not waiter.is_alive()


def test_a_leader_that_could_not_renew_its_lease_renews_it_before_it_trusts_it() -> None:
    store, now = SilentStore(), [0.0]
    lease = HeldLease(Catalog(store), 1, 10.0, lambda: now[0])
    lease._renew()
    now[0] = 5.0
    assert lease.hold() == 0.0
    now[0] = 5.1
    assert lease.hold() == 5.1
    found = Catalog(store).lease(1)
    assert found is not None
    assert found.renewals == 2
    now[0] = 9.0
    assert lease.hold() == 5.1


def test_a_renewal_whose_answer_was_lost_is_not_followed_by_the_same_number() -> None:
    store, now = AnswersLost(), [0.0]
    lease = HeldLease(Catalog(store), 1, 10.0, lambda: now[0])
    numbers = []
    for store.is_lost in (False, True, False):
        with contextlib.suppress(StoreFailedError):
            lease._renew()
        found = Catalog(store).lease(1)
        assert found is not None
        numbers.append(found.renewals)
    assert numbers == [1, 2, 3]


def test_a_look_for_a_successor_before_a_gap_of_the_lease_does_not_count() -> None:
    store, now = SilentStore(), [0.0]
    lease = HeldLease(Catalog(store), 1, 10.0, lambda: now[0])
    lease._renew()
    # Its thread comes to renew it before a batch asks.
    now[0] = 20.0
    lease._renew()
    assert lease.hold() == 20.0


# --- what is ready when it is needed ------------------------------------------------------------------------


def test_the_files_of_the_latest_checkpoint_are_fetched_while_it_waits(
    catalog: Catalog, tmp_path: Path
) -> None:
    leader = a_leader(catalog, NEVER)
    source = tmp_path / "source.sst"
    source.write_bytes(b"state" * 1000)
    sha256 = file_sha256(source)
    catalog.store.write(shared_key(sha256), source.read_bytes())
    file = FileRef("000012.sst", shared_key(sha256), source.stat().st_size, sha256)
    manifest = make_manifest(1, 1, [Handle((file,)), Handle((file,))])
    catalog.store.create(manifest_key(1), encode_manifest(manifest))
    Waiting(catalog, tmp_path).stands_by()
    cache = FileCache(tmp_path / "cache")
    eventually(lambda: cache.has(sha256), "the file is in the cache")
    assert cache.take(sha256, file.size, tmp_path / "taken.sst")
    leader.end()


def test_no_moment_of_a_beginning_looks_like_an_end(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = catalog.claim("driver", 1.0)
    seen = []
    for name in ("renew", "take_leadership", "start"):
        right = getattr(Catalog, name)

        def watched(self: Catalog, *given: object, right: Callable[..., object] = right) -> object:
            seen.append(sight(catalog)[0])
            done = right(self, *given)
            seen.append(sight(catalog)[0])
            return done

        monkeypatch.setattr(Catalog, name, watched)
    leading = Leadership.take(catalog, claim, Process.of(os.getpid()), NEVER)
    catalog.start(claim)
    decisions = [Election(NEVER).decide(one) for one in seen]
    assert decisions == [Decision.WAIT] * 6
    leading.step_down()
    assert Election(NEVER).decide(sight(catalog)[0]) is Decision.TAKE_OVER
