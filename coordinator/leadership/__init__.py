"""Which driver leads a pipeline: its lease and record, drivers that wait, and the rule by which one takes over.

1. ``wiring.assembly`` first checks and makes all that needs no generation: the store, the checkpoint, the driver's
   address and its directories. A driver that cannot run fences nobody.
2. ``Catalog.claim`` creates ``generations/<g>.json``: from now on the predecessor completes no checkpoint.
   ``Leadership.take`` records the processes of this driver.
3. ``await_predecessors`` waits until the driver before has stepped down. In the same process that driver is told;
   elsewhere it looks every two seconds (``execution.successor_watch``), and before a batch if its last look is old. A
   fence stops its queries in Spark and ends what it reads. It waits until Spark has ended them, then deletes its
   record. ``election.judge`` decides about one that does not.
4. ``Catalog.start`` creates the start record. Only now is a sink touched.
5. ``Sink.begin`` looks at the mark in the output, which says whose the output is, and puts the output back.
"""
