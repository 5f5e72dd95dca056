"""Who writes into a pipeline's sinks: a successor waits until its predecessor has stepped down, or is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from chandy.coordinator.errors import PredecessorRunsError
from chandy.coordinator.leadership.leadership import Leadership, Sign, Verdict, await_predecessors, judge
from chandy.state.local.machine import machine_id
from chandy.state.local.processes import Process, is_stopped, started_at
from chandy.storage.backends.local import LocalStore
from chandy.storage.checkpoints.catalog import Catalog
from chandy.storage.checkpoints.fencing import Claim, DriverRecord, LeaseRecord
from chandy.storage.errors import FencedError, StoreFailedError

from ...waiting import DEADLINE, eventually, freeze

NEVER = 3600.0


@pytest.mark.parametrize(
    ("sign", "waited", "verdict"),
    [
        (Sign.DEAD, 0.0, Verdict.GO_ON),
        (Sign.DEAD, 99.0, Verdict.GO_ON),
        (Sign.LIVES, 9.0, Verdict.WAIT),
        (Sign.UNKNOWN, 9.0, Verdict.WAIT),
        (Sign.LIVES, 10.0, Verdict.GIVE_UP),
        (Sign.UNKNOWN, 10.0, Verdict.TAKE_FOR_DEAD),
    ],
)
def test_what_is_decided_about_a_predecessor(sign: Sign, waited: float, verdict: Verdict) -> None:
    assert judge(sign, waited, 10.0) is verdict


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(LocalStore(tmp_path / "store"))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine, which does nothing."""
    with subprocess.Popen(["sleep", "1000"]) as made:
        yield made
        made.kill()


def claim(catalog: Catalog) -> Claim:
    return catalog.claim("driver", 1.0)


def elsewhere(catalog: Catalog, generation: int) -> DriverRecord:
    return DriverRecord(generation, "far", "another machine", 7, 1, 8, 1)


def here(generation: int, process: subprocess.Popen[bytes], started: int | None = None) -> DriverRecord:
    began = started_at(process.pid) if started is None else started
    assert began is not None
    return DriverRecord(generation, "near", machine_id(), process.pid, began, process.pid, began)


def test_who_follows_nobody_waits_for_nobody(catalog: Catalog) -> None:
    first = claim(catalog)
    await_predecessors(catalog, first, NEVER)
    Leadership.take(catalog, first, Process.of(os.getpid())).step_down()
    catalog.start(first)
    await_predecessors(catalog, claim(catalog), NEVER)


def test_a_driver_in_this_process_is_told_and_waited_for(catalog: Catalog) -> None:
    first = claim(catalog)
    leadership = Leadership.take(catalog, first, Process.of(os.getpid()))
    catalog.start(first)
    told: list[FencedError] = []

    def stop(error: FencedError) -> None:
        told.append(error)
        threading.Thread(target=leadership.step_down).start()

    leadership.listen(stop)
    await_predecessors(catalog, claim(catalog), NEVER)
    assert [(error.generation, error.by) for error in told] == [(1, 2)]
    assert catalog.leader(1) is None


def test_a_driver_in_this_process_is_known_by_any_name_of_its_storage(
    catalog: Catalog, tmp_path: Path
) -> None:
    link = tmp_path / "another name"
    link.symlink_to(tmp_path / "store")
    leadership = Leadership.take(catalog, claim(catalog), Process.of(os.getpid()))
    told: list[FencedError] = []
    leadership.listen(told.append)
    by_link = Catalog(LocalStore(link))
    assert by_link.store.uri != catalog.store.uri
    with pytest.raises(PredecessorRunsError, match="running in this process"):
        await_predecessors(by_link, claim(by_link), 0.0)
    assert len(told) == 1
    leadership.step_down()
    await_predecessors(by_link, claim(by_link), 0.0)


def test_a_driver_in_this_process_that_is_still_being_made_is_told_when_it_listens(catalog: Catalog) -> None:
    first = claim(catalog)
    leadership = Leadership.take(catalog, first, Process.of(os.getpid()))
    successor = threading.Thread(target=lambda: await_predecessors(catalog, claim(catalog), NEVER))
    successor.start()
    eventually(lambda: leadership._told is not None)
    told: list[FencedError] = []
    leadership.listen(told.append)
    assert len(told) == 1
    with pytest.raises(FencedError):
        catalog.start(first)
    leadership.step_down()
    successor.join()


def test_a_driver_in_this_process_that_does_not_end_is_named(catalog: Catalog) -> None:
    leadership = Leadership.take(catalog, claim(catalog), Process.of(os.getpid()))
    with pytest.raises(PredecessorRunsError, match="running in this process; stop its coordinator"):
        await_predecessors(catalog, claim(catalog), 0.0)
    leadership.step_down()


def test_a_driver_that_stepped_down_and_could_not_record_it_does_not_hold_up_its_process(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: LocalStore, key: str) -> None:
        raise StoreFailedError(self.uri, key, "delete", "no", transient=True)

    leadership = Leadership.take(catalog, claim(catalog), Process.of(os.getpid()))
    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "delete", fails)
        leadership.step_down()
    assert catalog.leader(1) is not None
    await_predecessors(catalog, claim(catalog), NEVER)
    assert catalog.leader(1) is None


def test_a_dead_driver_is_not_waited_for(catalog: Catalog, process: subprocess.Popen[bytes]) -> None:
    catalog.take_leadership(here(claim(catalog).generation, process))
    process.kill()
    process.wait()
    await_predecessors(catalog, claim(catalog), NEVER)
    assert catalog.leader(1) is None


def test_a_process_that_got_the_id_of_a_dead_driver_is_not_taken_for_it(
    catalog: Catalog, process: subprocess.Popen[bytes]
) -> None:
    catalog.take_leadership(here(claim(catalog).generation, process, started=1))
    await_predecessors(catalog, claim(catalog), NEVER)


@pytest.mark.parametrize("what", ["pid", "java"])
def test_a_driver_lives_as_long_as_its_python_or_its_jvm(
    catalog: Catalog, process: subprocess.Popen[bytes], what: str
) -> None:
    gone = {"pid": {"java_started": 1}, "java": {"started": 1}}[what]
    catalog.take_leadership(attrs.evolve(here(claim(catalog).generation, process), **gone))
    with pytest.raises(
        PredecessorRunsError, match=f"process {process.pid} on near .*; end it .kill {process.pid} "
    ):
        await_predecessors(catalog, claim(catalog), 0.0)
    assert catalog.leader(1) is not None


def test_of_a_suspended_driver_it_is_said_how_to_let_it_go_on(
    catalog: Catalog, process: subprocess.Popen[bytes]
) -> None:
    catalog.take_leadership(here(claim(catalog).generation, process))
    freeze(process.pid)
    with pytest.raises(
        PredecessorRunsError, match=f"suspended .*kill -9 {process.pid}.*kill -CONT {process.pid}"
    ):
        await_predecessors(catalog, claim(catalog), 0.0)


@pytest.mark.parametrize("python", ["is frozen", "has been killed"])
def test_of_a_driver_here_whose_lease_has_run_out_the_jvm_writes_no_more(
    catalog: Catalog, python: str
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as java, subprocess.Popen(["sleep", "1000"]) as frozen:
        driver = attrs.evolve(
            here(claim(catalog).generation, java),
            pid=frozen.pid,
            started=started_at(frozen.pid) or 0,
        )
        catalog.take_leadership(driver)
        catalog.renew(LeaseRecord(1, 0.0, 1))
        # A child that it has forked may hold the JVM when it is dead.
        frozen.send_signal(signal.SIGSTOP if python == "is frozen" else signal.SIGKILL)
        eventually(lambda: is_stopped(frozen.pid) or not Process(frozen.pid, driver.started).lives)
        await_predecessors(catalog, claim(catalog), 0.0)
        assert java.wait(DEADLINE) == -signal.SIGKILL
        assert catalog.leader(1) is None
        frozen.kill()


def test_a_jvm_that_cannot_be_ended_is_not_taken_for_dead(
    catalog: Catalog, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    catalog.take_leadership(here(claim(catalog).generation, process))
    catalog.renew(LeaseRecord(1, 0.0, 1))
    with monkeypatch.context() as other_user:
        other_user.setattr(os, "kill", forbidden)
        with pytest.raises(PredecessorRunsError):
            await_predecessors(catalog, claim(catalog), 0.0)
    assert catalog.leader(1) is not None


def test_a_driver_elsewhere_that_does_not_answer_is_taken_for_dead_aloud(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.take_leadership(elsewhere(catalog, claim(catalog).generation))
    await_predecessors(catalog, claim(catalog), 0.0)
    assert "taken for dead" in caplog.text
    assert "far" in caplog.text
    assert catalog.leader(1) is None


def test_a_driver_elsewhere_that_answers_is_waited_for_aloud(
    catalog: Catalog, caplog: pytest.LogCaptureFixture
) -> None:
    catalog.take_leadership(elsewhere(catalog, claim(catalog).generation))
    successor = threading.Thread(target=lambda: await_predecessors(catalog, claim(catalog), NEVER))
    successor.start()
    eventually(lambda: "waiting for the driver before" in caplog.text)
    assert successor.is_alive()
    catalog.step_down(1)
    successor.join()


def test_a_successor_that_waits_gives_way_to_its_own(catalog: Catalog) -> None:
    catalog.take_leadership(elsewhere(catalog, claim(catalog).generation))
    second, _ = claim(catalog), claim(catalog)
    with pytest.raises(FencedError):
        await_predecessors(catalog, second, NEVER)


def test_all_are_waited_for_down_to_the_newest_that_has_started(catalog: Catalog) -> None:
    """Generation 3 has waited for 1 and 2, and 4 and 5 never began."""
    for number in range(1, 6):
        made = claim(catalog)
        if number in (1, 3):
            catalog.start(made) if number == 1 else catalog.store.create("generations/3.start.json", b"{}")
        catalog.take_leadership(elsewhere(catalog, number))
    assert [driver.generation for driver in catalog.leaders_before(6)] == [5, 4, 3]


def test_queries_that_end_later_let_their_driver_step_down_later(catalog: Catalog) -> None:
    leadership = Leadership.take(catalog, claim(catalog), Process.of(os.getpid()))
    ended = threading.Event()

    def wait(timeout: float | None) -> bool:
        return ended.wait(0.0 if timeout is not None else None)

    leadership.step_down_after(wait)
    assert catalog.leader(1) is not None
    ended.set()
    eventually(lambda: catalog.leader(1) is None)
