"""How commands print: tables and sentences for people, JSON for programs, problems on stderr.

Nothing else prints. Names and texts come from data, exceptions and storages of others, and a terminal obeys what some
characters say.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 200
"""Columns of a table when the output is not a terminal."""

_OBEYED = frozenset({"Cc", "Cf", "Cs"})
"""Unicode's categories of what a terminal obeys or cannot show: control, format and surrogate characters."""


def printable(text: str) -> str:
    """Return a text as a terminal may get it: what it would obey is shown as Python writes it, such as ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        ascii(letter)[1:-1] if unicodedata.category(letter) in _OBEYED and letter not in "\n\t" else letter
        for letter in text
    )


def cell(text: str, style: str = "") -> Text:
    """Return a text for a table. Rich would take some names for markup."""
    return Text(printable(text), style)


def console() -> Console:
    """Return where tables are printed: the terminal, or something that is not one."""
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a sentence for people, to stderr if so wished."""
    click.echo(printable(text), err=err, nl=nl)


def failure(text: str) -> click.ClickException:
    """Return the error with which a command ends, with a text on stderr and exit code 1."""
    return click.ClickException(printable(text))


def print_json(document: object) -> None:
    """Print a document for programs. What JSON does not know, such as a date, is text."""
    click.echo(json.dumps(document, indent=2, default=str))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    """Print a table for people; ``numbers`` are the columns that are aligned to the right."""
    table = Table(show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(cell, row))
    # Not the table's own title, which is no wider than the table.
    console().print(cell(title), style="italic")
    console().print(table)


def print_problems(problems: Iterable[str]) -> None:
    """Print problems to stderr, and exit with code 1 if there are any."""
    found = list(problems)
    for problem in found:
        say(problem, err=True)
    if found:
        raise click.exceptions.Exit(1)
