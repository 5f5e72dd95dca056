"""Running aggregates over Arrow columns: functions, accumulators, and partial aggregation before the shuffle.

A new function is an entry of ``FUNCTIONS`` in ``aggregates``: the types that it takes, its accumulator, how that is
finished, the type of the result. A new ``Accumulator`` has ``from_rows`` and ``merge`` over whole columns, in any
grouping; its fields are the operator's state, so they change only as ``format.evolution`` permits. If it can be made
of the buffer of a function of Spark's SQL, ``sql_partials`` says how. ``tests/integration/test_aggregate.py``
compares each function with Spark's own.
"""
