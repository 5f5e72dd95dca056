"""Reads the rows out of dead letters, to feed them back once the code is mended."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ..errors import invalid_argument
from ..format.schema import Schemas, arrow_schema, from_json, to_json
from ..operators.dead_letters import rows_of


def dead_letter_rows(letters: DataFrame, schema: StructType | str) -> DataFrame:
    """Return the rows of dead letters, as the operator was given them.

    Args:
        letters: what ``read_state(..., state="$dead_letters")`` has returned, or a part of it.
        schema: of the rows: of the DataFrame that the operator runs over, as StructType or DDL. A row of an older
            schema is null in a column that it does not have, and loses one that ``schema`` does not have.

    Raises:
        DefinitionError: ``letters`` has no column ``rows``, or ``schema`` is none.
    """
    # A key column may have the name, see ``stored``.
    name = next((name for name in ("state_rows", "rows") if name in letters.columns), None)
    if name is None:
        expected = "what read_state(..., state='$dead_letters') returns"
        raise invalid_argument("letters", expected, f"columns {', '.join(letters.columns)}")
    resolved = Schemas().resolve(schema, "dead letters")
    rows = letters.select(letters[name].alias("rows"))
    return rows.mapInArrow(_Unpack(to_json(resolved)), resolved)


@attrs.frozen
class _Unpack:
    """A function for ``mapInArrow``."""

    schema: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = arrow_schema(from_json(self.schema))
        for batch in batches:
            for data in batch.column("rows").drop_null().to_pylist():
                yield from _fitted(rows_of(data), types).to_batches()


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
