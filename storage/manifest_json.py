"""The manifest as a JSON document: a schema version, the SHA-256 of the body, and the body."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from .codec import parse, structure, to_json
from .errors import CodecError, DamagedError, SchemaTooNewError
from .manifest import SCHEMA_VERSION, Manifest


@contextmanager
def _uncollected() -> Iterator[None]:
    """Let Python's garbage collector rest in this context, unless it does already.

    A manifest makes objects by the hundred thousand in one go, of which none is garbage. Full collections would look
    at all of them, and at all else that the process holds, again and again: a third of the time with 10,000 shards.
    Of the whole process; where two threads are here at once, the first to leave ends it for both, which is only slower.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_uncollected()
def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as canonical JSON: ``{"manifest": {...}, "schema": 1, "sha256": "..."}``."""
    return _document(SCHEMA_VERSION, to_json(manifest))


@_uncollected()
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
    body = data[len(_HEAD) : -len(_tail(schema, _sha256(b"")))]
    if data != _document(schema, body):
        raise DamagedError(store, key, f"SHA-256 {document.get('sha256')}", f"SHA-256 {_sha256(body)}")
    try:
        return structure(Manifest, document["manifest"])
    except CodecError as error:
        raise DamagedError(store, key, f"a manifest of schema {schema}", error.reason) from None


# The canonical JSON of the whole, put together around that of the body: a manifest of many shards has megabytes, and
# encoding them more than once is most of what a checkpoint's end would cost.
_HEAD = b'{"manifest":'


def _document(schema: int, body: bytes) -> bytes:
    return _HEAD + body + _tail(schema, _sha256(body))


def _tail(schema: int, sha256: str) -> bytes:
    return f',"schema":{schema},"sha256":"{sha256}"}}'.encode("ascii")


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
