"""How the Java virtual machines of tests start: hundreds do, and none lives long.

They compile with the fast compiler alone and collect garbage in one thread. What Spark loads comes from an archive of
classes, which is written once for each environment (``python -m tests.java``). With both, a session that runs one
streaming query takes a quarter of the processor time. Java passes over an archive that is missing, or that was written
by another version or with other jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "classes.jsa"
LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"


def configure() -> None:
    """Have all Java virtual machines that this process and its children start use the archive."""
    # The launcher of Java reads it, and splits it at spaces. A value that the user has set stays.
    os.environ.setdefault("JDK_JAVA_OPTIONS", f'{LIGHT} "-XX:SharedArchiveFile={ARCHIVE}"')


def write(path: Path) -> None:
    """Write what Java has loaded at the end of a session in which a streaming query has run."""
    from pyspark.sql import SparkSession

    new = path.with_name(f"{path.name}.{os.getpid()}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JDK_JAVA_OPTIONS"] = f'{LIGHT} "-XX:ArchiveClassesAtExit={new}"'
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[1]")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "1")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        spark.range(4).selectExpr("id", "cast(id as string) as k").write.json(f"{folder}/in")
        rows = spark.readStream.schema("id long, k string").json(f"{folder}/in").groupBy("k").count()
        counts = rows.mapInArrow(lambda batches: batches, "k string, count long")
        writer = counts.writeStream.option("checkpointLocation", f"{folder}/checkpoint").outputMode("update")
        writer.foreachBatch(lambda frame, batch: frame.write.parquet(f"{folder}/out/{batch}")).trigger(
            availableNow=True
        ).start().awaitTermination()
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        java.stdin.close()
        java.wait()
    new.rename(path)


if __name__ == "__main__":
    write(ARCHIVE)
