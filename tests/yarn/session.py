"""A session on the cluster of the tests: client mode, two executors, and nothing of Spark uploaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from ..spark_settings import WITH_EXECUTORS

HOME: Final = Path(pyspark.__file__).parent


def environment(cluster: Path, runtime: Path) -> dict[str, str]:
    """Return what a driver's environment must have before its JVM starts.

    Args:
        cluster: the directory of ``MiniCluster``.
        runtime: Chandy's runtime directory, whose path must be short.
    """
    zips = sorted((HOME / "python" / "lib").glob("*.zip"))
    return {
        "SPARK_HOME": str(HOME),
        "HADOOP_CONF_DIR": str(cluster / "conf"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_ARCHIVES_PATH": ",".join(f"local:{path}" for path in zips),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "CHANDY_RUNTIME_DIR": str(runtime),
    }


def session() -> SparkSession:
    """Return a session with two executors, which run."""
    java = shutil.which("java")
    assert java is not None, "the driver's JVM has one"
    java_home = str(Path(java).resolve().parents[1])
    settings = {
        "spark.submit.deployMode": "client",
        "spark.driver.memory": "600m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "localhost",
        "spark.executor.instances": "2",
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "256m",
        "spark.executorEnv.JAVA_HOME": java_home,
        "spark.yarn.appMasterEnv.JAVA_HOME": java_home,
        "spark.yarn.am.memory": "256m",
        "spark.yarn.am.memoryOverhead": "128m",
        "spark.yarn.jars": f"local:{HOME}/jars/*",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.shuffle.partitions": "2",
        **WITH_EXECUTORS,
    }
    builder = SparkSession.builder.master("yarn").appName("chandy-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made
