"""The text in an export that says how to go on from it with plain Spark."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .contents import Exported, ExportedOperator, ExportedQuery
from .target import UNFINISHED

_WIDTH = 100


def readme(export: Exported) -> str:
    """Return the contents of an export's README.txt."""
    paragraphs = [*_about(export)]
    for query in export.queries:
        paragraphs += _query(query, [one for one in export.operators if one.query == query.name])
    return "\n\n".join(paragraphs) + "\n"


def _about(export: Exported) -> Iterator[str]:
    spark = export.versions.get("pyspark", "of unknown version")
    yield f"Checkpoint {export.checkpoint} of the Chandy pipeline {export.pipeline!r}, for plain Spark"
    yield _wrapped(
        f"It was written by PySpark {spark}: go on with this version or a newer one. Stop the pipeline first, and "
        "do not start it again on the same outputs. What it has written after this checkpoint comes again; so export "
        "what coordinator.stop() has left."
    )
    yield _wrapped(
        f"While there is a folder {UNFINISHED!r} beside this file, the export is not whole: delete all of it, and "
        "export again."
    )


def _query(query: ExportedQuery, operators: list[ExportedOperator]) -> Iterator[str]:
    title = f"Query {query.name!r}"
    yield f"{title}\n{'-' * len(title)}"
    if query.directory is None:
        yield _wrapped("It has run no batch. Start it with a new checkpoint directory.")
    elif query.goes_on:
        yield _wrapped(
            f"It goes on with batch {query.batch + 1}. Start the same query, with the same sources in the same order "
            "and the same stateful operations, on this checkpoint directory:"
        )
        yield _option(query)
    else:
        yield _wrapped(
            f"Its state is in Chandy's own operators, so plain Spark cannot go on with batch {query.batch + 1}. It "
            "begins with batch 0 and takes the state as its initial state. Start it on this checkpoint directory:"
        )
        yield _option(query)
    for note in query.notes:
        yield _wrapped(f"* {note}", hanging="  ")
    for operator in operators:
        yield from _operator(operator)
        if not query.goes_on:
            yield from _loading(operator)


def _option(query: ExportedQuery) -> str:
    return f'    .option("checkpointLocation", "{query.directory}")'


def _operator(operator: ExportedOperator) -> Iterator[str]:
    yield _wrapped(f"State of operator {operator.uid!r}: {operator.keys} keys, one row each, in")
    yield f"    {operator.directory}"
    columns = [f"{column}: {state}" for state, column in operator.columns.items()]
    yield _wrapped(
        f"Key columns: {', '.join(operator.key_columns)}. Then the column of each state: {', '.join(columns)}. "
        "A value is a struct (value, expires_at_ms), a list an array of them, a map an array of (key, value, "
        "expires_at_ms), timers an array of milliseconds."
    )


def _loading(operator: ExportedOperator) -> Iterator[str]:
    yield "Load it in handleInitialState of the processor:"
    keys = ", ".join(f'"{name}"' for name in operator.key_columns)
    yield (
        f'    state = spark.read.parquet("{operator.directory}")\n'
        f"    rows.groupBy({keys}).transformWithState(..., initialState=state.groupBy({keys}))"
    )
    yield _wrapped(
        "A time to live starts over as a state is loaded, because PySpark sets it by itself; leave out what has "
        "expired by then. Timers are registered by handle.registerTimer(ms)."
    )


def _wrapped(text: str, hanging: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
