"""From a URI to its store.

A backend is a module with ``open_uri(uri: str) -> Store`` whose store makes one attempt for each call, and an entry
point of the group ``chandy.stores`` that names the function by the URI's scheme.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .errors import InvalidUriError, UnknownStoreError
from .keys import validate_name
from .local import LocalStore
from .retrying import RetryingStore
from .store import Store
from .uri import join_uri

GROUP = "chandy.stores"
"""The group of entry points that name backends by their scheme."""

EXTRAS = {"s3": "s3", "s3a": "s3", "hdfs": "hdfs", "viewfs": "hdfs"}
"""The extras of this distribution that install what its own backends need, by scheme."""


def open_store(uri: str) -> Store:
    """Return the store at a URI: ``file:///path``, an absolute path, a backend's scheme, or a protocol of fsspec.

    Nothing is created and no connection made before the first operation, as far as the backend can. What fails in
    passing is tried again (``RetryingStore``).

    Raises:
        InvalidUriError: the URI names no place.
        UnknownStoreError: there is no backend for its scheme, or it is not installed.
    """
    scheme, separator, _ = uri.partition("://")
    scheme = scheme.lower()
    if not separator:
        return LocalStore(_absolute(uri, uri))
    if scheme == "file":
        return LocalStore(_file_path(uri))
    # A process that keeps everything on its machine does without fsspec.
    import fsspec

    from . import fsspec_store

    backend = backends().get(scheme)
    if backend is None and scheme not in fsspec.available_protocols():
        raise UnknownStoreError(uri, scheme, ("file", *sorted(backends())), None)
    try:
        open_uri = backend.load() if backend else fsspec_store.open_uri
        return RetryingStore(open_uri(uri))
    except ModuleNotFoundError as error:
        raise UnknownStoreError(uri, scheme, ("file",), EXTRAS.get(scheme), error.name) from error
    except ImportError as error:
        # fsspec names the package that a protocol needs.
        raise UnknownStoreError(uri, scheme, ("file",), EXTRAS.get(scheme), str(error)) from error


@cache
def backends() -> dict[str, EntryPoint]:
    """Return the backends that are installed, by scheme."""
    return {found.name: found for found in entry_points(group=GROUP)}


def pipeline_uri(storage: str, pipeline: str) -> str:
    """Return the URI of a pipeline's own folder in a storage: ``<storage>/<pipeline>``.

    Raises:
        InvalidNameError: the pipeline's name cannot be a part of a path.
    """
    return join_uri(storage, validate_name("pipeline", pipeline))


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
