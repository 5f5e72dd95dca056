"""What the tests of the executor and its parts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .one_life import OneLife


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., OneLife]]:
    made: list[OneLife] = []

    def make_setup(**config: Any) -> OneLife:
        made.append(OneLife(tmp_path, **config))
        return made[-1]

    yield make_setup
    for setup in made:
        setup.close()


@pytest.fixture
def setup(make: Callable[..., OneLife]) -> OneLife:
    return make()
