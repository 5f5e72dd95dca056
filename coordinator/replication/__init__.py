"""Replicas: copies of a state in other systems, which follow the pipeline from checkpoint to checkpoint.

``coordinator.replicate`` makes a stream of changes (``state.reader.feed``), gives it a format (``formats``), and has
a pipeline of its own write it to the sink (``replicating``). So exactly-once output, restarts and targets that are
away work as in any pipeline. An offset of the stream is the id of a checkpoint (``state.reader.feed_offsets``).
Before Spark plans a batch, the source pins the newest checkpoint. The batch has the differences from the checkpoint
that was read last (``state.reader.changes``), no matter how the pipeline came from the one to the other. When a
checkpoint of the replica's own pipeline completes, the source releases the pins that it no longer needs
(``storage.checkpoints.pins``).
"""
