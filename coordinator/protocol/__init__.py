"""The protocol of a pipeline: a pure state machine and decisions over values; no I/O, no thread, no clock.

``PipelineStateMachine.handle(event, now)`` returns an answer and instructions. Six parts own its data:
``Membership`` the hosts, ``Placement`` the shards on them, ``Admission`` the requests for checkpoints, ``Emptying``
the requests to drain machines, ``Failover`` the pipeline's life and its failures, ``Checkpoints`` the rest. A
checkpoint passes through them like this:

1. ``CheckpointRequested`` enters the queue; ``requests.startable`` says whether the checkpoint may start.
2. ``ChooseCut``: for each query, downstream first (``barrier.cut``), the executor reads the newest planned batch from
   the disk and places the barrier behind it in the query's ``Gate`` (``barrier.gate``).
3. A query's cut has committed when its commit log says so, or when a host asks for the batch after it. From then on
   it is known which host owns which shard. Orders go out twice: in the answer to "begin batch" and through the stream
   of orders. Whichever arrives first takes the snapshot (``state.host.snapshot_orders``).
4. A host freezes what has changed since the last snapshot, at once. It writes, links and uploads the files in the
   background (``state.host.snapshot_manager``), while the next batches run.
5. When all shards and the progress of all queries are durable, one thread commits the manifest
   (``execution.commit``): it creates it exclusively, then looks for a higher generation. Only then does the future
   resolve, and does retention drop older checkpoints.

After a restore, a checkpoint takes over shards that no host has opened yet. ``QueryState.unread`` lists the files of
the restored checkpoint that nobody has read again; while there are any, manifests say ``unverified``, and retention
gives up no verified checkpoint for such a one.

``LockedProtocol`` records every event with its id and its time. ``event_log.replay`` runs a log through a fresh state
machine and comes to the same instructions, because chance and time come in with the events. ``invariants`` says what
always holds.
"""
