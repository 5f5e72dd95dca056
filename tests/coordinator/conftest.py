"""What the tests of the coordinator share."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from chandy.coordinator.wiring import assembly, driver


@pytest.fixture(autouse=True)
def _no_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are stand-ins here: they have no log, no executors to look at, nor any to start state hosts beside."""
    monkeypatch.setattr(driver, "check_executors", lambda spark: None)
    monkeypatch.setattr(driver, "hide_what_is_told", lambda spark: lambda: None)
    monkeypatch.setattr(assembly, "Polls", SimpleNamespace(begin=lambda looks: ExitStack()))
