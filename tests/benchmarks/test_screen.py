"""What a demo shows where there is no terminal: a line for each tenth, and no more."""

from __future__ import annotations

import io

from rich.console import Console

from benchmarks.screen import Screen


def test_a_line_is_shown_for_each_tenth_of_the_flights() -> None:
    shown = io.StringIO()
    with Screen(Console(file=shown, width=200), 200) as screen:
        screen.phase("running")
        for done in (5, 19, 20, 39, 41, 41, 59, 135, 200):
            screen.flights(done, ", May 1")
        screen.note("the end")
    assert shown.getvalue().splitlines() == [
        "  running",
        *(f"  {done:>7,} flights, May 1" for done in (20, 41, 135, 200)),
        "the end",
    ]
