"""What the tests of connectors share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chandy.coordinator.connectors.tables import delta
from chandy.coordinator.connectors.tables.delta_history import read_commits


@pytest.fixture(autouse=True)
def _history_is_read_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in this process what commits of Delta tables say: a process for each look takes most of a test's time.

    Not where a server may be on a thread of this process, which would wait for Python's global lock for ever.
    """
    if request.node.get_closest_marker("server"):
        return

    def read(uri: str, options: dict[str, str], writer: str, seconds: float) -> Any:
        return json.loads(json.dumps(read_commits(uri, options, writer), default=str))

    monkeypatch.setattr(delta, "newest_commits", read)
