"""What the API says, held against its own description."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from chandy.coordinator.monitor.server import Monitor

from .served import ask
from .served import begin as begin

Begin = Callable[..., Monitor]


def described(monitor: Monitor, **headers: str) -> dict[str, Any]:
    status, text = ask(monitor, "/api/v1/openapi.json", **headers)
    assert status == 200
    found: dict[str, Any] = json.loads(text)
    return found
