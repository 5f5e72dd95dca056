"""How the keys and the values of messages become bytes: in JSON, or in Avro with schemas in a registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol

import attrs
from pyspark.sql import functions as F  # noqa: N812 (its usual name)
from pyspark.sql.types import StructType

from ...storage.logs import logger
from ..connectors.kafka.schema_registry import SchemaRegistry
from .avro import AvroWriter, library, schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

KEY: Final = "key"
VALUE: Final = "value"
_ALL_FIELDS: Final = {"ignoreNullFields": "false"}

log = logger(__name__)


class Encoding(Protocol):
    """Encodes messages."""

    def encoded(self, messages: DataFrame) -> EncodedMessages:
        """Return messages as a sink takes them.

        Args:
            messages: structs ``key`` and ``value``; the value of a tombstone is null.

        Raises:
            ChandyError: they cannot be encoded.
        """
        ...


@attrs.frozen
class EncodedMessages:
    """Messages with a key and a value that are text or bytes."""

    rows: DataFrame
    key_schema: int | None = None
    """Id of the keys' schema, which each key begins with; None: keys are JSON."""


@attrs.frozen
class Json:
    """Encodes messages as Spark has them in JSON."""

    def encoded(self, messages: DataFrame) -> EncodedMessages:
        """Return messages in JSON, with fields that are null."""
        columns = (F.to_json(F.col(name), _ALL_FIELDS).alias(name) for name in (KEY, VALUE))
        return EncodedMessages(messages.select(*columns))


@attrs.frozen
class Avro:
    """Encodes messages in Avro. Their schemas are subjects ``<topic>-key`` and ``<topic>-value`` of a registry."""

    registry: SchemaRegistry
    topic: str
    namespace: str
    """Of the schemas' records."""

    def encoded(self, messages: DataFrame) -> EncodedMessages:
        """Return messages in Avro, after their schemas are in the registry.

        Raises:
            ReplicaError: Avro lacks a type or a name.
            SetupError: a package is missing.
            ChandyError: as for ``SchemaRegistry.id_of``.
        """
        library()
        schemas = {name: self._schema(messages.schema[name].dataType, name) for name in (KEY, VALUE)}
        ids = {name: self.registry.id_of(f"{self.topic}-{name}", schema) for name, schema in schemas.items()}
        log.info("the registry has the schemas of a topic", topic=self.topic, **ids)
        encoder = _MessageEncoder({name: AvroWriter(schema, ids[name]) for name, schema in schemas.items()})
        return EncodedMessages(messages.mapInArrow(encoder, f"{KEY} binary, {VALUE} binary"), ids[KEY])

    def _schema(self, type_: object, name: str) -> str:
        assert isinstance(type_, StructType)
        return schema_of(type_, f"{self.namespace}.{name.capitalize()}")


@attrs.frozen
class _MessageEncoder:
    """The work of a task."""

    writers: dict[str, AvroWriter]
    """By column."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            columns = {name: writer.encode(batch.column(name)) for name, writer in self.writers.items()}
            yield pa.RecordBatch.from_pydict(columns)
