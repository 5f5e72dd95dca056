"""Describes the HTTP API in OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.0), from the classes of its documents."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from ..version import __version__

_PLAIN: dict[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


@attrs.frozen(kw_only=True)
class Operation:
    """One request that is answered."""

    path: str
    """With names of parameters in braces."""
    method: str
    says: str
    """What it does, in a sentence."""
    answers: Mapping[int, Any]
    """The class of the document, by the status."""
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    """The types of those in the path, by name."""
    query: Mapping[str, Any] = attrs.field(factory=dict)
    """The types of those behind the question mark, by name. Those that may be None may be left out."""
    body: type | None = None
    """The class of the document that it takes."""


def description(operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the description of operations, as plain JSON data."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        described: dict[str, Any] = {
            "summary": one.says,
            "responses": {
                str(status): {
                    "description": (type_.__doc__ or "").partition("\n")[0]
                    if isinstance(type_, type)
                    else one.says,
                    "content": {"application/json": {"schema": _schema(type_, schemas)}},
                }
                for status, type_ in one.answers.items()
            },
        }
        if parameters := [*_parameters("path", one.parameters), *_parameters("query", one.query)]:
            described["parameters"] = parameters
        if one.body is not None:
            described["requestBody"] = {
                "content": {"application/json": {"schema": _schema(one.body, schemas)}}
            }
        paths.setdefault(one.path, {})[one.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Chandy", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _parameters(place: str, types_: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": place,
            "required": type(None) not in get_args(type_),
            "schema": _schema(type_, {}),
        }
        for name, type_ in types_.items()
    ]


def _schema(type_: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; those of classes go into ``schemas``."""
    # An id is a number of its own kind.
    type_ = getattr(type_, "__supertype__", type_)
    origin, of = get_origin(type_), get_args(type_)
    if type_ is Any:
        return {}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, schemas) for one in of]}
    if type_ is type(None):
        return {"type": "null"}
    if type_ in _PLAIN:
        return {"type": _PLAIN[type_]}
    if origin is tuple:
        return {"type": "array", "items": _schema(of[0], schemas)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(of[1], schemas)}
    if issubclass(type_, enum.Enum):
        return {"type": "string", "enum": [str(one.value) for one in type_]}
    name = type_.__name__
    if name not in schemas:
        schemas[name] = {}
        hints = get_type_hints(type_)
        fields = attrs.fields(type_)
        schemas[name] = {
            "type": "object",
            "description": (type_.__doc__ or "").partition("\n")[0],
            "properties": {field.name: _schema(hints[field.name], schemas) for field in fields},
            "required": [field.name for field in fields if field.default is attrs.NOTHING],
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{name}"}
