"""Keeps the pipeline's queries running: restarts in place, restores from a checkpoint, recovers locally.

1. A failure enters the protocol as an event of ``protocol.decisions``, and ``protocol.failover`` decides about it: a
   run of a query has ended, shards cannot be opened, another coordinator takes over. What the protocol notices by
   itself, such as a lost host or too many failed checkpoints, it decides in the same step.
2. A task's error carries a ``FailureCode`` in a note that only processes of this pipeline can write
   (``state.failure_marks``), because Spark hands the driver nothing but text.
3. The decision: restart in place, go back (with or without resuming from changelogs), fail for good, or do nothing.
   The delay of the restart strategy comes first. Failures that arrive during the delay belong to it.
4. ``rollback.go_back`` has the steps back in their order, and the reason for each place. ``pipeline_rollback`` takes
   them with Spark and the store.
"""
