"""Reads the rows out of dead letters, to feed them back once the code is mended."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Literal

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructType

from ..errors import invalid_argument
from ..format.schema import Schemas, arrow_schema, from_json, to_json
from ..operators.dataframe import quoted
from ..operators.dead_letters import INITIAL_STATE, rows_of


def dead_letter_rows(
    letters: DataFrame,
    schema: StructType | str,
    *,
    keep: Collection[str] = (),
    of: Literal["input", "initial state"] = "input",
) -> DataFrame:
    """Return the rows of dead letters, as the operator was given them.

    Args:
        letters: what ``read_state(..., state="$dead_letters")`` has returned, or a part of it, or what
            ``stream_changes`` has. A letter that is deleted there, because it is old, has no rows.
        schema: of the rows: of the DataFrame that the operator runs over, as StructType or DDL. A row of an older
            schema is null in a column that it does not have, and loses one that ``schema`` does not have.
        keep: columns of ``letters`` to have before those of the rows, such as "time" and "error".
        of: whose rows to return: those of the operator's input, or those of its initial state.

    Raises:
        DefinitionError: ``letters`` has no column ``rows`` or ``place`` or lacks one to keep, ``schema`` is none, or
            has such a column, too; or there is no such ``of``.
    """
    if of not in ("input", "initial state"):
        raise invalid_argument("of", "'input' or 'initial state'", repr(of))
    name, place = (_column(letters, column) for column in ("rows", "place"))
    letters = letters.filter(letters[quoted(place)].startswith(INITIAL_STATE) == F.lit(of == "initial state"))
    if unknown := [kept for kept in keep if kept not in letters.columns]:
        raise invalid_argument("keep", f"some of {', '.join(letters.columns)}", ", ".join(unknown))
    resolved = Schemas().resolve(schema, "dead letters")
    own = {field.lower() for field in resolved.names}
    if taken := [kept for kept in keep if kept.lower() in own]:
        raise invalid_argument("keep", "columns that the rows do not have", ", ".join(taken))
    kept = [letters[quoted(column)] for column in keep]
    wanted = StructType([*letters.select(kept).schema.fields, *resolved.fields])
    # The last column is decoded.
    return letters.select(*kept, letters[quoted(name)]).mapInArrow(_Unpack(to_json(resolved)), wanted)


def _column(letters: DataFrame, column: str) -> str:
    """Return the name under which letters have a column; a key column may have its own, see ``stored``."""
    for name in (f"state_{column}", column):
        if name in letters.columns:
            return name
    expected = f"the column {column!r} of what read_state(..., state='$dead_letters') returns"
    raise invalid_argument("letters", expected, f"columns {', '.join(letters.columns)}")


@attrs.frozen
class _Unpack:
    """A function for ``mapInArrow``."""

    schema: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = arrow_schema(from_json(self.schema))
        for batch in batches:
            for number, data in enumerate(batch.column(batch.num_columns - 1).to_pylist()):
                if data is not None:
                    rows = _fitted(rows_of(data), types)
                    kept = [_repeated(column[number], len(rows)) for column in batch.columns[:-1]]
                    columns = [*kept, *rows.columns]
                    yield from pa.Table.from_arrays(
                        columns, names=[*batch.schema.names[:-1], *types.names]
                    ).to_batches()


def _repeated(value: pa.Scalar, times: int) -> pa.Array:
    return pa.repeat(value, times) if value.is_valid else pa.nulls(times, value.type)


def _fitted(rows: pa.Table, types: pa.Schema) -> pa.Table:
    known = set(rows.schema.names)
    columns = [
        _cast(rows, field) if field.name in known else pa.nulls(len(rows), field.type) for field in types
    ]
    return pa.Table.from_arrays(columns, schema=types)


def _cast(rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    column = rows.column(field.name)
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        expected = f"types that the rows of dead letters fit: column {field.name!r} is {column.type}"
        raise invalid_argument("schema", expected, f"{field.type} ({error})") from None
