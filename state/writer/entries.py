"""The rows in which a state's items travel from the tasks that read a DataFrame to those that write shards.

Items of all states of an operator have the same five columns. Sorted by them, the items of one shard come together, in
it those of one state, in it those of one key, and lists in their order.

| kind of state | ``item`` | ``value`` |
|---|---|---|
| value | empty | packed row |
| list | position, so that its bytes sort as the number | packed row |
| map | packed key | packed row |
| timers | mode and time, as ``keyspace.timed_key`` begins | empty |
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StructType

from ..errors import StateTypeError

SCHEMA: Final = (
    StructType()
    .add("shard", IntegerType())
    .add("state", IntegerType())
    .add("key", BinaryType())
    .add("item", BinaryType())
    .add("value", BinaryType())
)
"""``state`` is the position of the state among those that are written, or ``PROBLEM`` or ``MARK``."""
ARROW: Final = pa.schema(
    [
        ("shard", pa.int32()),
        ("state", pa.int32()),
        ("key", pa.binary()),
        ("item", pa.binary()),
        ("value", pa.binary()),
    ]
)
PROBLEM: Final = -2
"""The number of a row whose value says why the rows cannot be written. It comes before all others of its shard."""
MARK: Final = -1
"""The number of a row that every shard has one of, so that also those are visited that get no items."""


def problem(error: StateTypeError) -> bytes:
    """Return an error as the bytes that ``raised`` reads."""
    return json.dumps([error.what, error.expected, error.found, error.advice]).encode()


def raised(data: bytes) -> StateTypeError:
    """Return the error that ``problem`` was given."""
    return StateTypeError(*json.loads(data))


def batch(columns: Sequence[Any]) -> pa.RecordBatch:
    """Return rows of ``SCHEMA``, given their five columns."""
    arrays = [
        column.cast(field.type) if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, ARROW, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
