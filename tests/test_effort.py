"""What an ordinary run leaves out has its turn with another seed, and the full run leaves out nothing."""

from __future__ import annotations

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


def tried() -> list[str]:
    """Have two files take turns; return the tests that run."""
    marks = [pytest.mark.in_turn(2), pytest.mark.kills]
    items: list[Any] = [Item(f"tests/a.py::test_{number}", *marks) for number in range(5)]
    items += [Item("tests/b.py::test_alone", *marks), Item("tests/b.py::test_always", pytest.mark.kills)]
    items += [Item("tests/b.py::test_skipped", *marks, pytest.mark.skip)]
    effort.take_turns(items)
    return [item.nodeid for item in items if item.get_closest_marker("skip") is None]


def test_tests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_FULL", False)
    seen = set[str]()
    for seed in range(60):
        monkeypatch.setattr(effort, "SEED", seed)
        ran = tried()
        assert ran == tried(), "the processes of one run would not agree"
        assert len([name for name in ran if name.startswith("tests/a.py")]) == 2
        assert ran[2:] == ["tests/b.py::test_alone", "tests/b.py::test_always"]
        seen.update(ran)
    assert len(seen) == 7, "a test has no turn"


def test_the_full_run_tries_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_FULL", True)
    assert len(tried()) == 7
    assert effort.some("abc", 1) == ["a", "b", "c"]


def test_a_loop_tries_as_many_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "IS_FULL", False)
    found = effort.some(range(10), 4, "loop")
    assert len(set(found)) == 4
    assert found == sorted(found)
    assert effort.some("ab", 4) == ["a", "b"]
