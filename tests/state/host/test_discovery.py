from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chandy.state.errors import HostStartError
from chandy.state.host import discovery
from chandy.state.host.discovery import connect, executor_identity, keep_spare, start_host
from chandy.state.host.host_config import DISCOVERY_FOLDER, check_runtime
from chandy.state.host.versions import check_same, versions_of
from chandy.state.local.changelog import admit
from chandy.state.local.processes import started_at
from chandy.state.rpc.messages import Endpoint
from chandy.storage.disk.directories import private_directory, runtime_directory
from chandy.storage.disk.locks import acquire, try_acquire
from chandy.storage.errors import UnsafeDirectoryError

from ...waiting import DEADLINE, eventually

pytestmark = pytest.mark.processes


def test_tasks_of_one_executor_share_one_host(coordinator: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = list(pool.map(lambda _: coordinator.connect(), range(8)))
    assert len(coordinator.hellos) == 1
    assert len({id(client) for client in clients}) <= 8
    assert coordinator.connect() is coordinator.connect()


def test_a_host_that_was_started_ahead_is_the_one_that_tasks_find(coordinator: Any) -> None:
    address = start_host(coordinator.endpoint, str(coordinator.directory / "executor"))
    assert start_host(coordinator.endpoint, str(coordinator.directory / "executor")) == address
    assert coordinator.connect().address == address
    assert len(coordinator.hellos) == 1


def test_an_executor_with_another_version_than_the_driver_starts_no_host(coordinator: Any) -> None:
    endpoint = attrs.evolve(coordinator.endpoint, versions={**versions_of(), "rocksdict": "0.0.1"})
    with pytest.raises(
        HostStartError, match=r"expected rocksdict 0\.0\.1, which the driver has, found rocksdict"
    ) as caught:
        connect(endpoint, str(coordinator.directory / "executor"))
    assert socket.gethostname() in str(caught.value)
    assert coordinator.hellos == []
    same = attrs.evolve(coordinator.endpoint, versions=versions_of())
    start_host(same, str(coordinator.directory / "executor"))
    assert len(coordinator.hellos) == 1


def test_a_package_without_a_version_is_not_compared() -> None:
    check_same({"chandy": "1.0", "rocksdict": "0.3"}, {"rocksdict": "0.3"})
    assert versions_of(["no-such-package"]) == {}


def test_a_spare_process_becomes_the_next_host_and_logs_like_any_other(coordinator: Any) -> None:
    keep_spare()
    spare = discovery._spare
    assert spare is not None
    keep_spare()
    assert discovery._spare is spare
    coordinator.connect()
    assert [hello.pid for hello in coordinator.hellos] == [spare.pid]
    (log,) = Path(coordinator.endpoint.runtime).glob(f"{DISCOVERY_FOLDER}/*/host.log")
    eventually(lambda: f"pid={spare.pid}" in log.read_text(), "its log says that it serves")


def test_a_spare_process_that_has_been_killed_is_not_waited_for(coordinator: Any) -> None:
    keep_spare()
    spare = discovery._spare
    assert spare is not None
    spare.kill()
    spare.wait()
    coordinator.connect()
    assert [hello.pid for hello in coordinator.hellos] != [spare.pid]


def test_a_spare_process_ends_with_the_one_that_keeps_it() -> None:
    program = "from chandy.state.host import discovery as d; d.keep_spare(); print(d._spare.pid)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    eventually(lambda: started_at(pid) is None, "the spare process ends")


def test_executors_and_coordinator_lives_have_hosts_of_their_own(coordinator: Any) -> None:
    addresses = {coordinator.connect(name).address for name in ("one", "two", "one")}
    assert len(addresses) == len(coordinator.hellos) == 2
    other = attrs.evolve(coordinator.endpoint, token="another life")
    with pytest.raises(HostStartError, match="the coordinator did not answer"):
        connect(other, str(coordinator.directory / "one"), lease_seconds=0.5)


def test_the_next_task_starts_a_host_in_place_of_one_that_was_killed(coordinator: Any) -> None:
    first = coordinator.connect()
    coordinator.kill_host()
    second = coordinator.connect()
    assert first.address == second.address
    assert len({hello.pid for hello in coordinator.hellos}) == 2
    coordinator.run(second, 0, {b"a": b"1"})


def test_a_host_that_cannot_start_says_why(coordinator: Any) -> None:
    (coordinator.directory / "cache").write_text("a file where the cache should be")
    with pytest.raises(HostStartError) as caught:
        coordinator.connect()
    said = str(caught.value)
    assert "found that it ended with code 1; read the end of its log:" in said
    assert "FileExistsError" in said or "NotADirectoryError" in said
    (coordinator.directory / "cache").unlink()
    coordinator.connect()


def test_a_forked_worker_makes_a_connection_of_its_own(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = coordinator.connect()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert coordinator.connect() is not client
    assert len(coordinator.hellos) == 1


def test_a_path_too_long_for_a_socket_is_refused(coordinator: Any) -> None:
    runtime = coordinator.directory / ("long" * 25)
    with pytest.raises(HostStartError, match="CHANDY_RUNTIME_DIR"):
        connect(attrs.evolve(coordinator.endpoint, runtime=str(runtime)), "/")
    assert coordinator.hellos == []


@given(st.integers(1, 200))
def test_a_driver_refuses_exactly_the_runtime_directories_that_no_host_could_use(length: int) -> None:
    runtime = Path("/" + "d" * length)
    endpoint = Endpoint("grpc://127.0.0.1:1", "token", "p", 1, "/cache", str(runtime))
    refusals = []
    for check in (lambda: check_runtime(runtime), lambda: discovery._config(endpoint, "/")):
        try:
            check()
        except HostStartError as error:
            assert "CHANDY_RUNTIME_DIR" in str(error)
            refusals.append(check)
    assert len(refusals) in (0, 2)


def test_a_runtime_directory_that_others_can_enter_is_refused(coordinator: Any) -> None:
    runtime = coordinator.directory / "open"
    runtime.mkdir(mode=0o755)
    with pytest.raises(UnsafeDirectoryError, match="drwxr-xr-x"):
        connect(attrs.evolve(coordinator.endpoint, runtime=str(runtime)), "/")
    link = coordinator.directory / "link"
    link.symlink_to(private_directory(coordinator.directory / "mine"))
    with pytest.raises(UnsafeDirectoryError, match="lrwxrwxrwx"):
        connect(attrs.evolve(coordinator.endpoint, runtime=str(link)), "/")


def test_what_is_made_above_a_private_directory_is_private_too(tmp_path: Path) -> None:
    # A driver whose working directories are elsewhere begins with the changelogs; hosts meet in the folder above.
    umask = os.umask(0o022)
    try:
        admit(tmp_path / "run" / "cache" / "changelogs", "query", tmp_path)
    finally:
        os.umask(umask)
    assert private_directory(tmp_path / "run").is_dir()
    assert private_directory(tmp_path / "run" / "cache").is_dir()


def test_what_else_is_in_the_runtime_directory_stays(coordinator: Any) -> None:
    """The coordinator may keep the cache there."""
    cache = coordinator.directory / "run" / "cache"
    private_directory(cache.parent)
    cache.mkdir()
    coordinator.connect()
    assert cache.exists()


def test_the_runtime_directory_is_short_and_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANDY_RUNTIME_DIR", "/run/here")
    assert runtime_directory() == Path("/run/here")
    monkeypatch.delenv("CHANDY_RUNTIME_DIR")
    assert runtime_directory().name == f"chandy-{os.getuid()}"


def test_an_executor_is_known_by_its_machine_and_the_real_path_of_its_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert executor_identity(str(tmp_path / "link")) == executor_identity(str(tmp_path / "real"))
    assert executor_identity(str(tmp_path)) != executor_identity(str(tmp_path / "real"))


def test_executors_in_containers_with_one_host_name_and_one_path_are_told_apart(tmp_path: Path) -> None:
    root = tmp_path / "work-dir"
    root.mkdir()
    first = executor_identity(str(root))
    # What another container has at the same path is another directory.
    root.rename(tmp_path / "in another container")
    root.mkdir()
    assert executor_identity(str(root)) != first


def test_a_lock_is_not_given_twice_and_not_for_a_file_that_was_replaced(tmp_path: Path) -> None:
    first = try_acquire(tmp_path / "lock")
    assert first is not None
    assert try_acquire(tmp_path / "lock") is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acquire, tmp_path / "lock")
        (tmp_path / "lock").unlink()
        first.release()
        second = waiting.result(DEADLINE)
    assert try_acquire(tmp_path / "lock") is None
    second.release()
