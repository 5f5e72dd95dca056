"""Reads the state of an operator in a checkpoint or a savepoint as a DataFrame."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection
from typing import Any, Literal
from weakref import WeakKeyDictionary

import attrs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from ...storage.checkpoints.locate import LATEST, Located, locate
from ...storage.checkpoints.manifest import CheckpointKind, OperatorRecord
from ...storage.codec import to_json
from ..errors import invalid_argument
from ..format.keys import KeyCodec
from ..format.schema import from_json
from ..source_names import named
from .changes import StateChanges
from .feed import Feed
from .given_key import key_values, shard_of
from .names import CHECKPOINT, FORMAT
from .options import chosen
from .selection import Selection, select, selected
from .source import StateSource

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
    name = checkpoint if str(checkpoint) != LATEST or found.is_savepoint else found.checkpoint
    reader = spark.read.format(FORMAT).option("checkpoint", str(name))
    return reader.options(operator=found.state.operator, state=found.state.name, **options).load(uri)


def read_changes(
    spark: SparkSession,
    uri: str,
    start: str | int,
    end: str | int = LATEST,
    operator: str | None = None,
    state: str | None = None,
    *,
    before: bool = False,
) -> DataFrame:
    """Return what has changed of a state from one checkpoint to another; see ``changes`` for the columns.

    A value state has a row for each key that differs, a list state for each position, a map state for each entry.
    Shards whose files are the same are not read; of all others, both sides are.

    Args:
        spark: the session.
        uri: as for ``read_state``.
        start: "latest", the id of a completed checkpoint, or the URI of a savepoint.
        end: the same. It may be older than ``start``: then the changes are those that lead back.
        operator, state: as for ``read_state``, but for timers, of which there are no changes.
        before: whether rows have the value at ``start``, in a column ``_before``.

    Raises:
        NothingHereError: there is no such checkpoint, maybe because retention has dropped it.
        NoSuchStateError: one of them has no such operator or state, or several and none is named.
        StateSchemaError: the columns of the key, the kind of the state or the keys of a map differ.
        DamagedError, SchemaTooNewError, InvalidPlaceError: as for ``read_state``.
    """
    # Selects here, so that the caller gets errors as they are. The ids are those that are latest now.
    old, new = locate(uri, start), locate(uri, end)
    found = selected(new, operator, state).state
    StateChanges(found).parts(old, new)
    register(spark)
    reader = spark.read.format(FORMAT).options(operator=found.operator, state=found.name, before=before)
    return reader.options(changes_from=_named(old, start), changes_to=_named(new, end)).load(uri)


def stream_changes(
    spark: SparkSession,
    uri: str,
    *,
    reader: str,
    operator: str | None = None,
    state: str | None = None,
    before: bool = False,
    shards_per_batch: int | None = None,
    release: Literal["batch", "checkpoint"] = "batch",
) -> DataFrame:
    """Return the changes of a state from now on as a streaming DataFrame; see ``changes`` for its columns.

    The first batch has the whole state of the latest checkpoint, with "read" in ``_change``. Each later batch has the
    changes up to the checkpoint that is the newest then: after it, what the reader has been given makes exactly the
    state at that checkpoint, whatever happened in between, also if the pipeline went back.

    The pipeline keeps the checkpoint that the reader stands at, however long the reader is away. ``chandy readers``
    shows them, and releases those of a reader that never comes back.

    Args:
        spark: the session.
        uri: a pipeline's folder, or a storage with one pipeline. Spark's driver must be able to write to it.
        reader: a name, unique in the pipeline and the same in each life of the query.
        operator, state: as for ``read_state``, but for timers, of which there are no changes.
        before: whether rows have the value before, in a column ``_before``.
        shards_per_batch: how many shards of the first checkpoint a batch reads at most, so that a large state comes in
            several batches; None: all at once.
        release: what makes the reader need an older checkpoint no more. "batch": that Spark has committed the batch
            after it. "checkpoint": that a checkpoint of the reading pipeline has, if a coordinator runs the query.

    Raises:
        NothingHereError: the pipeline has no checkpoint yet.
        DefinitionError: ``uri`` is that of a savepoint, or the state is none that has changes.
        NoSuchStateError, DamagedError, SchemaTooNewError, InvalidPlaceError: as for ``read_state``.
        InvalidNameError: the reader's name cannot be used.
    """
    options = {"reader": reader, "release": release} | _options(before, shards_per_batch)
    # Chooses here, so that the caller gets errors as they are.
    found = chosen({"path": uri, **options, **_given(operator=operator, state=state)})
    assert isinstance(found, Feed), "there is a reader"
    followed = found.changes.state
    return _stream(
        spark, found.root, reader, options | {"operator": followed.operator, "state": followed.name}
    )


def stream_declared(
    spark: SparkSession,
    root: str,
    reader: str,
    operator: OperatorRecord,
    state: str,
    *,
    before: bool,
    shards_per_batch: int | None,
    cache_dir: str | None,
) -> DataFrame:
    """Return the changes of a state that perhaps no checkpoint has yet; the caller releases what is read.

    Args:
        spark: the session.
        root: URI of the pipeline's store.
        reader: as for ``stream_changes``.
        operator: as the running program has it.
        state: the name of one of its states, or that of its dead letters.
        before, shards_per_batch: as for ``stream_changes``.
        cache_dir: where machines keep the files that are read; None: where state hosts do by default.

    Raises:
        DefinitionError: the state is none that has changes.
        InvalidNameError: the reader's name cannot be used.
    """
    declared = to_json(attrs.evolve(operator, shards=())).decode()
    options = {"reader": reader, "release": CHECKPOINT, "state": state, "declared": declared}
    options["cache_dir"] = cache_dir or ""
    options |= _options(before, shards_per_batch)
    chosen({"path": root, **options})
    return _stream(spark, root, reader, options)


def _options(before: bool, shards_per_batch: int | None) -> dict[str, str]:
    options = {"before": str(before).lower()}
    return options if shards_per_batch is None else options | {"shards_per_batch": str(shards_per_batch)}


def _stream(spark: SparkSession, root: str, reader: str, options: dict[str, str]) -> DataFrame:
    register(spark)
    stream = spark.readStream.format(FORMAT).options(**options)
    return named(spark, stream, f"{FORMAT}_{re.sub(r'[^A-Za-z0-9]', '_', reader)}").load(root)


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _named(found: Located, wanted: str | int) -> str:
    """Return a name of a checkpoint that stays: another one may be the latest by the time Spark reads it."""
    is_id = str(wanted) == LATEST and found.manifest.kind is not CheckpointKind.SAVEPOINT
    return str(found.manifest.id) if is_id else str(wanted)


def _located(spark: SparkSession, selection: Selection, key: Any) -> tuple[str, int]:
    """Return the canonical bytes of a key in hex, and the number of its shard."""
    schema = from_json(selection.state.key_schema)
    values = key_values(schema, key)
    if values is None:
        expected = f"the values of {', '.join(schema.names)}, or one value if there is one key column"
        raise invalid_argument("key", expected, repr(key))
    encoded = KeyCodec(schema).encode(values)
    return encoded.hex(), shard_of(spark, schema, encoded, len(selection.shards))


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
