"""A driver that reads Kafka, which tests run as a process of its own, because it needs Spark's connector.

``python -m tests.integration.kafka_driver <options as JSON>``: events go to stdout; commands come on stdin, one a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from benchmarks.upgrade_demo import flow
from chandy import ChandyError, CheckpointConfig, CheckpointCoordinator, KafkaSink, PostgresSink, Shadow
from chandy.coordinator import CheckpointedQuery, NoRestart
from chandy.coordinator.spark import plan

from ..spark_settings import LOCAL
from ..waiting import DEADLINE, eventually
from . import support
from .drivers import EVENT, say
from .support import TOTALS, Totals

PIPELINE, QUERY = "fromkafka", "totals"
RECORD = "k string, v long"
FLIGHT = "carrier string, aircraft string, dep_delay int"
REAL_TIME = {
    "spark.sql.streaming.realTimeMode.minBatchDuration": "1s",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state."
    "RocksDBStateStoreProvider",
}
"""What a real-time query with state of Spark's own needs."""


# --- the parent's side --------------------------------------------------------------------------------------


@attrs.define
class KafkaDriver:
    """A driver's process, and what it has told so far."""

    folder: Path
    options: dict[str, Any]
    events: list[list[str]] = attrs.field(factory=list)
    process: subprocess.Popen[str] = attrs.field(init=False)
    listener: threading.Thread = attrs.field(init=False)

    @property
    def log(self) -> Path:
        return self.folder / "driver.log"

    def __enter__(self) -> Self:
        # Short: sockets are in it, and pytest's own folders have long names.
        environment = os.environ | {"CHANDY_RUNTIME_DIR": str(self.folder / "r")}
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.kafka_driver", json.dumps(self.options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                process_group=0,
            )
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.listener.join(DEADLINE)

    def kill(self) -> None:
        """Kill it with its JVM and its Python workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def heard(self, event: str) -> list[str]:
        """Wait for an event, and forget it and those before it; return its words."""

        def found() -> bool:
            names = [words[0] for words in list(self.events)]
            is_there = event in names
            assert is_there or "refused" not in names, self.events
            assert is_there or self.process.poll() is None, (event, self.log.read_text()[-5000:])
            return is_there

        eventually(found, event)
        at = next(at for at, words in enumerate(self.events) if words[0] == event)
        words = self.events[at]
        del self.events[: at + 1]
        return words[1:]

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(EVENT):
                self.events.append(json.loads(line[len(EVENT) :]))


# --- the driver's side --------------------------------------------------------------------------------------


def session(jars: Sequence[str], folder: Path, threads: int) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{threads}]")
        .config(map=REAL_TIME)
        .config("spark.jars", ",".join(jars))
        .config(map=LOCAL)
        .config("spark.driver.memory", "512m")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def records(spark: SparkSession, options: dict[str, Any], schema: str = RECORD, **more: str) -> DataFrame:
    """The records of the topic."""
    reader = spark.readStream.format("kafka").options(**options["reader"] | more)
    rows = reader.load().selectExpr(f"from_json(cast(value AS string), '{schema}') AS record")
    return rows.select("record.*")


def begin_flights(
    coordinator: CheckpointCoordinator, spark: SparkSession, options: dict[str, Any], version: str
) -> CheckpointedQuery:
    """Kafka, a version of the totals of flights, PostgreSQL."""
    totals = coordinator.transform_with_state(
        records(spark, options, FLIGHT),
        key=["carrier", "aircraft"],
        processor=flow.VERSIONS[version](),
        output=flow.OUTPUT,
        uid="totals",
        shards=4,
    )
    sink = PostgresSink(conninfo=options["postgres"], table=options["out"], uid="postgres")
    return coordinator.start(totals.writeStream, sink=sink, name=QUERY)


def begin(
    coordinator: CheckpointCoordinator, spark: SparkSession, options: dict[str, Any]
) -> CheckpointedQuery:
    """Kafka, keyed state, Kafka, or nothing if there is no topic for the output."""
    if options.get("postgres"):
        return begin_flights(coordinator, spark, options, "old")
    if options.get("real_time"):
        counts = records(spark, options).groupBy("k").count()
        rows = counts.selectExpr("k AS key", "to_json(struct(count AS n)) AS value").writeStream
        rows = rows.format("kafka").option(
            "kafka.bootstrap.servers", options["reader"]["kafka.bootstrap.servers"]
        )
        rows = rows.option("topic", options["out"]).outputMode("update").trigger(realTime="1 second")
        return coordinator.start(rows, name=QUERY)
    totals = coordinator.transform_with_state(
        records(spark, options),
        key=["k"],
        processor=Totals(),
        output=TOTALS,
        uid="totals",
        shards=4,
    )
    if options["out"] is None:
        return coordinator.start(totals.writeStream.format("noop"), name=QUERY)
    messages = totals.selectExpr("k AS key", "to_json(struct(n, total)) AS value")
    sink = KafkaSink(
        bootstrap_servers=options["reader"]["kafka.bootstrap.servers"], topic=options["out"], timeout="30 s"
    )
    return coordinator.start(messages.writeStream, sink=sink, name=QUERY)


def run(options: dict[str, Any]) -> None:
    cloudpickle.register_pickle_by_value(support)
    cloudpickle.register_pickle_by_value(flow)
    logging.basicConfig(level="INFO", stream=sys.stderr)
    folder = Path(options["folder"])
    # All tasks of a real-time query run at the same time.
    spark = session(options["jars"], folder, 4 if options.get("real_time") else 2)
    config = CheckpointConfig(
        interval=None,
        restart=NoRestart(),
        changelog=False,
        cache_dir=str(folder / "cache"),
        record_batches="postgres" in options,
    )
    coordinate = partial(
        CheckpointCoordinator, spark, pipeline=PIPELINE, storage=str(folder / "store"), config=config
    )
    coordinator, shadows = coordinate(), dict[str, CheckpointCoordinator]()
    tell("coordinator", coordinator.restored.id if coordinator.restored else 0)
    query: CheckpointedQuery | None = None
    for line in sys.stdin:
        match json.loads(line):
            case ["start"]:
                try:
                    query = begin(coordinator, spark, options)
                except ChandyError as error:
                    tell("refused", type(error).__name__, str(error), len(spark.streams.active))
                else:
                    tell("started")
            case ["checkpoint"]:
                assert query is not None
                query.processAllAvailable()
                tell("checkpoint", coordinator.checkpoint().result(DEADLINE).id)
            case ["checkpoint as it is"]:
                tell("checkpoint", coordinator.checkpoint().result(DEADLINE).id)
            case ["shadow", version]:
                shadows[version] = coordinate(shadow=Shadow(name=version))
                begin_flights(shadows[version], spark, options, version)
                tell("shadow")
            case ["switch", version]:
                coordinator.switch(version)
                coordinator = shadows.pop(version)
                (query,) = coordinator.queries
                tell("switched")
            case ["process"]:
                assert query is not None
                query.processAllAvailable()
                tell("processed")
            case ["facts"]:
                first, second = records(spark, options), records(spark, options, failOnDataLoss="false")
                both = first.union(second).union(first)
                found = plan.facts(both.writeStream).sources
                tell("facts", *([one.name, one.replayable, dict(one.options)] for one in found))
            case ["stop"]:
                coordinator.stop()
                tell("stopped")


def tell(*words: object) -> None:
    say(json.dumps(words))


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
