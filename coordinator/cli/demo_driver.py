"""The driver of `chandy demo`: adds up numbers by their last digit, and says what happens, a line of JSON each."""

from __future__ import annotations

import json
import threading
from typing import Any, Final

NUMBERS: Final = 1_000
"""How many numbers a batch has: those after the numbers of the batch before, from 0."""


def totals_of(batches: int) -> dict[int, tuple[int, int]]:
    """Return how many numbers of the first batches end with each digit, and their sum."""
    n = batches * NUMBERS // 10
    return {digit: (n, 5 * n * (n - 1) + digit * n) for digit in range(10)}


def say(event: str, **facts: Any) -> None:
    """Write a line for the process that watches."""
    print(json.dumps({"event": event, **facts}), flush=True)


def run(storage: str, batches: int) -> None:
    """Run the pipeline until it has taken a number of batches.

    Args:
        storage: where its checkpoints are.
        batches: of all its drivers.
    """
    from pyspark.sql import DataFrame, SparkSession

    from ..config import CheckpointConfig
    from ..coordinator import CheckpointCoordinator
    from ..recovery.pipeline_events import CheckpointCompleted, PipelineEvent

    totals: dict[int, tuple[int, int]] = {}
    is_done = threading.Event()

    def take(rows: DataFrame, batch: int) -> None:
        totals.update({row.digit: (row.numbers, row.sum) for row in rows.collect()})
        say("batch", batches=batch + 1, totals=totals)
        if batch + 1 >= batches:
            is_done.set()

    def tell(event: PipelineEvent) -> None:
        if isinstance(event, CheckpointCompleted):
            say("checkpoint", id=event.checkpoint.id, seconds=event.checkpoint.duration)

    builder = SparkSession.builder.master("local[2]").appName("chandy demo")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    config = CheckpointConfig(interval="1 s", on_event=tell)
    with CheckpointCoordinator(spark, pipeline="digits", storage=storage, config=config) as coordinator:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", NUMBERS).load()
        output = coordinator.aggregate(
            numbers.selectExpr("value % 10 AS digit", "value"),
            by=["digit"],
            uid="totals",
            shards=4,
            numbers=("*", "count"),
            sum=("value", "sum"),
        )
        writer = output.writeStream.foreachBatch(take).trigger(processingTime="200 milliseconds")
        query = coordinator.start(writer, name="totals")
        restored = coordinator.restored
        say("started", restored=None if restored is None else restored.id)
        while not is_done.wait(0.1):
            if query.awaitTermination(0):
                break
    spark.stop()
