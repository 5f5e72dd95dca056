"""The frame of all demos: their console and folder, what they show while they run, and their tables and verdicts."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from chandy.storage.uri import join_uri

from .lives import await_hosts, runtime
from .watching import DriverFailedError

PLAIN_WIDTH: Final = 120
"""The width of tables if the output is not a terminal."""
STARTING: Final = "starting Python"
PHASES: Final = {
    "process": "starting Spark",
    "session": "starting the coordinator",
    "coordinator": "starting the query",
    "query": "streaming",
    "stopped": "checking the result with a batch job",
}
"""What a driver is doing after each of its events."""
_PARTS: Final = 10
"""Into how many parts the lines of a screen divide the demo."""


def demo_console() -> Console:
    """Return the console of a demo."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=PLAIN_WIDTH, highlight=False)


@contextmanager
def demo_folder(
    console: Console,
    *,
    keep: bool,
    storage: str = "",
    failures: tuple[type[Exception], ...] = (DriverFailedError,),
) -> Iterator[Path]:
    """Provide a folder. Delete it at the end, unless it is to be kept or the demo has failed: then it has the log.

    Args:
        console: says what is kept.
        keep: whether to keep it.
        storage: URI below which the checkpoints are, if they are not in the folder.
        failures: errors that say what is wrong in a sentence.

    Raises:
        SystemExit: the demo has failed, or a state host still runs.
    """
    # Resolve symbolic links, because paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="chandy-")).resolve()
    try:
        yield folder
    except failures as error:
        keep = True
        console.print(Text(str(error), "red"), soft_wrap=True)
        raise SystemExit(2) from None
    finally:
        # The hosts of a killed driver end by themselves when they lose their lease.
        ended = await_hosts(folder)
        if keep:
            console.print(f"Kept {folder}; try: chandy list {checkpoints(folder, storage)}", soft_wrap=True)
        elif ended:
            shutil.rmtree(folder, ignore_errors=True)
    if not ended:
        console.print(Text(f"A state host still runs; its log is below {runtime(folder)}", "red"))
        raise SystemExit(2)


def checkpoints(folder: Path, storage: str = "") -> str:
    """Return the URI where the checkpoints of a demo go: each demo has its own, and finds none of an earlier run."""
    return join_uri(storage, folder.name) if storage else (folder / "checkpoints").as_uri()


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


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1
) -> Table:
    """Return a table whose first ``left`` columns are text. The others are numbers."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def verdict(console: Console, is_right: bool, right: str, wrong: str) -> None:
    """Print one line of a verdict: green if it is right, otherwise red with what is wrong."""
    console.print(Text(f"  {right if is_right else wrong}", "bold green" if is_right else "bold red"))


def seconds(elapsed: float | None, digits: int = 1) -> str:
    """Return a time as text; ``-`` if it was not measured."""
    return "-" if elapsed is None else f"{elapsed:.{digits}f} s"
