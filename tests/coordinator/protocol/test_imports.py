"""What the checkpoint protocol depends on: no I/O, and nothing of the coordinator around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import chandy.coordinator.protocol as package

ALLOWED = {
    "barrier.cut",
    "barrier.gate",
    "state.rpc.messages",
    "state.rpc.orders",
    "state.shards",
    "state.errors",
    "storage.errors",
    "storage.checkpoints.manifest",
    "storage.checkpoints.retention",
    "storage.html",
    "storage.ids",
    "storage.times",
}
"""Of Chandy, besides the package itself."""
MODULES = sorted(Path(package.__path__[0]).glob("*.py"))


def imported(module: Path) -> Iterator[str]:
    """The modules of Chandy, outside of the package, that a module of the package imports."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 1:
            name = f"{'coordinator.' if node.level == 2 else ''}{node.module}"
            modules = {f"{name}.{one.name}" for one in node.names} & ALLOWED
            yield from modules or {name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chandy"):
            yield str(node.module)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_the_protocol_imports_values_only(module: Path) -> None:
    assert set(imported(module)) <= ALLOWED
