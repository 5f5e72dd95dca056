"""A real schema registry: schemas get their ids, and what it refuses is said with what to do."""

from __future__ import annotations

import json
import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from chandy import SchemaRegistry
from chandy.coordinator.errors import ConfigError
from chandy.coordinator.sinks.two_phase.errors import OutputError, TargetUnavailableError

from ...storage.servers import free_port
from ...waiting import freeze
from .registry_server import Registry
from .registry_server import schema_registry as schema_registry

OPTIONAL = [{"name": "b", "type": ["null", "long"], "default": None}]


def schema(**types: object) -> str:
    fields: list[object] = [{"name": name, "type": type_} for name, type_ in types.items()]
    return json.dumps({"type": "record", "name": "Value", "fields": fields})


@pytest.fixture
def subject() -> str:
    """A subject that the registry does not know."""
    return f"{uuid.uuid4().hex}-value"


@pytest.mark.server
def test_a_schema_has_one_id_however_often_it_is_registered(schema_registry: Registry, subject: str) -> None:
    registry = SchemaRegistry(url=schema_registry.url)
    first = registry.id_of(subject, schema(a="long"))
    assert registry.id_of(subject, schema(a="long")) == first
    assert registry.id_of(subject, schema(a="long", b="string")) != first
    assert schema_registry.ask(f"/subjects/{subject}/versions") == [1, 2]
    assert json.loads(schema_registry.ask(f"/schemas/ids/{first}")["schema"]) == json.loads(schema(a="long"))


@pytest.mark.server
def test_writers_that_register_a_schema_at_the_same_time_get_one_id(schema_registry: Registry) -> None:
    registry = SchemaRegistry(url=schema_registry.url)
    with ThreadPoolExecutor(4) as writers:
        for _ in range(20):
            new = f"{uuid.uuid4().hex}-value"
            assert len(set(writers.map(registry.id_of, [new] * 4, [schema(a="long")] * 4))) == 1


@pytest.mark.server
def test_a_schema_that_does_not_fit_the_ones_before_is_refused(
    schema_registry: Registry, subject: str
) -> None:
    registry = SchemaRegistry(url=schema_registry.url)
    before = json.loads(schema(a="long"))
    registry.id_of(subject, json.dumps(before))
    schema_registry.ask(f"/config/{subject}", "PUT", compatibility="BACKWARD")
    # A column that is null by default may come.
    registry.id_of(subject, json.dumps(before | {"fields": before["fields"] + OPTIONAL}))
    with pytest.raises(OutputError) as raised:
        registry.id_of(subject, schema(a="string"))
    assert f"refuses the schema of subject '{subject}'" in str(raised.value)
    assert "HTTP 409" in str(raised.value)
    assert "publish to a new topic" in str(raised.value)


@pytest.mark.server
def test_where_schemas_are_reviewed_nothing_is_registered(schema_registry: Registry, subject: str) -> None:
    reader = SchemaRegistry(url=schema_registry.url, register=False)
    with pytest.raises(OutputError) as raised:
        reader.id_of(subject, schema(a="long"))
    # The schema is what somebody is to register.
    assert schema(a="long") in str(raised.value)
    assert subject not in schema_registry.ask("/subjects")
    known = SchemaRegistry(url=schema_registry.url).id_of(subject, schema(a="long"))
    assert reader.id_of(subject, schema(a="long")) == known


@pytest.mark.server
def test_a_frozen_registry_is_not_waited_for_without_end(schema_registry: Registry, subject: str) -> None:
    registry = SchemaRegistry(url=schema_registry.url, timeout="200 ms")
    freeze(schema_registry.server.pid)
    try:
        with pytest.raises(TargetUnavailableError, match="is not available"):
            registry.id_of(subject, schema(a="long"))
    finally:
        os.kill(schema_registry.server.pid, signal.SIGCONT)
    # Whether the request has arrived or not, the next one gets the id.
    patient = SchemaRegistry(url=schema_registry.url)
    assert patient.id_of(subject, schema(a="long")) == patient.id_of(subject, schema(a="long"))


def test_a_registry_that_is_away_is_named_without_secrets() -> None:
    registry = SchemaRegistry(url=f"http://me:secret@127.0.0.1:{free_port()}", timeout="1 s")
    with pytest.raises(TargetUnavailableError) as raised:
        registry.id_of("t-value", schema(a="long"))
    assert "schema registry at http://...@127.0.0.1:" in str(raised.value)
    assert "secret" not in str(raised.value) + repr(registry)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""},
        {"url": "http://registry", "timeout": "0 s"},
        {"url": "http://registry", "register": "no"},
        {"url": "http://registry", "options": {"timeout": 3}},
        {"url": "http://registry", "options": [("ssl.ca.location", "ca.pem")]},
    ],
    ids=str,
)
def test_what_cannot_be_a_registry_is_refused_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SchemaRegistry(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"no.such.setting": "hush"}, {"basic.auth.user.info": "hush"}, {"max.retries": "hush"}],
    ids=str,
)
def test_settings_that_the_client_refuses_are_named_without_their_values(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as raised:
        SchemaRegistry(url="http://registry", options=options).id_of("t-value", schema(a="long"))
    assert "hush" not in str(raised.value)


def test_a_place_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="URL"):
        SchemaRegistry(url="registry:8081").id_of("t-value", schema(a="long"))
