"""How the keys and the values of messages become bytes: in JSON, or in Avro with schemas in a registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import attrs
from pyspark.sql.types import StructType

from ...storage.logs import logger
from ..connectors.kafka.schema_registry import SchemaRegistry
from .avro import AvroWriter, library, schema_of
from .json_text import EARLIER, JsonWriter, version_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

KEY: Final = "key"
VALUE: Final = "value"

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
    texts: int = EARLIER
    """Version of the texts in JSON, as ``version_of`` has it."""


@attrs.frozen
class Json:
    """Encodes messages in JSON, with fields that are null."""

    def encoded(self, messages: DataFrame) -> EncodedMessages:
        """Return messages in JSON.

        Raises:
            ReplicaError: there is no JSON for a column.
        """
        version = version_of(*(_struct(messages, name) for name in (KEY, VALUE)))
        encoder = _MessageEncoder({name: JsonWriter() for name in (KEY, VALUE)})
        rows = messages.mapInArrow(encoder, f"{KEY} string, {VALUE} string")
        return EncodedMessages(rows, texts=version)


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
        schemas = {name: self._schema(_struct(messages, name), name) for name in (KEY, VALUE)}
        ids = {name: self.registry.id_of(f"{self.topic}-{name}", schema) for name, schema in schemas.items()}
        log.info("the registry has the schemas of a topic", topic=self.topic, **ids)
        encoder = _MessageEncoder({name: AvroWriter(schema, ids[name]) for name, schema in schemas.items()})
        return EncodedMessages(messages.mapInArrow(encoder, f"{KEY} binary, {VALUE} binary"), ids[KEY])

    def _schema(self, struct: StructType, name: str) -> str:
        return schema_of(struct, f"{self.namespace}.{name.capitalize()}")


def _struct(messages: DataFrame, name: str) -> StructType:
    type_ = messages.schema[name].dataType
    assert isinstance(type_, StructType)
    return type_


class _Writer(Protocol):
    """Encodes a column of messages."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return a column of texts or bytes; null stays null."""
        ...


@attrs.frozen
class _MessageEncoder:
    """The work of a task."""

    writers: Mapping[str, _Writer]
    """By column."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            columns = {name: writer.encode(batch.column(name)) for name, writer in self.writers.items()}
            yield pa.RecordBatch.from_pydict(columns)
