"""Changes of running aggregates, with results in place of the accumulators that the state has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from ..aggregation.aggregates import Aggregates
from ..format.schema import arrow_schema, from_json, to_json
from .changes import BEFORE, CHANGE, DELETE


@attrs.frozen
class AggregateResults:
    """Turns accumulators into results, in a task."""

    aggregates: Aggregates
    given: tuple[str, ...]
    """The names of the columns of changes, in order."""
    columns: tuple[str, ...]
    """The columns of the accumulators, in the order of ``aggregates.state``."""
    accumulators: tuple[str, ...]
    """Their fields in ``_before``, in the same order."""
    output: str
    """Schema of the rows, as Spark's JSON."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with results."""
        schema = arrow_schema(from_json(self.output))
        for batch in batches:
            found = dict(zip(self.given, batch.columns, strict=True))
            deleted = pc.equal(found[CHANGE], DELETE)
            for name, results in self._results([found.pop(name) for name in self.columns]).items():
                # A count is 0 of nothing, but of a deletion there is none.
                found[name] = pc.if_else(deleted, pa.scalar(None, results.type), results)
            if BEFORE in found:
                found[BEFORE] = self._before(found[BEFORE], schema.field(BEFORE).type)
            columns = [found[field.name].cast(field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _results(self, accumulators: Sequence[pa.Array]) -> dict[str, pa.Array]:
        types = [field.type for field in arrow_schema(self.aggregates.state)]
        # Columns that came through the JVM have the session's time zone.
        cast = [column.cast(type) for column, type in zip(accumulators, types, strict=True)]
        names = [field.name for field in self.aggregates.output]
        return dict(zip(names, self.aggregates.finish(cast), strict=True))

    def _before(self, before: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
        fields = dict(zip((field.name for field in before.type), before.flatten(), strict=True))
        results = self._results([fields[name] for name in self.accumulators])
        columns = [results[field.name].cast(field.type) for field in wanted]
        return pa.StructArray.from_arrays(columns, fields=list(wanted), mask=before.is_null())


def finished(changes: DataFrame, aggregates: Aggregates, value: Mapping[str, str]) -> DataFrame:
    """Return changes of an aggregate's state with results in place of what it has; deletions have none.

    Args:
        changes: rows as ``changes`` has them.
        aggregates: what the operator computes.
        value: the columns of the state's fields, by the names of the fields.
    """
    accumulators = aggregates.state.names
    columns = tuple(value[name] for name in accumulators)
    output = with_results(changes.schema, aggregates, value)
    given = tuple(changes.columns)
    convert = AggregateResults(aggregates, given, columns, tuple(accumulators), to_json(output))
    # Spark takes a dot in a column's name for that of a field, and accumulators have such names.
    return changes.toDF(*(f"column_{at}" for at in range(len(given)))).mapInArrow(convert, output)


def with_results(changes: StructType, aggregates: Aggregates, value: Mapping[str, str]) -> StructType:
    """Return the schema of changes with results in place of all fields of the state, also those of the operator's own.

    Args:
        changes: schema of the changes.
        aggregates, value: as for ``finished``.
    """
    results = [StructField(field.name, field.dataType) for field in aggregates.output]
    first, columns, fields = value[aggregates.state.names[0]], set(value.values()), []
    for field in changes.fields:
        if field.name == first:
            fields += results
        if field.name == BEFORE:
            fields.append(StructField(BEFORE, StructType(results)))
        elif field.name not in columns:
            fields.append(field)
    return StructType(fields)
