"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# A test says what is true, not how fast: on a busy machine a limit of time would fail it by chance. In CI the
# examples are always the same, so that a change is judged by what it changed; elsewhere they are new each time.
settings.register_profile("chandy", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("chandy")
