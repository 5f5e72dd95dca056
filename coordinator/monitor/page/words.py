"""The words of the pages that explain themselves, and the one meaning that each colour has on all of them."""

from __future__ import annotations

from typing import Final

WORDS: Final = {
    # of a checkpoint
    "planning": "The driver chooses the batch at which each query is cut.",
    "collecting": "Queries come to the cut; state hosts write their shards to disk, upload them and acknowledge.",
    "finalizing": "The driver writes the manifest: with it the checkpoint is complete.",
    "duration": "What the checkpoint took from its trigger until its manifest was written, or until it failed.",
    # of a shard
    "start delay": "From the trigger of the checkpoint until the shard's host began with it.",
    "sync": "The host wrote what was in memory to disk. Batches of the shard wait for it.",
    "async": "The host uploaded new files, while batches went on.",
    # of an operator's tasks
    "input": "Tasks wait for rows: what comes before the operator in Spark, and the transfer to Python.",
    "own": "Tasks run the processor: grouping, its code, and turning stored state into values and back.",
    "state": "Tasks wait for state hosts to read and write state.",
    "output": "Tasks wait for Spark to take their rows: what comes after the operator.",
    # of a recovery
    "waiting": "From the failure until the restart began: the delay of the restart strategy, and attempts that failed.",
    "stopping": "To stop the queries that were still running.",
    "restoring": "To restore the queries' progress and their working directories.",
    "starting": "For Spark to start the queries.",
    "first batch": "From there to the first commit: planning by Spark, restoring shards, and the batch itself.",
    # of the pipeline
    "driver": "The Python program with the coordinator. A pipeline has one that leads, and each start is another one.",
    "generation": "The number of the driver: each one that takes the pipeline over has the next one, and those before "
    "it can complete nothing any more.",
    "checkpoints": "Consistent cuts over all queries, from which the pipeline can restart. Counted since this driver "
    "leads.",
    "restores": "How often this driver has taken the pipeline back to a checkpoint.",
    "shards": "The parts into which operators divide their keys. Each has a RocksDB of its own on a state host.",
    "state hosts": "Processes beside executors that keep shards.",
    "replica": "A table or topic outside that follows the state of an operator, from checkpoint to checkpoint.",
    "shadow": "Another version of the program, which runs the same batches beside this one and is compared.",
    "verdict": "Whether all output and state was equal, or since which batch not.",
    "channel": "What one query writes and another one reads. A checkpoint cuts it for both at one place.",
    "rows a second": "Rows from sources (filled) and to sinks (line), where the sink says. Batches that run again "
    "count again.",
    "behind the sources": "Offsets between what was read and the end of the partition that is furthest behind, where a "
    "source reports it, as Kafka does.",
    "batch": "What a micro-batch took on average, from the question for new data to the commit.",
    "checkpoint": "What a checkpoint took on average, by phase: planning, collecting, finalizing.",
    "size": "Bytes that a restore of the checkpoint reads.",
    "new bytes": "Bytes that a checkpoint wrote on average. It shares the rest with earlier ones.",
    "all phases": "What the checkpoint took. Its phases are not stored.",
    "failure": "Something has failed: a checkpoint, a query, a host.",
    "recovery": "The pipeline runs again after a failure.",
}
"""What each means, in a sentence or two."""

MEANINGS: Final = {
    **dict.fromkeys(("start delay", "input", "output", "waiting"), "waits"),
    **dict.fromkeys(("own", "first batch", "rows", "batches"), "works"),
    **dict.fromkeys(("collecting", "sync", "async", "state", "restoring", "sizes"), "stores"),
    **dict.fromkeys(("planning", "finalizing", "stopping", "starting"), "drives"),
    **dict.fromkeys(("failed", "failure", "has ended"), "failed"),
    **dict.fromkeys(("recovery", "runs"), "well"),
    "restarts": "warns",
}
"""The meaning of the colour in which something is drawn: somebody waits, code computes, state is stored or read, the
driver acts; and it has failed, is well, or is about to be. What has none is grey."""
LIGHTER: Final = {"finalizing", "async", "output", "starting"}
"""What is drawn lighter, because something else of the same meaning is beside it."""


def look(name: str) -> str:
    """Return the classes by which something of this name is drawn."""
    return f"{MEANINGS.get(name, 'plain')}{' lighter' if name in LIGHTER else ''}"
