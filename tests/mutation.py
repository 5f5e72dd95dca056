"""Bugs that tests put into the product's own text, to see that they are found."""

from __future__ import annotations

import inspect
import textwrap
from types import ModuleType
from typing import Any

import pytest


def mutate(patch: pytest.MonkeyPatch, owner: type | ModuleType, name: str, right: str, wrong: str) -> None:
    """Put other text into a method or a function of the product.

    Args:
        patch: takes it out again.
        owner: the class, or a module that has the function.
        name: of what is changed.
        right: what is there once, as it is in the method without the indentation of the class.
        wrong: what is to be there.
    """
    method = _function(getattr(owner, name))
    text = textwrap.dedent(inspect.getsource(method))
    assert text.count(right) == 1, f"{owner.__name__}.{name} has changed: {right!r} is not there once"
    made: dict[str, Any] = {}
    exec(compile(text.replace(right, wrong), inspect.getfile(method), "exec"), method.__globals__, made)
    # Its code, not its name: other modules have imported it.
    patch.setattr(method, "__code__", _function(made[method.__name__]).__code__)


def _function(found: Any) -> Any:
    """Return what a decorator wraps."""
    return inspect.unwrap(getattr(found, "fget", found))
