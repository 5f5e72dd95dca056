"""The name of this machine, and its id as far as process ids reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from chandy.state.local.machine import NAME_VARIABLE, machine_id, machine_name

PRINT = "from chandy.state.local.machine import machine_id; print(machine_id())"


def test_a_machine_has_its_host_name_unless_it_is_given_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NAME_VARIABLE, raising=False)
    assert machine_name() == socket.gethostname()
    monkeypatch.setenv(NAME_VARIABLE, "node-7")
    assert machine_name() == "node-7"


def test_processes_with_other_process_ids_have_another_machine_id() -> None:
    command = [sys.executable, "-c", PRINT]
    assert _printed(command) == machine_id()
    if (
        os.getuid() != 0
        or subprocess.run(["unshare", "--pid", "--fork", "true"], check=False).returncode != 0
    ):
        pytest.skip("a PID namespace needs root and unshare")
    assert _printed(["unshare", "--pid", "--fork", "--mount-proc", *command]) != machine_id()


def _printed(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
