"""Opening the store at a URI.

A backend is a module with ``open_uri(uri: str) -> Store``, and an entry point of the group ``chandy.stores`` that names
this function by the URI's scheme. Its store makes one attempt per call; the retries are added here.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..errors import InvalidPlaceError
from ..keys import validate_name
from ..store import Store
from ..uri import check_for_secrets, checked_uri, invalid_uri, join_uri
from .local import LocalStore
from .retrying import RetryingStore

GROUP = "chandy.stores"
"""The group of entry points that name backends by their scheme."""

EXTRAS = {"hdfs": "hdfs", "viewfs": "hdfs"}
"""The extras of this distribution that install what a backend needs, by scheme."""


def open_store(uri: str) -> Store:
    """Return the store at a URI: ``file:///path``, an absolute path, a backend's scheme, or a protocol of fsspec.

    Nothing is created, and no connection is made before the first operation if the backend can help it. The store
    retries what fails for a moment (``RetryingStore``).

    Raises:
        InvalidPlaceError: the URI names no place, or there is no backend for its scheme, or it is not installed.
    """
    scheme, separator, _ = checked_uri(uri).partition("://")
    scheme = scheme.lower()
    if not separator:
        return LocalStore(_absolute(uri, uri))
    check_for_secrets(uri)
    if scheme == "file":
        return LocalStore(_file_path(uri))
    # A process that keeps everything on its machine does not load fsspec.
    import fsspec

    from . import fsspec_store

    backend = backends().get(scheme)
    if backend is None and scheme not in fsspec.available_protocols():
        supported = ", ".join(f"{one}://" for one in ("file", *sorted(backends())))
        raise InvalidPlaceError(
            f"there is no store for {uri!r}", f"{supported} or a protocol of fsspec", f"{scheme}://"
        )
    try:
        open_uri = backend.load() if backend else fsspec_store.open_uri
        return RetryingStore(open_uri(uri))
    except ImportError as error:
        advice = (
            f'run `pip install "chandy[{EXTRAS[scheme]}]"`'
            if scheme in EXTRAS
            else f"install it to use {scheme}://"
        )
        # fsspec has its own text that names the package.
        needed = repr(error.name) if error.name else f"what fsspec needs for {scheme}://"
        raise InvalidPlaceError(
            f"the store for {uri!r} cannot be used", f"{needed} to be installed", str(error), advice
        ) from error


@cache
def backends() -> dict[str, EntryPoint]:
    """Return the installed backends by scheme."""
    return {found.name: found for found in entry_points(group=GROUP)}


def pipeline_uri(storage: str, pipeline: str) -> str:
    """Return the URI of a pipeline's own folder in a storage: ``<storage>/<pipeline>``.

    Raises:
        InvalidNameError: the pipeline's name cannot be a part of a path.
        InvalidPlaceError: the storage is no text, or an empty one.
    """
    return join_uri(storage, validate_name("pipeline", pipeline))


def _file_path(uri: str) -> Path:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost"):
        raise invalid_uri(uri, "file:///...", f"the host {parts.netloc!r}")
    if parts.query or parts.fragment:
        raise invalid_uri(uri, "a path without '?' and '#'", "one of them", "write them as %3F and %23")
    return _absolute(uri, unquote(parts.path))


def _absolute(uri: str, path: str) -> Path:
    if not path.startswith("/") or "\0" in path:
        raise invalid_uri(
            uri,
            "a scheme or an absolute path",
            repr(path),
            "write for example file:///var/lib/chandy, /var/lib/chandy or s3://bucket/prefix",
        )
    if ".." in path.split("/"):
        raise invalid_uri(uri, "a path without '..', because it may lead through links", repr(path))
    return Path(path)
