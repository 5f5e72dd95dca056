"""A Spark driver without Chandy, in a process of its own: ``python -m benchmarks.recovery.spark_driver``.

After an exception it starts the query again on its checkpoint, as a user would.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..lives import say

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT: Final = "checkpoint"
"""The query's checkpoint directory, below the contestant's folder."""
_POLL_SECONDS: Final = 0.05
_STATE_STORE: Final = "spark.sql.streaming.stateStore"


class Kind(enum.StrEnum):
    """The kind of the query's state."""

    STATELESS = "Spark without state"
    ROCKSDB = "Spark RocksDB"
    CHANGELOG = "Spark RocksDB, changelog"

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings in addition to those of all contestants on Spark."""
        return {
            f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": str(self is Kind.CHANGELOG).lower(),
            f"{_STATE_STORE}.maintenanceInterval": "5s",
        }


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--kind", type=click.Choice([str(kind) for kind in Kind]), required=True)
def main(folder: Path, kind: str) -> None:
    """Run the query until killed."""
    say("process")
    # Imported after the event ``process``, because imports are part of the cost of a new process.
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F  # noqa: N812 (its usual name)

    from . import query as common

    place = common.Place(folder, f"{CHECKPOINT}/commits")
    spark = common.session(place, **Kind(kind).settings)
    say("session")
    while True:
        rows = common.stream(spark, place)
        if kind == Kind.STATELESS:
            writer = rows.repartition(2, "k").writeStream.outputMode("append")
        else:
            writer = rows.groupBy("k").agg(F.max("v").alias("v")).writeStream.outputMode("update")
        writer = common.into_sink(writer, place).option("checkpointLocation", str(folder / CHECKPOINT))
        try:
            _watch(writer.start())
        except StreamingQueryException:
            say("failed")


def _watch(query: StreamingQuery) -> None:
    """Send the start of the first batch once it has committed. Raise the error with which the query ends."""
    told = False
    # It accepts fractions of a second, although its annotation says otherwise.
    while not query.awaitTermination(_POLL_SECONDS):  # type: ignore[arg-type]
        # An idle query sends reports, too.
        begun = (
            [one["timestamp"] for one in query.recentProgress if one["numInputRows"] > 0] if not told else []
        )
        if begun:
            told = True
            say("first batch", timestamp=begun[0])


if __name__ == "__main__":
    main()
