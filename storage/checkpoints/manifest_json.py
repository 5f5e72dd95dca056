"""The manifest as a JSON document: its body, the body's SHA-256 and the schema version."""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from ..codec import canonical, parse, plain, structure
from ..errors import CodecError, SchemaTooNewError, UnfitError
from .manifest import SCHEMA_VERSION, Manifest


@contextmanager
def _uncollected() -> Iterator[None]:
    """Turn off Python's garbage collector in this context.

    A manifest makes hundreds of thousands of objects at once, and none of them is garbage. Full collections would visit
    them all again and again, which takes a third of the time with 10,000 shards. The collector is off for the whole
    process. If two threads are here at once, the first to leave turns it on again, which only costs time.
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
    """Return the manifest as canonical JSON: ``{"manifest": {...}, "schema": 1, "sha256": "..."}``.

    The schema is the oldest that can say what is to be said, see ``Manifest.schema``.
    """
    body = plain(manifest)
    # Older schemas have no such fields, and they say nothing.
    if manifest.schema < 2:
        del body["unverified"]
    if manifest.schema < 3:
        for query in body["queries"]:
            del query["outputs"]
    if manifest.schema < 4:
        del body["channels"]
    if manifest.schema < 5:
        for operator in body["operators"]:
            del operator["deleting"]
    return _document(manifest.schema, canonical(body))


@_uncollected()
def decode_manifest(data: bytes, store: str, key: str) -> Manifest:
    """Return the manifest in ``data``, which was read from ``key`` in ``store``.

    Raises:
        SchemaTooNewError: a newer version of Chandy wrote it.
        UnfitError: a byte differs from what was written.
    """
    try:
        document = parse("manifest", data)
    except CodecError as error:
        raise UnfitError("a JSON document", error.reason) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if type(schema) is not int or schema < 1 or "manifest" not in document:
        raise UnfitError("a manifest with its schema version", f"{data[:60]!r}")
    # A newer version says what this one cannot read. What this one can read has a known schema, and a changed byte.
    if schema > SCHEMA_VERSION and not _is_known(document["manifest"]):
        raise SchemaTooNewError(store, key, schema, SCHEMA_VERSION)
    # All bytes are compared, so that even a change that means nothing in JSON is found.
    body = data[len(_HEAD) : -len(_tail(schema, _sha256(b"")))]
    if data != _document(schema, body):
        raise UnfitError(f"SHA-256 {document.get('sha256')}", f"SHA-256 {_sha256(body)}")
    try:
        manifest = structure(Manifest, document["manifest"])
    except CodecError as error:
        raise UnfitError(f"a manifest of schema {schema}", error.reason) from None
    if manifest.schema != schema:
        # The SHA-256 is that of the body alone.
        raise UnfitError(f"schema {manifest.schema}", f"schema {schema}")
    return manifest


def _is_known(body: object) -> bool:
    try:
        structure(Manifest, body)
    except CodecError:
        return False
    return True


# The document is put together around the JSON of its body. The manifest of many shards has megabytes, and encoding them
# twice would take most of the time at a checkpoint's end.
_HEAD = b'{"manifest":'


def _document(schema: int, body: bytes) -> bytes:
    return _HEAD + body + _tail(schema, _sha256(body))


def _tail(schema: int, sha256: str) -> bytes:
    return f',"schema":{schema},"sha256":"{sha256}"}}'.encode("ascii")


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
