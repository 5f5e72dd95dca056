"""Reads the state of an operator in a checkpoint or a savepoint as a DataFrame."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ...storage.checkpoints.locate import LATEST
from ..errors import invalid_argument
from ..format.keys import KeyCodec
from ..format.schema import from_json
from .given_key import key_values, shard_of
from .source import FORMAT, Selection, StateSource, select

_knowing: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()
"""The sessions that know the data source, each with the Python that Spark uses for it."""
_registering = threading.Lock()


def read_state(
    spark: SparkSession,
    uri: str,
    checkpoint: str | int = LATEST,
    operator: str | None = None,
    state: str | None = None,
    *,
    key: Any = None,
    shards: Collection[int] | None = None,
) -> DataFrame:
    """Return a state of an operator at a checkpoint, as a DataFrame with the key columns and the state's columns.

    A value state has a row for each key, a list state a row for each element, a map state a row for each entry; see
    ``stored`` for their columns. The pipeline may run or not, and reading does not disturb it. If its retention drops
    the checkpoint meanwhile, the read fails. This function also registers the data source. Afterwards
    ``spark.read.format("chandy").option("operator", ...).load(uri)`` does the same.

    Args:
        spark: the session.
        uri: a pipeline's folder (``<storage>/<pipeline>``), a storage with one pipeline, or a savepoint's folder.
            Spark's executors must be able to read it as well.
        checkpoint: "latest", the id of a completed checkpoint, or the URI of a savepoint.
        operator: uid of the operator; may be omitted if the checkpoint has only one.
        state: name of the state; may be omitted if the operator has only one. "$timers": its timers;
            "$dead_letters": its dead letters, see ``dead_letter_rows``.
        key: the only key to read: the values of the key columns as a tuple or as a dict by column, or the value itself
            if there is one key column. Only its shard is downloaded, and only its state is decoded. None: all keys.
        shards: the numbers of the shards to read, to look at a part of a large state; None: all.

    Raises:
        NothingHereError: there is no such checkpoint.
        NoSuchStateError: it has no such operator or state, or several and none is named.
        DamagedError, SchemaTooNewError: its manifest cannot be read.
        InvalidPlaceError: the URI names no store.
        DefinitionError: the operator has no such shard, or other key columns.
        StateTypeError: a value of the key does not fit its column.
    """
    # Selects here, so that the caller gets errors as they are.
    found = select(uri, checkpoint, operator, state)
    options = {}
    if key is not None:
        if shards is not None:
            raise invalid_argument("shards", "no shards beside a key, which has one", repr(shards))
        options["key"], own = _located(spark, found, key)
        shards = [own]
    if shards is not None:
        found.within(shards)
        options["shards"] = ",".join(map(str, sorted(shards)))
    register(spark)
    # Names the checkpoint by its id, because another may be the latest by the time Spark reads it.
    chosen = checkpoint if str(checkpoint) != LATEST or found.is_savepoint else found.checkpoint
    reader = spark.read.format(FORMAT).option("checkpoint", str(chosen))
    return reader.options(operator=found.state.operator, state=found.state.name, **options).load(uri)


def _located(spark: SparkSession, selection: Selection, key: Any) -> tuple[str, int]:
    """Return the canonical bytes of a key in hex, and the number of its shard."""
    schema = from_json(selection.state.key_schema)
    values = key_values(schema, key)
    if values is None:
        expected = f"the values of {', '.join(schema.names)}, or one value if there is one key column"
        raise invalid_argument("key", expected, repr(key))
    encoded = KeyCodec(schema).encode(values)
    return encoded.hex(), shard_of(spark, schema, values, len(selection.shards))


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("chandy")`` known to a session.

    Before the first data source of an application, Spark searches for others in a Python process, which takes a second.
    So a coordinator does not register this one by itself: that would delay its first batch.
    """
    with _registering:
        # Spark warns when a data source replaces another, even itself.
        python = spark.sparkContext.pythonExec
        if _knowing.get(spark) == python:
            return
        try:
            spark.dataSource.register(StateSource)
        except AnalysisException as error:
            # Spark 4.3 reports a source as existing in every later session of the application, although only the
            # first session finds it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
        _knowing[spark] = python
