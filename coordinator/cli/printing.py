"""How commands print: tables for people, JSON for programs, problems on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 200
"""Columns of a table when the output is not a terminal."""


def print_json(document: object) -> None:
    """Print a document for programs. What JSON does not know, such as a date, is text."""
    click.echo(json.dumps(document, indent=2, default=str))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()
) -> None:
    """Print a table for people; ``numbers`` are the columns that are aligned to the right."""
    table = Table(title=Text(title), title_justify="left", show_header=any(columns))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        # As text, because rich would take some names for markup.
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(table)


def print_problems(problems: Iterable[str]) -> None:
    """Print problems to stderr, and exit with code 1 if there are any."""
    found = list(problems)
    for problem in found:
        click.echo(problem, err=True)
    if found:
        raise click.exceptions.Exit(1)
