"""A registry of the schemas of Kafka's messages, which gives each schema an id."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

import attrs

from ...durations import Duration, seconds
from ...error_texts import without_secrets
from ...errors import ConfigError
from ...extras import needs_extra
from ...fields import filled, instance, positive_duration, settings
from ...sinks.two_phase.errors import OutputError, TargetUnavailableError

_CLIENT: Final = "confluent-kafka's registry client"
_RESERVED: Final = frozenset({"url", "timeout"})
_RETRIES: Final = {"max.retries": 2, "retries.wait.ms": 200, "retries.max.wait.ms": 1000}
"""The registry is asked when a replica starts, while somebody waits."""
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_BUSY: Final = (408, 429)
_SERVER_ERROR: Final = 500


def _without_user(url: object) -> str:
    return repr(without_secrets(str(url), {}))


@attrs.frozen(kw_only=True)
class SchemaRegistry:
    """A schema registry that answers as Confluent's does: Confluent's own, Apicurio, Karapace, Redpanda and others.

    It needs packages: ``pip install 'chandy[avro]'``.
    """

    url: str = attrs.field(validator=filled, repr=_without_user)
    """Where it is, such as ``http://registry:8081``."""
    register: bool = attrs.field(default=True, validator=instance(bool))
    """Whether schemas that it lacks are registered. False: they must be there, as where people review schemas."""
    options: Mapping[str, Any] = attrs.field(factory=dict, validator=settings(_CLIENT, _RESERVED), repr=False)
    """Settings of confluent-kafka's ``SchemaRegistryClient``, as ``basic.auth.user.info``. Logs do not show them."""
    timeout: Duration = attrs.field(default="10 s", validator=positive_duration)
    """How long to wait for an answer. The registry is asked three times at most."""

    @property
    def name(self) -> str:
        """The registry, for messages."""
        return f"the schema registry at {without_secrets(self.url, {})}"

    def id_of(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema, which begins each message that has it.

        Args:
            subject: the name under which the registry keeps the versions of the schema.
            schema: the schema, in JSON.

        Raises:
            OutputError: the registry refuses the schema or the user, or it lacks a schema that must be there.
            TargetUnavailableError: the registry does not answer.
            ConfigError: an option is unknown or wrong.
            SetupError: a package is missing.
        """
        library = _library()
        wanted = library.Schema(schema, "AVRO")
        try:
            client = library.SchemaRegistryClient(
                _RETRIES | dict(self.options) | {"url": self.url, "timeout": seconds(self.timeout)}
            )
        except (TypeError, ValueError) as error:
            found = without_secrets(str(error), self.options)
            raise ConfigError(
                "invalid SchemaRegistry", "a URL and settings that the registry's client accepts", found
            ) from None
        try:
            with client:
                if self.register:
                    return _registered(client, subject, wanted)
                return int(client.lookup_schema(subject, wanted).schema_id)
        except library.SchemaRegistryError as error:
            raise self._refused(subject, schema, error.http_status_code, error.error_message) from None
        except Exception as error:  # noqa: BLE001 (the client passes on whatever its HTTP library raises)
            reason = without_secrets(f"{type(error).__name__}: {error}", self.options)
            raise TargetUnavailableError(self.name, reason) from None

    def _refused(self, subject: str, schema: str, status: int, text: str) -> Exception:
        if status >= _SERVER_ERROR or status in _BUSY:
            return TargetUnavailableError(self.name, f"HTTP {status}: {text}")
        if status == _NOT_FOUND and not self.register:
            return OutputError(
                f"{self.name} lacks a schema",
                f"a version of subject {subject!r} that is {schema}",
                text,
                "register it, or set SchemaRegistry(register=True)",
            )
        return OutputError(
            f"{self.name} refuses the schema of subject {subject!r}",
            "one that fits the versions before, from a user who may register it",
            f"HTTP {status}: {text}",
            "see the compatibility that the registry demands of the subject, or publish to a new topic",
        )


def _registered(client: Any, subject: str, schema: Any) -> int:
    try:
        return int(client.register_schema(subject, schema))
    except _library().SchemaRegistryError as error:
        if error.http_status_code != _CONFLICT:
            raise
        # Registries also answer so if another request has made the subject meanwhile.
        return int(client.register_schema(subject, schema))


def _library() -> ModuleType:
    needed = "the package confluent-kafka[schemaregistry]"
    with needs_extra("avro", what="a schema registry cannot be asked", needed=needed):
        import confluent_kafka.schema_registry as library
    module: ModuleType = library
    return module
