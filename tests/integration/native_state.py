"""Spark's own state, by provider."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

STREAMING = "spark.sql.streaming."
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PROVIDERS = {
    "hdfs": {"stateStore.providerClass": HDFS},
    "rocksdb": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "false",
    },
    "rocksdb-changelog": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "rocksdb-v2": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "false",
        "stateStore.checkpointFormatVersion": "2",
    },
    "rocksdb-changelog-v2": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "stateStore.checkpointFormatVersion": "2",
    },
    "rocksdb-one-store": {
        "stateStore.providerClass": ROCKSDB,
        "stateStore.checkpointFormatVersion": "2",
        "join.stateFormatVersion": "3",
    },
}


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1).json(str(folder))


def join(spark: SparkSession, folder: Path) -> DataFrame:
    left = stream(spark, folder)
    right = stream(spark, folder).select(f.col("id").alias("other"), f.col("k").alias("j"))
    return left.join(right, f.expr("id = other"))
