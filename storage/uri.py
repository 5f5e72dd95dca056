"""The URIs of remote stores, ``scheme://authority/path?option=value``: taking them apart and putting them together."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import attrs

from .errors import InvalidPlaceError

_SECRETS = "put secrets into the backend's own environment variables or files"

_SECRET = re.compile(
    r"secret|token|passw|passphrase|credential|signature|private|connection_?string"
    r"|(^|[_-])(key|pw|pwd|sas)([_-]|$)|(account|access|api)key",
    re.IGNORECASE,
)
"""Names of options that hold secrets."""
_USER = re.compile(r"://[^/?#]*@")
"""A user, perhaps with a password, in a URL."""

_IDENTIFYING = {"s3": ("endpoint",), "s3a": ("endpoint",), "hdfs": (), "viewfs": ()}
"""By the scheme the options that say which store it is. All others say how it is reached."""


@attrs.frozen
class StoreUri:
    """The parts of a remote store's URI."""

    scheme: str
    authority: str
    """Bucket, name node with its port, name service, ...; empty if the backend has a default."""
    path: str
    """Without ``/`` at its ends; empty for the authority's root."""
    options: dict[str, str]
    """The query: how to reach the store. It holds no secrets, because URIs are logged and stored in other stores."""

    @staticmethod
    def parse(uri: str) -> StoreUri:
        """Take a URI apart.

        Raises:
            InvalidPlaceError: the URI has an option twice, a fragment, ``..`` in the path, or what looks like a secret.
        """
        parts = urlsplit(uri)
        shown = uri.partition("?")[0]
        check_for_secrets(uri)
        if parts.fragment:
            raise invalid_uri(shown, "a path without '#'", f"#{parts.fragment}", "write '#' as %23")
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = dict(pairs)
        if len(options) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid_uri(shown, "each option once", f"{twice!r} twice")
        path = unquote(parts.path).strip("/")
        if path and any(part in ("", ".", "..") for part in path.split("/")):
            raise invalid_uri(shown, "a path without '..', '.' and empty parts", repr(path))
        return StoreUri(parts.scheme.lower(), parts.netloc, path, options)

    def __str__(self) -> str:
        path = f"/{quote(self.path)}" if self.path else ""
        query = f"?{urlencode(sorted(self.options.items()), safe=':/')}" if self.options else ""
        return f"{self.scheme}://{self.authority}{path}{query}"

    def check_options(self, *known: str, prefixes: tuple[str, ...] = ()) -> None:
        """Check that a backend knows all options.

        Args:
            known: the names of options that it knows.
            prefixes: how the names of further options begin.

        Raises:
            InvalidPlaceError: it does not know one.
        """
        for name in self.options:
            if name not in known and not name.startswith(prefixes):
                expected = ", ".join([*known, *(f"{prefix}..." for prefix in prefixes)])
                raise invalid_uri(str(self), f"options among {expected}", f"the unknown option {name!r}")


def check_for_secrets(uri: str) -> None:
    """Refuse a URI with what looks like a secret, before anything else can name it in an error or a log.

    Raises:
        InvalidPlaceError: it has a user, a password, or an option that looks like a secret.
    """
    parts = urlsplit(uri)
    shown = uri.partition("?")[0]
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    if "@" in parts.netloc:
        shown = f"{parts.scheme}://...@...{parts.path}"
        raise invalid_uri(shown, "no user or password, because URIs are logged", "'@'", _SECRETS)
    if secrets := sorted(name for name, _ in pairs if _SECRET.search(name)):
        found = f"the option {secrets[0]!r}, which looks like one"
        raise invalid_uri(shown, "no secret, because URIs are logged", found, _SECRETS)
    if of_users := sorted(name for name, value in pairs if _USER.search(value)):
        found = f"'@' in the option {of_users[0]!r}"
        raise invalid_uri(shown, "no user or password, because URIs are logged", found, _SECRETS)


def is_same_store(one: str, other: str) -> bool:
    """Return whether two URIs name one store, though they may say differently how it is reached."""
    return one == other or identity(one) == identity(other)


def identity(uri: str) -> str:
    """Return what tells a store from others: its URI without options that only say how it is reached."""
    scheme, separator, _ = uri.partition("://")
    keeps = _IDENTIFYING.get(scheme.lower())
    if not separator or keeps is None:
        # Of other backends nobody knows what their options mean.
        return uri
    try:
        parts = StoreUri.parse(uri)
    except InvalidPlaceError:
        return uri
    options = {name: value for name, value in parts.options.items() if name in keeps}
    return str(attrs.evolve(parts, scheme=parts.scheme.removesuffix("a"), options=options))


def checked_uri(uri: str) -> str:
    """Return a text that may be a URI or a path.

    Raises:
        InvalidPlaceError: it is no text, or an empty one, which would be the root of the file system.
    """
    # Callers need not use a type checker, and a ``Path`` is a likely mistake.
    if not isinstance(uri, str) or not uri.strip():
        found = f"the {type(uri).__name__} {uri!r}"
        raise InvalidPlaceError(
            "no storage is named", "a URI or an absolute path as a text", found, "pass a str"
        )
    return uri


def join_uri(uri: str, *parts: str) -> str:
    """Return the URI (or absolute path) of what lies below another. ``parts`` go before the query.

    Raises:
        InvalidPlaceError: as for ``checked_uri``.
    """
    checked_uri(uri)
    if "://" not in uri or uri.lower().startswith("file:"):
        return "/".join([uri.rstrip("/"), *parts])
    place, mark, query = uri.partition("?")
    return "/".join([place.rstrip("/"), *parts]) + mark + query


def invalid_uri(uri: str, expected: str, found: str, advice: str = "") -> InvalidPlaceError:
    """Return the error for a text that is not a usable storage URI."""
    return InvalidPlaceError(f"{uri!r} is not a storage URI that can be used", expected, found, advice)
