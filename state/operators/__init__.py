"""The engine of keyed operators: sends rows to shards, shards to tasks, and keys with their states to processors.

A batch passes through an operator like this:

1. In Spark, ``dataframe`` adds the shard of each row, ``pmod(xxhash64(key), shards)``, and ``repartitionById`` sends
   the row to the partition of that shard. Partitions are contiguous ranges of shards (``shard_ranges``), so q tasks
   serve what p tasks served. Aggregates combine rows before the shuffle (``aggregation.partial_aggregation``) and
   pack thousands of them into one value (``shuffle_packing``).
2. The task (``barrier.task``) asks its state host to begin the batch. The host answers once all barriers ahead of the
   batch have been passed; its answer has the times of the batch. Only then does the task pull rows.
3. ``engine`` groups all rows by key without a Python call per row (``grouping``). Keys become bytes
   (``format.keys``), which are equal exactly if Spark's GROUP BY takes the keys for equal.
4. For each chunk of keys (``chunks``), the engine fetches their states in one exchange and calls
   ``Operator.process``, which yields output and puts changes. If the user's code fails, ``attempts`` either fails the
   task, or forgets the changes and tries the keys by halves until the failing ones are alone (``dead_letters``).
5. ``Operator.finish`` handles due timers and expired state. Then all changes go to the host, which stages them.

``Operator`` and ``OperatorSpec`` are all that a kind of operator implements. There are two: ``ProcessorOperator``,
with a ``Style`` for rows and one for pandas, and ``ArrowOperator``. An aggregate is an ``ArrowProcessor`` over
accumulators.
"""
