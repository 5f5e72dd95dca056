"""Checks for what the coordinator runs on: PySpark 4.3, Java 17, a session whose driver is here."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import MissingJavaError, SparkConnectError, UnsupportedSparkError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

SPARK = (4, 3)
"""Major and minor version of Spark whose checkpoint directory Chandy reads and writes."""
JAVA = 17
"""The oldest Java that this Spark runs on."""


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Check PySpark's version and that a Java is there, before a session is made.

    Raises:
        UnsupportedSparkError: PySpark is missing or not 4.3.x.
        MissingJavaError: no Java, or one older than 17.
    """
    check_pyspark(_pyspark_version())
    _check_java(environ)


def check_session(spark: SparkSession) -> None:
    """Check that the session's driver is this process.

    Raises:
        SparkConnectError: it is a Spark Connect client.
    """
    kind = type(spark)
    if kind.__module__.startswith("pyspark.sql.connect"):
        raise SparkConnectError(f"{kind.__module__}.{kind.__qualname__}")


def check_pyspark(version: str | None) -> None:
    """Check a version of PySpark; None: there is none.

    Raises:
        UnsupportedSparkError: it is not 4.3.x.
    """
    numbers = re.match(r"(\d+)\.(\d+)\.", version or "")
    if numbers is None or (int(numbers[1]), int(numbers[2])) != SPARK:
        raise UnsupportedSparkError(version or "no PySpark")


def java_major(text: str) -> int | None:
    """Return the major version in what ``java -version`` prints, None if there is none.

    Java 8 and older call themselves 1.8 and so on.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major


def _pyspark_version() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _check_java(environ: Mapping[str, str]) -> None:
    # The same choice that spark-class makes.
    home = environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=60, env=dict(environ)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingJavaError(program, f"none ({error})") from error
    text = done.stderr + done.stdout
    major = java_major(text)
    if major is None or major < JAVA:
        raise MissingJavaError(program, text.strip().splitlines()[0] if text.strip() else "no answer")
