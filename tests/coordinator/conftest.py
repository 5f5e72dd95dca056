"""What the tests of the coordinator share."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from chandy.coordinator.recovery import runs
from chandy.coordinator.wiring import assembly, driver


@pytest.fixture(autouse=True)
def _no_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are stand-ins here: they have no log, no tasks, no executors to look at, nor any for state hosts."""
    monkeypatch.setattr(driver, "check_executors", lambda spark: None)
    monkeypatch.setattr(driver, "hide_what_is_told", lambda spark: lambda: None)
    monkeypatch.setattr(runs, "has_tasks", lambda query: False)
    monkeypatch.setattr(assembly, "Polls", SimpleNamespace(begin=lambda looks: ExitStack()))
