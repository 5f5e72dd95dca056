"""Ending the process of a state host: real processes, which stand in for hosts."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chandy.coordinator.execution import host_process
from chandy.coordinator.execution.host_process import end_host
from chandy.state.local.machine import machine_id
from chandy.state.rpc.messages import HostHello

from ...waiting import DEADLINE, eventually, freeze


def hello(pid: int, pid_of: str | None = None) -> HostHello:
    return HostHello(
        "host", "address", "machine", "executor", pid, machine_id() if pid_of is None else pid_of
    )


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose command line is that of a host."""
    code = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", code, "chandy.state.host.process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
        # Until then it is a copy of this process, by its command line.
        path = Path(f"/proc/{started.pid}/cmdline")
        eventually(lambda: not path.exists() or command[-1].encode() in path.read_bytes(), "its own program")
        yield started
        started.kill()


def test_a_stopped_host_is_killed(process: subprocess.Popen[bytes]) -> None:
    freeze(process.pid)
    assert end_host(hello(process.pid))
    assert process.wait(DEADLINE) == -signal.SIGKILL


def test_a_host_on_another_machine_is_out_of_reach(process: subprocess.Popen[bytes]) -> None:
    assert not end_host(hello(process.pid, "another machine"))
    assert process.poll() is None


def test_a_host_in_another_container_of_this_machine_is_out_of_reach(
    process: subprocess.Popen[bytes],
) -> None:
    """Containers that share their machine's host name may have process ids of their own."""
    boot, _ = machine_id().split(" ")
    assert not end_host(hello(process.pid, f"{boot} pid:[1]"))
    assert not end_host(hello(2**22 + 1, f"{boot} pid:[1]"))
    assert process.poll() is None


def test_a_host_that_has_ended_is_gone(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(DEADLINE)
    assert end_host(hello(process.pid))


@pytest.mark.skipif(not host_process._PROC.is_dir(), reason="needs /proc")
def test_another_process_that_has_the_number_by_now_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1) as other:
        assert end_host(hello(other.pid))
        assert other.poll() is None
        other.kill()
