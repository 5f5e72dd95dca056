"""What all tests of the coordinator share."""

from __future__ import annotations

from hypothesis import settings

# A test says what is true, not how fast: on a busy machine a limit of time would fail it by chance.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
