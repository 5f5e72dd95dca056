"""Checks of what the coordinator runs on: PySpark 4.1 to 4.3, Java 17 or newer, a session with a JVM."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

OLDEST, NEWEST = (4, 1), (4, 3)
"""Versions of Spark, major and minor, whose checkpoint directories Chandy can read and write."""
JAVA = 17
"""Oldest version of Java that this Spark runs on."""


def check_environment(environ: Mapping[str, str] = os.environ) -> None:
    """Check PySpark and Java, before a session is created.

    Raises:
        SetupError: PySpark is missing or is not 4.1 to 4.3, or Java is missing or is older than 17.
    """
    check_pyspark(_pyspark_version())
    _check_java(environ)


def check_session(spark: SparkSession) -> None:
    """Check that the session's driver is this process.

    Raises:
        SetupError: the session is a Spark Connect client, which has neither a plan nor a JVM here.
    """
    kind = type(spark)
    if kind.__module__.startswith("pyspark.sql.connect"):
        raise SetupError(
            "the session cannot be used",
            "a SparkSession whose driver is this process",
            f"a Spark Connect session ({kind.__module__}.{kind.__qualname__})",
            "run the pipeline in the driver: create the session by SparkSession.builder.master(...) instead of "
            ".remote(...)",
        )


def check_pyspark(version: str | None) -> None:
    """Check a version of PySpark; None stands for PySpark that is not installed.

    Raises:
        SetupError: it is not 4.1 to 4.3.
    """
    numbers = re.match(r"(\d+)\.(\d+)\.", version or "")
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        raise SetupError(
            "this PySpark cannot be used",
            "PySpark 4.1 to 4.3",
            version or "no PySpark",
            'install it: pip install "pyspark>=4.1,<4.4"',
        )


def java_major(text: str) -> int | None:
    """Return the major version from the output of ``java -version``; None if there is none in it.

    Java 8 and older write 1.8 and so on.
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
        raise _unusable_java(program, f"none ({error})") from error
    text = done.stderr + done.stdout
    major = java_major(text)
    if major is None or major < JAVA:
        raise _unusable_java(program, text.strip().splitlines()[0] if text.strip() else "no answer")


def _unusable_java(program: str, found: str) -> SetupError:
    return SetupError(
        f"Spark cannot run on {program}",
        f"Java {JAVA} or newer",
        found,
        f"install a JDK of version {JAVA} or 21, such as openjdk-{JAVA}-jre-headless, and set JAVA_HOME to it or put "
        "its java on PATH",
    )
