"""What a demo shows while it runs: a bar on a terminal, otherwise a line now and then; and lines that stay."""

from __future__ import annotations

import math
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_PARTS: Final = 10
"""Into how many parts the lines divide the demo."""


class Screen:
    """Shows how many flights of a demo are done, and what it is doing."""

    def __init__(self, console: Console, flights: int, *columns: ProgressColumn, **fields: Any) -> None:
        """Make a screen, which shows nothing before it is entered.

        Args:
            console: where it shows it.
            flights: how many there are.
            columns: further columns of the bar.
            fields: what these show at the beginning.
        """
        self.console = console
        self._flights = flights
        self._next_line = 1
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} flights"),
            *columns,
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._bar: TaskID = self._progress.add_task("starting", total=flights, **fields)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def phase(self, name: str) -> None:
        """Show what the driver is doing."""
        self._progress.update(self._bar, description=name)
        if not self.console.is_terminal:
            self.note(f"  {name}")

    def note(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(Text(text, style), soft_wrap=True)

    def flights(self, done: int, note: str = "", **fields: Any) -> None:
        """Show that so many flights are done.

        Args:
            done: how many.
            note: what a line says besides.
            fields: what the further columns show.
        """
        self._progress.update(self._bar, completed=done, **fields)
        part = math.floor(_PARTS * done / self._flights)
        if part >= self._next_line:
            self._next_line = part + 1
            if not self.console.is_terminal:
                self.note(f"  {done:>7,} flights{note}")
