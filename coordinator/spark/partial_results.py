"""Partial results of an aggregation, as Spark's tasks have them before they would send them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

from ...state.operators.dataframe import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from ...state.aggregation.sql_partials import SqlPartials

_QUERY_EXECUTION: Final = "org.apache.spark.sql.execution.QueryExecution"
_AGGREGATION: Final = "HashAggregate"
_DATA_TYPE: Final = "org.apache.spark.sql.types.DataType"


class PartialResults:
    """Computes partial results of the rows of any number of batch DataFrames with one schema.

    Spark plans an aggregation in two parts: each task combines its rows, and after a shuffle others combine what the
    tasks have. This takes the first part alone, whose rows then need only the shuffle of the operator.
    """

    def __init__(self, rows: DataFrame, partials: SqlPartials) -> None:
        """Make it.

        Args:
            rows: one of the DataFrames.
            partials: what is computed.
        """
        spark = rows.sparkSession
        self._jvm: Any = spark._jvm
        self._by = _seq(spark._jvm, [F.col(quoted(name)) for name in partials.key.names])
        first, *others = (F.expr(function.text) for function in partials.functions)
        self._first, self._others = first._jc, _seq(spark._jvm, others)
        self._schema = spark._jsparkSession.parseDataType(partials.schema.json())

    def of(self, rows: DataFrame) -> DataFrame | None:
        """Return the partial results of a batch DataFrame, with the schema of ``SqlPartials``. No job runs.

        The result is None if Spark plans the aggregation in another way.
        """
        spark = rows.sparkSession
        final = rows._jdf.groupBy(self._by).agg(self._first, self._others).queryExecution().sparkPlan()
        if str(final.nodeName()) != _AGGREGATION:
            return None
        partial = final.child()
        if not getattr(self._jvm, _DATA_TYPE).equalsStructurally(partial.schema(), self._schema, True):
            return None
        ready = getattr(self._jvm, _QUERY_EXECUTION).prepareExecutedPlan(spark._jsparkSession, partial)
        # As Spark makes the DataFrame that it gives to a function of foreachBatch.
        made = spark._jsparkSession.internalCreateDataFrame(ready.execute(), self._schema, False)
        return DataFrame(made, spark)


def _seq(jvm: Any, columns: Sequence[Column]) -> Any:
    return jvm.PythonUtils.toSeq([column._jc for column in columns])
