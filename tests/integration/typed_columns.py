"""Columns of all types, and aggregates of them as Spark has them."""

from __future__ import annotations

import math
import sys
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


TYPES = {
    "b": "if(id % 5 = 0, null, cast(id % 100 - 50 as byte))",
    "i": "if(id % 7 = 0, null, cast(hash(id) as int))",
    "l": "if(id % 3 = 0, null, xxhash64(id) div 1000000)",
    "f": "case when id % 11 = 0 then null when id % 97 = 1 then float('NaN') else cast(hash(id) / 1e6 as float) end",
    "d": "case when id % 11 = 0 then null when id % 89 = 1 then double('NaN') else hash(id) / 1e3 end",
    "small": "if(id % 6 = 0, null, cast(hash(id) / 1000 as decimal(9,2)))",
    "tiny": "if(id % 6 = 0, null, cast(id % 1000 / 100 - 5 as decimal(5,2)))",
    "wide": "if(id % 6 = 0, null, cast(xxhash64(id) as decimal(33,7)) / 7)",
    "s": "if(id % 13 = 0, null, concat('ä', id % 50))",
    "x": "if(id % 13 = 0, null, cast(concat('x', id % 50) as binary))",
    "o": "if(id % 13 = 0, null, id % 2 = 0)",
    "day": "if(id % 4 = 0, null, date_add(date'1969-12-01', cast(id % 90 as int)))",
    "at": "if(id % 4 = 0, null, timestamp_seconds(id * 1000 - 99999))",
    "ntz": "if(id % 4 = 0, null, cast(timestamp_seconds(id * 77777) as timestamp_ntz))",
    "gap": "if(id % 4 = 0, null, make_dt_interval(0, 0, 0, id % 77 - 30))",
}
"""Columns of all types, with nulls, NaN and skew, from the number of a row."""

NUMBERS = ("b", "i", "l", "f", "d", "tiny", "small", "wide")
SPARK = {
    "count": F.count,
    "sum": F.sum,
    "mean": F.avg,
    "min": F.min,
    "max": F.max,
    "variance": F.var_samp,
    "stddev": F.stddev_samp,
    "var_pop": F.var_pop,
    "stddev_pop": F.stddev_pop,
}


def functions_of(column: str) -> list[str]:
    return [f for f in SPARK if column in NUMBERS or f in ("count", "min", "max")]


def same(found: Any, expected: Any) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        return (math.isnan(found) and math.isnan(expected)) or math.isclose(found, expected, rel_tol=1e-9)
    return bool(found == expected)
