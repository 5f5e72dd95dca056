"""Reads from the JVM, by py4j, what a DataStreamWriter is set to: its options, its sink and its analyzed plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ...barrier.operator_name import operator_uid
from ...state.operators.ticks import TICKS
from ..errors import ArgumentError
from .local_path import has_scheme, is_local
from .logs.compact_log import DEFAULT_INTERVAL
from .writer_facts import KAFKA, SinkFacts, SourceFacts, Trigger, WriterFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OWN_CATALOG = "spark_catalog"
_KAFKA = "org.apache.spark.sql.kafka010"
_NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_SOURCE_COMPACTION = "spark.sql.streaming.fileSource.log.compactInterval"
_SINK_COMPACTION = "spark.sql.streaming.fileSink.log.compactInterval"
_WATERMARK = "EventTimeWatermark"
_MANY_WATERMARKS = "spark.sql.streaming.statefulOperator.allowMultiple"
_IGNORES_MISSING_FILES = "spark.sql.files.ignoreMissingFiles"
_IGNORES_SINK_LOG = "spark.sql.streaming.fileStreamSink.ignoreMetadata"

# The keys are class names in org.apache.spark.sql.execution.streaming.
_TRIGGERS = {
    "ProcessingTimeTrigger": Trigger.PROCESSING_TIME,
    "AvailableNowTrigger$": Trigger.AVAILABLE_NOW,
    "OneTimeTrigger$": Trigger.ONCE,
    "ContinuousTrigger": Trigger.CONTINUOUS,
    "RealTimeTrigger": Trigger.REAL_TIME,
}

# Logical operators for which Spark keeps state if their input is a stream.
_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)

# Logical operators whose input is always shuffled.
_SHUFFLES = (_STATEFUL - {"GlobalLimit"}) | {"RepartitionByExpression"}

# Logical operators that may end the tasks below them before these have given all their rows.
_LIMITS = frozenset({"GlobalLimit", "LocalLimit", "Tail"})

_FILE_SOURCES = (
    "org.apache.spark.sql.execution.datasources.v2.FileDataSourceV2",
    "org.apache.spark.sql.execution.datasources.FileFormat",
)


def facts(writer: DataStreamWriter, *, table: str | None = None) -> WriterFacts:
    """Read what a writer would start, without changing it.

    Args:
        writer: the writer. Its session must have a JVM (``check_session``).
        table: the argument of ``toTable`` if the query is started by that.

    Raises:
        ArgumentError: it is no writer.
    """
    check_writer(writer)
    # Neither PySpark nor Spark has a public interface to the settings of a writer.
    spark, plan = writer._spark, writer._df._jdf.queryExecution().analyzed()
    options = field(writer._jwrite, "extraOptions")
    nodes = list(_nodes(plan))
    sources = _sources(nodes)
    trigger = field(writer._jwrite, "trigger")
    kind = _TRIGGERS[trigger.getClass().getSimpleName()]
    return WriterFacts(
        sink=_sink(spark, str(field(writer._jwrite, "source")), _get(options, "path"), table),
        output_mode=field(writer._jwrite, "outputMode").toString().lower(),
        trigger=kind,
        checkpoint_location=_get(options, "checkpointLocation"),
        query_name=_get(options, "queryName"),
        async_progress=(_get(options, "asyncProgressTrackingEnabled") or "false").lower() == "true",
        operators=tuple(dict.fromkeys(uid for node in nodes if (uid := _operator(node)) is not None)),
        merged_operators=tuple(dict.fromkeys(_merged(plan))),
        native_state=any(_is_stateful(node) for node in nodes),
        inputs=_inputs(nodes, sources),
        sources=tuple(_resolved(spark, source) for _, source in sources),
        no_data_batches=spark.conf.get(_NO_DATA_BATCHES) == "true",
        source_compact_interval=int(spark.conf.get(_SOURCE_COMPACTION) or DEFAULT_INTERVAL),
        sink_compact_interval=int(spark.conf.get(_SINK_COMPACTION) or DEFAULT_INTERVAL),
        ignores_sink_log=spark.conf.get(_IGNORES_SINK_LOG, "false") == "true",
        real_time_seconds=trigger.batchDurationMs() / 1000 if kind is Trigger.REAL_TIME else None,
        watermarks=sum(_kind(node) == _WATERMARK for node in nodes),
        single_watermark=spark.conf.get(_MANY_WATERMARKS) == "false",
    )


def _sources(nodes: list[Any]) -> list[tuple[Any, SourceFacts]]:
    """Return the sources in the order in which Spark numbers them: as they come in the plan, equal ones once."""
    found: list[tuple[Any, SourceFacts]] = []
    for node in nodes:
        source = _source(node)
        if source is not None and not any(node.equals(other) for other, _ in found):
            found.append((node, source))
    return found


def _inputs(nodes: list[Any], sources: list[tuple[Any, SourceFacts]]) -> dict[str, tuple[int, ...]]:
    """Return by operator the numbers of the sources that it reads."""
    found: dict[str, tuple[int, ...]] = {}
    for node in nodes:
        if (uid := _operator(node)) is not None:
            below = [one for one in _nodes(node) if _source(one) is not None]
            read = (at for at, (source, _) in enumerate(sources) if any(one.equals(source) for one in below))
            found[uid] = tuple(read)
    return found


def check_writer(writer: object) -> None:
    """Refuse what is no writer.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(writer, DataStreamWriter):
        return
    kind = type(writer)
    raise ArgumentError(
        "the query cannot be started",
        "a DataStreamWriter that has not been started, such as df.writeStream.format('console')",
        f"a {'DataFrame' if isinstance(writer, DataFrame) else kind.__name__}",
        "pass what df.writeStream returns, without .start()",
    )


def has_watermark(df: DataFrame) -> bool:
    """Return whether the query that a DataFrame is part of has a watermark, by any column."""
    return any(_kind(node) == _WATERMARK for node in _nodes(df._jdf.queryExecution().analyzed()))


def operators_of(df: DataFrame) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the operators in the plan of a DataFrame, and those of them that ``check`` refuses as merged."""
    plan = df._jdf.queryExecution().analyzed()
    found = (uid for node in _nodes(plan) if (uid := _operator(node)) is not None)
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(_merged(plan)))


def has_limit(df: DataFrame) -> bool:
    """Return whether the plan of a DataFrame takes some rows and leaves others unread."""
    return any(_kind(node) in _LIMITS for node in _nodes(df._jdf.queryExecution().analyzed()))


def has_ticks(df: DataFrame) -> bool:
    """Return whether the plan of a DataFrame has a source of ticks."""
    return _ticks(df._jdf.queryExecution().analyzed())


def needs_ticks(facts: WriterFacts) -> bool:
    """Return whether a query has a source of ticks: it has an operator with timers."""
    return any(source.name == TICKS for source in facts.sources)


def _ticks(plan: Any) -> bool:
    return any(source.name == TICKS for node in _nodes(plan) if (source := _source(node)) is not None)


def output_path(writer: DataStreamWriter, sink: SinkFacts) -> str | None:
    """Return the output directory of a file sink; None for any other sink.

    For a table that does not exist yet, it is the directory that ``toTable`` would create. The result is written as
    in Hadoop: not percent-encoded, and absolute, with a scheme unless it is local.
    """
    if not sink.file_format:
        return None
    spark = writer._spark
    if sink.table is None:
        return None if sink.path is None else _resolve(spark, sink.path)
    catalog, identifier = spark._jsparkSession.sessionState().catalog(), _own_table(spark, sink.table)
    if catalog.tableExists(identifier):
        location = catalog.getTableMetadata(identifier).location()
    elif sink.path is not None:
        return _resolve(spark, sink.path)
    else:
        location = catalog.defaultTablePath(identifier)
    return str(getattr(spark._jvm, "org.apache.hadoop.fs.Path")(location).toString())


def creates_managed_table(writer: DataStreamWriter, sink: SinkFacts) -> bool:
    """Return whether ``toTable`` would create a table at a place that Spark chooses, which must be empty then."""
    if not sink.file_format or sink.table is None or sink.path is not None:
        return False
    spark = writer._spark
    return not spark._jsparkSession.sessionState().catalog().tableExists(_own_table(spark, sink.table))


def chosen_sink(writer: DataStreamWriter) -> str:
    """Return what a writer was told to write to, such as ``foreachBatch`` or ``parquet in /out``; "" if to nothing."""
    chosen = str(field(writer._jwrite, "source"))
    path = _get(field(writer._jwrite, "extraOptions"), "path")
    if path is not None:
        return f"{chosen} in {path}"
    return "" if chosen == writer._spark.conf.get("spark.sql.sources.default") else chosen


def _resolved(spark: Any, source: SourceFacts) -> SourceFacts:
    path = source.options.get("path")
    if path is not None:
        source = attrs.evolve(source, options={**source.options, "path": _resolve(spark, path)})
    if not source.is_files:
        return source
    ignores = source.options.get("ignoremissingfiles") or spark.conf.get(_IGNORES_MISSING_FILES)
    is_files = _is_file_format(spark, source.name)
    return attrs.evolve(source, is_files=is_files, ignores_missing_files=ignores.lower() == "true")


def _resolve(spark: Any, path: str) -> str:
    """Return where a path leads that the user gave to Spark.

    A relative one is below the directory in which the JVM was started. Python's may be another one by now.
    """
    settings = spark._jsparkSession.sessionState().newHadoopConf()
    if has_scheme(path):
        return path
    if is_local(str(settings.get("fs.defaultFS", "file:///"))):
        return str(Path(str(spark._jvm.java.lang.System.getProperty("user.dir"))) / path)
    make = getattr(spark._jvm, "org.apache.hadoop.fs.Path")
    default = getattr(spark._jvm, "org.apache.hadoop.fs.FileSystem").getDefaultUri(settings)
    user = getattr(spark._jvm, "org.apache.hadoop.security.UserGroupInformation").getCurrentUser()
    # As Hadoop does: a relative path is below the user's own folder there.
    return str(make(path).makeQualified(default, make(f"/user/{user.getShortUserName()}")).toString())


def field(instance: Any, name: str) -> Any:
    """Return the value of a private field of a Java object."""
    found = instance.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(instance)


def set_field(instance: Any, name: str, value: Any) -> None:
    """Set a private field of a Java object."""
    found = instance.getClass().getDeclaredField(name)
    found.setAccessible(True)
    found.set(instance, value)


def without_sink(writer: DataStreamWriter) -> DataStreamWriter:
    """Return a writer of the same rows, in the same output mode and under the same name, that writes nowhere yet."""
    other, name = writer._df.writeStream, _get(field(writer._jwrite, "extraOptions"), "queryName")
    for one in ("outputMode", "trigger"):
        set_field(other._jwrite, one, field(writer._jwrite, one))
    return other if name is None else other.queryName(name)


def _get(options: Any, name: str) -> str | None:
    value = options.get(name)
    return str(value.get()) if value.isDefined() else None


def _options(options: Any) -> dict[str, str]:
    """Return a Scala map of options with its keys in lower case: to Spark their case does not matter."""
    found: dict[str, str] = {}
    pairs = options.iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1()).lower()] = str(pair._2())
    return found


def _options_of_java(options: Any) -> dict[str, str]:
    """Return a Java map of options with its keys in lower case."""
    found: dict[str, str] = {}
    pairs = options.entrySet().iterator()
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair.getKey()).lower()] = str(pair.getValue())
    return found


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for at in range(children.size()):
        yield from _nodes(children.apply(at))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _is_stateful(node: Any) -> bool:
    if not node.isStreaming():
        return False
    kind = _kind(node)
    if kind == "Join":
        return bool(node.left().isStreaming() and node.right().isStreaming())
    return kind in _STATEFUL


def _operator(node: Any) -> str | None:
    if _kind(node) != "MapInArrow":
        return None
    return operator_uid(str(node.functionExpr().name()))


def _merged(plan: Any, merged: bool = False) -> Iterator[str]:
    """Yield the operators whose partitions Spark renumbers or merges within their own stage.

    A task knows its shards by the number of its partition. A union and a coalesce change these numbers in the stage
    below them, down to the shuffle that it begins with.
    """
    if merged and (uid := _operator(plan)) is not None:
        yield uid
    kind, children = _kind(plan), plan.children()
    if kind == "Union" and all(_ticks(children.apply(at)) for at in range(1, children.size())):
        # Ticks come after the input and have no partitions: the input's numbers stay.
        pass
    elif kind == "Union" or (kind == "Repartition" and not plan.shuffle()):
        merged = True
    elif kind in _SHUFFLES or kind == "Repartition":
        merged = False
    for at in range(children.size()):
        yield from _merged(children.apply(at), merged)


def _source(node: Any) -> SourceFacts | None:
    kind = _kind(node)
    if kind == "StreamingRelation":
        source = node.dataSource()
        name = str(source.className())
        found = _source_facts(node, name, name, _options(source.options()))
        # Spark's source of files, and those that have not come with it.
        return attrs.evolve(found, is_files=found.name != KAFKA)
    if kind == "StreamingRelationV2":
        options = _options_of_java(node.extraOptions())
        return _source_facts(node, str(node.sourceName()), str(node.table().getClass().getName()), options)
    if kind == "StreamingExecutionRelation":
        return _source_facts(node, str(node.source().toString()), str(node.source().getClass().getName()), {})
    return None


def _source_facts(node: Any, name: str, implementation: str, options: Mapping[str, str]) -> SourceFacts:
    label = _label(node)
    if _KAFKA in implementation or name.lower() == KAFKA:
        return SourceFacts(KAFKA, True, options=dict(options), label=label)
    # A socket keeps nothing, and Spark's memory streams end with the process.
    lasts = not any(mark in implementation for mark in ("TextSocket", "MemoryStream"))
    replayable = lasts and name.lower() != "socket"
    clean = options.get("cleansource", "off").lower()
    return SourceFacts(name, replayable, None if clean == "off" else clean, dict(options), label)


def _label(node: Any) -> str:
    """Return the name that the user has given to a source, which newer versions of Spark have; "" if there is none."""
    try:
        given = node.sourceIdentifyingName()
        return str(given.name()) if _kind(given) == "UserProvided" else ""
    except Py4JError:
        return ""


def _sink(spark: Any, format_: str, path: str | None, table: str | None) -> SinkFacts:
    provider = format_ if table is None else _table_provider(spark, table, format_)
    return SinkFacts(format_, path, table, provider is not None and _is_file_format(spark, provider))


def _table_provider(spark: Any, table: str, format_: str) -> str | None:
    """Return the format of a table, whether it exists or is to be created; None if it is not in Spark's own catalog.

    Other catalogs (Iceberg, ...) write their tables in their own way, whatever the format.
    """
    identifier = _own_table(spark, table)
    if identifier is None:
        return None
    catalog = spark._jsparkSession.sessionState().catalog()
    if not catalog.tableExists(identifier):
        return format_
    provider = catalog.getTableMetadata(identifier).provider()
    return str(provider.get()) if provider.isDefined() else None


def _own_table(spark: Any, table: str) -> Any:
    """Return Spark's identifier of a table in its own catalog; None if the name is of another catalog."""
    state = spark._jsparkSession.sessionState()
    sequence = state.sqlParser().parseMultipartIdentifier(table)
    parts = [str(sequence.apply(at)) for at in range(sequence.size())]
    catalog = spark.catalog.currentCatalog()
    if len(parts) > 1 and state.catalogManager().isCatalogRegistered(parts[0]):
        catalog = parts.pop(0)
    if catalog != _OWN_CATALOG or len(parts) > 2:
        return None
    quoted = ".".join("`" + part.replace("`", "``") + "`" for part in parts)
    return state.sqlParser().parseTableIdentifier(quoted)


def _is_file_format(spark: Any, name: str) -> bool:
    if name.lower() in ("foreach", "foreachbatch", "memory"):
        return False
    jvm = spark._jvm
    conf = spark._jsparkSession.sessionState().conf()
    found = getattr(jvm, "org.apache.spark.sql.execution.datasources.DataSource").lookupDataSource(name, conf)
    loader = found.getClassLoader()
    forname = jvm.java.lang.Class.forName
    return any(forname(base, False, loader).isAssignableFrom(found) for base in _FILE_SOURCES)
