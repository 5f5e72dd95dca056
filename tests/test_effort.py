"""What an ordinary run leaves out, and what keeps its promise meanwhile."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import effort


class Item:
    """A test, as pytest shows it to a hook."""

    def __init__(self, name: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self._marks = name, [mark.mark for mark in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self._marks if mark.name == name), None)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self._marks.append(mark.mark)


def test_a_loop_tries_as_many_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_FULL", True)
    assert effort.some("abc", 1) == ["a", "b", "c"]
    monkeypatch.setattr(effort, "IS_FULL", False)
    found = effort.some(range(10), 4, "loop")
    assert len(set(found)) == 4
    assert found == sorted(found)
    assert effort.some("ab", 4) == ["a", "b"]


def test_what_is_left_out_is_skipped_with_the_name_of_its_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effort, "IS_FULL", False)
    items: list[Any] = [
        Item("tests/a.py::test_one", pytest.mark.full("b.py::test_two")),
        Item("tests/b.py::test_two"),
    ]
    effort.leave_out(items)
    skips = [item.get_closest_marker("skip") for item in items]
    assert skips[1] is None
    assert "b.py::test_two" in skips[0].kwargs["reason"]
    monkeypatch.setattr(effort, "IS_FULL", True)
    alone: list[Any] = [Item("tests/a.py::test_one", pytest.mark.full("b.py::test_two"))]
    effort.leave_out(alone)
    assert alone[0].get_closest_marker("skip") is None


TESTS = Path(__file__).parent


def guards(file: Path) -> Iterator[str]:
    """Yield the guards that the tests of a file name."""
    text = file.read_text()
    for call in ast.walk(ast.parse(text)) if "mark.full(" in text else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.full":
            yield ast.literal_eval(call.args[0])


def runs_always(file: Path, name: str) -> bool:
    """Whether the ordinary run tries a test, or the tests of a class; it may leave out some of its parameters."""
    found = [
        one
        for one in ast.parse(file.read_text()).body
        if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == name
    ]
    marks = [ast.unparse(mark) for one in found for mark in one.decorator_list]
    return bool(found) and not any(mark.startswith("pytest.mark.full") for mark in marks)


def test_what_the_full_run_alone_tries_has_a_guard_that_every_run_tries() -> None:
    files = [file for file in TESTS.rglob("test_*.py") if file != Path(__file__)]
    found = [(file.name, *guard.split("::")) for file in files for guard in guards(file)]
    assert found
    assert [one for one in found if not runs_always(TESTS / one[1], one[2])] == []
