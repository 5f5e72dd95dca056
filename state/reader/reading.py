"""Reading the state of an operator out of a checkpoint or a savepoint, as a DataFrame."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ...storage.locate import LATEST
from .source import FORMAT, StateSource, select

_knowing: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()
"""By session that knows the data source the Python that Spark runs it with."""
_registering = threading.Lock()


def read_state(
    spark: SparkSession,
    uri: str,
    checkpoint: str | int = LATEST,
    operator: str | None = None,
    state: str | None = None,
) -> DataFrame:
    """Return a state of an operator as it was at a checkpoint: its key columns, and what it held for each key.

    A value state has a row for each key, a list state one for each element, a map state one for each entry; see
    ``stored`` for their columns. The pipeline need not run, nor is it disturbed if it does; should its retention
    drop the checkpoint meanwhile, the read fails. It registers the data source, so that afterwards
    ``spark.read.format("chandy").option("operator", ...).load(uri)`` is the same.

    Args:
        spark: the session.
        uri: a pipeline's folder (``<storage>/<pipeline>``), a storage with one pipeline, or a savepoint's folder.
            Spark's executors must reach it, too.
        checkpoint: "latest", the id of a completed checkpoint, or the URI of a savepoint.
        operator: uid of the operator; may be left out if the checkpoint has only one.
        state: name of the state; may be left out if the operator has only one. "$timers": its timers.

    Raises:
        NothingHereError: there is no such checkpoint.
        NoSuchStateError: it has no such operator or state, or several and none is named.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
    """
    found = select(uri, checkpoint, operator, state)
    register(spark)
    # The latest may be another by the time that Spark looks, and errors come to the caller as they are.
    chosen = checkpoint if str(checkpoint) != LATEST or found.is_savepoint else found.checkpoint
    reader = spark.read.format(FORMAT).option("checkpoint", str(chosen))
    return reader.option("operator", found.state.operator).option("state", found.state.name).load(uri)


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("chandy")`` known to a session.

    Before the first data source of an application Spark looks for others in a Python process. That takes a second,
    which a coordinator leaves to whoever wants to read: its first batch may be awaited.
    """
    with _registering:
        # Spark warns of a data source that takes the place of another, be it the same one.
        python = spark.sparkContext.pythonExec
        if _knowing.get(spark) == python:
            return
        try:
            spark.dataSource.register(StateSource)
        except AnalysisException as error:
            # Spark 4.3 takes a source for known in every later session of the application, though only the first
            # one finds it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        _knowing[spark] = python
