"""What tests of benchmarks have in common."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Has a folder go in the very moment in which somebody looks into it."""

    def go(folder: Path) -> None:
        left = [folder]

        def scan(path: Any = ".") -> Any:
            if isinstance(path, str | os.PathLike) and Path(path) in left:
                left.clear()
                shutil.rmtree(folder)
            return look(path)

        look = os.scandir
        monkeypatch.setattr(os, "scandir", scan)

    return go
