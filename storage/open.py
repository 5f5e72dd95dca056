"""From a URI to its store."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from .errors import InvalidUriError, UnknownStoreError
from .keys import validate_name
from .local import LocalStore
from .store import Store


@attrs.frozen
class Backend:
    """Where the store of a scheme comes from."""

    module: str
    """Module with ``open_uri(uri: str) -> Store``; imported when the first URI of the scheme is opened."""
    extra: str
    """The extra of this distribution that installs what the module needs."""


BACKENDS: dict[str, Backend] = {
    "s3": Backend("chandy.storage.s3", "s3"),
    "s3a": Backend("chandy.storage.s3", "s3"),
    "hdfs": Backend("chandy.storage.hdfs", "hdfs"),
}
"""By scheme the stores beyond ``file``."""


def open_store(uri: str) -> Store:
    """Return the store at a URI: ``file:///path``, an absolute path, or a scheme of ``BACKENDS``.

    Nothing is created and no connection made before the first operation, as far as the backend can.

    Raises:
        InvalidUriError: the URI names no place.
        UnknownStoreError: there is no backend for its scheme, or it is not installed.
    """
    scheme, separator, _ = uri.partition("://")
    if not separator:
        return LocalStore(_absolute(uri, uri))
    if scheme.lower() == "file":
        return LocalStore(_file_path(uri))
    backend = BACKENDS.get(scheme.lower())
    supported = ("file", *(name for name, one in BACKENDS.items() if importlib.util.find_spec(one.module)))
    if backend is None:
        raise UnknownStoreError(uri, scheme, supported, None)
    try:
        module = importlib.import_module(backend.module)
    except ModuleNotFoundError as error:
        raise UnknownStoreError(uri, scheme, supported, backend.extra, error.name) from error
    store: Store = module.open_uri(uri)
    return store


def pipeline_uri(storage: str, pipeline: str) -> str:
    """Return the URI of a pipeline's own folder in a storage: ``<storage>/<pipeline>``.

    Raises:
        InvalidNameError: the pipeline's name cannot be a part of a path.
    """
    return f"{storage.rstrip('/')}/{validate_name('pipeline', pipeline)}"


def _file_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise InvalidUriError(uri, f"expected file:///..., found the host {parts.netloc!r}")
    if parts.query or parts.fragment:
        raise InvalidUriError(uri, "'?' and '#' in a path must be written %3F and %23")
    return _absolute(uri, unquote(parts.path))


def _absolute(uri: str, path: str) -> Path:
    if not path.startswith("/") or "\0" in path:
        raise InvalidUriError(uri, "expected a scheme or an absolute path")
    if ".." in path.split("/"):
        raise InvalidUriError(uri, "a path with '..' depends on where links point")
    return Path(path)
