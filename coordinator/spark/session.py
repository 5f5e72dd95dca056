"""What the coordinator reads from a Spark session and sets in it: the driver's address, the workers' Python."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

from py4j.protocol import Py4JError, Py4JJavaError

from ...state.local.processes import Process
from ...state.operators import daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


P = ParamSpec("P")
T = TypeVar("T")

LOOPBACK: Final = "127.0.0.1"
DAEMON: Final = "spark.python.daemon.module"
"""Spark's setting for the module that starts its Python workers."""


def use_this_python(spark: SparkSession) -> None:
    """Make local workers use this interpreter, and the PySpark that is installed in it.

    PySpark uses the ``python3`` on PATH. If a virtual environment is used without being activated, that is another
    Python, without Chandy. What the user has set stays.
    """
    if not is_local_mode(spark):
        return
    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    if is_this_python(context.pythonExec):
        # Spark reads this setting whenever it needs a worker. PySpark cannot change it once the session exists.
        context._jsc.sc().conf().setIfMissing(DAEMON, daemon.__name__)


def is_this_python(command: str) -> bool:
    """Return whether a Python command starts the interpreter of this process, with the same packages.

    Virtual environments link to one file: the directory tells them apart, not the name.
    """
    found = shutil.which(command)
    own = Path(sys.executable)
    return found is not None and Path(found).parent == own.parent and own.samefile(found)


def inherited(spark: SparkSession, call: Callable[P, T]) -> Callable[P, T]:
    """Return a function for another thread to call, whose jobs have this thread's pool, tags and other properties."""
    from pyspark import inheritable_thread_target

    return cast("Callable[P, T]", inheritable_thread_target(spark)(call))


def is_local_mode(spark: SparkSession) -> bool:
    """Return whether driver and executor are one process; in ``local-cluster`` mode they are not."""
    return re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)) is not None


def is_stopped(spark: SparkSession) -> bool:
    """Return whether the session was stopped, here or in the JVM; False if the JVM does not tell."""
    java = spark.sparkContext._jsc
    return java is None or answer(lambda: bool(java.sc().isStopped()), lambda error: False)


def answer(ask: Callable[[], T], otherwise: Callable[[Exception], T]) -> T:
    """Return what the JVM answers, or something else if it has ended.

    Args:
        ask: asks it, by py4j.
        otherwise: takes the error of a connection that cannot be made or ends without an answer.
    """
    try:
        return ask()
    except Py4JJavaError:
        # It lives, and has raised this.
        raise
    except (OSError, Py4JError) as error:
        return otherwise(error)


def java_process(spark: SparkSession) -> Process:
    """Return the JVM that Spark runs in, which is on this machine."""
    return Process.of(int(_java(spark).lang.ProcessHandle.current().pid()))


def end(spark: SparkSession, timeout: float) -> int:
    """Stop the session and the JVM that this process has started for it; return the JVM's exit code.

    Args:
        spark: the session.
        timeout: seconds that the JVM may take; then it is killed.
    """
    java: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    # Java ends with what it reads.
    assert java.stdin is not None, "PySpark starts it with a pipe"
    java.stdin.close()
    try:
        return java.wait(timeout)
    except subprocess.TimeoutExpired:
        java.kill()
        return java.wait()


def clock_of_java(spark: SparkSession) -> Callable[[], object]:
    """Return a function that asks the JVM for the time, in one request: it answers, or does not."""
    system = _java(spark).lang.System
    return lambda: system.nanoTime()


def _java(spark: SparkSession) -> Any:
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a classic session has one"
    return jvm.java


def driver_host(spark: SparkSession) -> str:
    """Return the address at which executors reach this driver: loopback in local mode."""
    if is_local_mode(spark):
        return LOOPBACK
    return str(spark.sparkContext.getConf().get("spark.driver.host", socket.gethostname()))


def bind_address(spark: SparkSession) -> str:
    """Return the address that the driver listens on. In a container it need not be the one that executors use."""
    if is_local_mode(spark):
        return LOOPBACK
    return str(spark.sparkContext.getConf().get("spark.driver.bindAddress", driver_host(spark)))


def runs_query(spark: SparkSession, query_id: str) -> bool:
    """Return whether a query goes on from the checkpoint with this id, in any session of the application."""
    java = spark._jvm.java.util.UUID  # type: ignore[union-attr]
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    return bool(running.containsKey(java.fromString(query_id)))
