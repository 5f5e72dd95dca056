"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from .effort import examples

# A test says what is true, not how fast: on a busy machine a limit of time would fail it by chance. In CI the
# examples are always the same, so that a change is judged by what it changed; elsewhere they are new each time.
settings.register_profile(
    "chandy", deadline=None, derandomize=os.environ.get("CI") == "true", max_examples=examples(50)
)
settings.load_profile("chandy")


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Write to disks without waiting for them: no test cuts the power, and on a busy disk most time goes there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
