"""The manifest as a JSON document: a schema version, the SHA-256 of the body, and the body."""

from __future__ import annotations

import hashlib
from typing import Any

from .codec import canonical, parse, structure, to_json
from .errors import CodecError, DamagedError, SchemaTooNewError
from .manifest import SCHEMA_VERSION, Manifest


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as canonical JSON: ``{"manifest": {...}, "schema": 1, "sha256": "..."}``."""
    return _document(SCHEMA_VERSION, parse("Manifest", to_json(manifest)))


def decode_manifest(data: bytes, store: str, key: str) -> Manifest:
    """Return the manifest that ``data``, read from ``key`` in ``store``, holds.

    Raises:
        SchemaTooNewError: a newer version of Chandy wrote it.
        DamagedError: any byte is not as it was written.
    """
    try:
        document = parse("manifest", data)
    except CodecError as error:
        raise DamagedError(store, key, "a JSON document", error.reason) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema < 1 or "manifest" not in document:
        raise DamagedError(store, key, "a manifest with its schema version", f"{data[:60]!r}")
    if schema > SCHEMA_VERSION:
        raise SchemaTooNewError(store, key, schema, SCHEMA_VERSION)
    # The bytes as a whole are compared, so that not even a change that JSON does not care for goes unseen.
    if data != _document(schema, document["manifest"]):
        raise DamagedError(store, key, f"SHA-256 {document.get('sha256')}", _sha256(document["manifest"]))
    try:
        return structure(Manifest, document["manifest"])
    except CodecError as error:
        raise DamagedError(store, key, f"a manifest of schema {schema}", error.reason) from None


def _document(schema: int, body: Any) -> bytes:
    return canonical({"schema": schema, "sha256": _sha256(body), "manifest": body})


def _sha256(body: Any) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()
