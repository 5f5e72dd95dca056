"""Storage URIs of remote stores: ``scheme://authority/path?option=value``."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import attrs

from .errors import InvalidUriError

_SECRET = re.compile(r"secret|token|password|passwd|sas|credential|^key$|private|signature", re.IGNORECASE)


@attrs.frozen
class StoreUri:
    """The parts of a remote store's URI."""

    scheme: str
    authority: str
    """Bucket, name node with its port, name service, ...; empty where the backend has a default."""
    path: str
    """Without ``/`` at its ends; empty for the authority's root."""
    options: dict[str, str]
    """The query: how to reach the store. Never secrets, for URIs are logged and written into other stores."""

    @staticmethod
    def parse(uri: str) -> StoreUri:
        """Take a URI apart.

        Raises:
            InvalidUriError: an option twice, an option that looks like a secret, a fragment, ``..`` in the path.
        """
        parts = urlsplit(uri)
        shown = uri.partition("?")[0]
        if parts.fragment:
            raise InvalidUriError(shown, "'#' in a path must be written %23")
        if "@" in parts.netloc:
            raise InvalidUriError(
                uri.replace(parts.netloc, "...@..."), "no user or password in a URI: it is logged"
            )
        pairs = parse_qsl(parts.query, keep_blank_values=True)
        options = dict(pairs)
        if len(options) != len(pairs):
            raise InvalidUriError(shown, "an option is given twice")
        if secrets := sorted(filter(_SECRET.search, options)):
            raise InvalidUriError(
                shown,
                f"the option {secrets[0]!r} looks like a secret, and URIs are logged: give it in the backend's own "
                "environment variables or files",
            )
        path = unquote(parts.path).strip("/")
        if any(part in ("", ".", "..") for part in path.split("/")) and path:
            raise InvalidUriError(shown, "a path with '..', '.' or empty parts")
        return StoreUri(parts.scheme.lower(), parts.netloc, path, options)

    def __str__(self) -> str:
        path = f"/{quote(self.path)}" if self.path else ""
        query = f"?{urlencode(sorted(self.options.items()), safe=':/')}" if self.options else ""
        return f"{self.scheme}://{self.authority}{path}{query}"

    def only(self, *known: str, prefixes: tuple[str, ...] = ()) -> dict[str, str]:
        """Return the options if a backend knows them all.

        Raises:
            InvalidUriError: it does not know one.
        """
        for name in self.options:
            if name not in known and not name.startswith(prefixes or ("\0",)):
                expected = ", ".join([*known, *(f"{prefix}..." for prefix in prefixes)])
                raise InvalidUriError(str(self), f"unknown option {name!r}, expected one of {expected}")
        return self.options


def join_uri(uri: str, *parts: str) -> str:
    """Return the URI (or absolute path) of something below another: ``parts`` go before the query."""
    if "://" not in uri or uri.lower().startswith("file:"):
        return "/".join([uri.rstrip("/"), *parts])
    place, mark, query = uri.partition("?")
    return "/".join([place.rstrip("/"), *parts]) + mark + query
