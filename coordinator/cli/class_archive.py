"""`chandy class-archive`: writes an archive of Java classes, with which drivers start faster.

Java maps such an archive into memory, and neither reads nor verifies the classes that Spark's jars have (class data
sharing: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). It passes over an archive that is
missing, or that was written by another version of Java or with other jars.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from .group import check_java, main
from .printing import failure, say

_END_SECONDS: Final = 600.0
"""How long Java may take to write the archive; on a busy machine it takes more than a minute."""


@main.command("class-archive")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE")
def class_archive(path: Path) -> None:
    """Write an archive of Java classes, with which drivers start faster. It takes a minute.

    FILE is where it goes: two hundred megabytes, for the Java and the PySpark that run here.
    """
    check_java()
    path = path.resolve()
    if not os.access(path.parent, os.W_OK):
        raise click.BadParameter(f"expected a file in a directory that can be written to, found {path}")
    write(path)
    say(f"Written. Drivers use it with JDK_JAVA_OPTIONS=-XX:SharedArchiveFile={path}")


def write(path: Path, options: str = "") -> None:
    """Run a small pipeline, and write what Java has loaded by its end.

    Args:
        path: of the archive; an older one is replaced.
        options: further options of Java.

    Raises:
        ClickException: Java has written no archive.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["JDK_JAVA_OPTIONS"] = (
        f'{options} -Xlog:disable -Xlog:all=error "-XX:ArchiveClassesAtExit={new}"'
    )
    with tempfile.TemporaryDirectory(prefix="chandy-") as folder:
        code = _run(Path(folder))
    if not new.exists():
        raise failure(
            f"Java has written no archive to {new}, and ended with {code}: look at its output above"
        )
    new.replace(path)


def _run(folder: Path) -> int:
    """Run a query that reads and writes files and has state, and return the exit code of Java."""
    from pyspark.sql import SparkSession

    from ..config import CheckpointConfig
    from ..coordinator import CheckpointCoordinator
    from ..spark.session import end

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    spark.range(4).selectExpr("id", "cast(id as string) as k").write.json(str(folder / "in"))
    config = CheckpointConfig(interval=None, cache_dir=str(folder / "cache"))
    with CheckpointCoordinator(
        spark, pipeline="p", storage=str(folder / "storage"), config=config
    ) as coordinator:
        rows = spark.readStream.schema("id long, k string").json(str(folder / "in"))
        # For its state, Spark's own operator loads what it has for all of them.
        counts = coordinator.aggregate(
            rows.dropDuplicates(["id"]), by=["k"], uid="counts", shards=1, n=("*", "count")
        )
        writer = counts.writeStream.foreachBatch(
            lambda frame, batch: frame.write.parquet(str(folder / "out" / str(batch)))
        )
        coordinator.start(writer.trigger(availableNow=True), name="q").awaitTermination()
    return end(spark, _END_SECONDS)
