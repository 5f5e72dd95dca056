"""Who may ask the server of a driver for what: those who have its token, or all on its machine if it has none."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

import attrs
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from ..listening import Page
from .page.render import ShownPage, headers, html


@attrs.frozen
class Guard:
    """What stands between those who ask and the answers."""

    _page: Page
    """As the user has set it."""

    @property
    def lets_order(self) -> bool:
        """Whether requests may change something: only if nobody can send one without a token."""
        return self._page.token is not None

    def allowed(self, answer: Callable[[], Response]) -> Callable[[Request], Response]:
        """Return what answers those who may ask."""

        def checked(request: Request) -> Response:
            return self.refusal(request) or answer()

        return checked

    def refusal(self, request: Request) -> Response | None:
        """Return the answer to a request without the token; None to one that has it, or needs none."""
        # Starlette reads headers as Latin-1: so these are the bytes that the client has sent.
        scheme, _, rest = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        given = b""
        # A browser sends a password by itself, also for requests that a page of elsewhere makes: it may only read.
        if scheme.lower() == b"basic" and request.method in ("GET", "HEAD"):
            given = _password(rest)
        elif scheme.lower() == b"bearer":
            given = rest
        if not self._page.is_guarded or _is_token(given, self._page.token):
            return None
        if _is_token(given, self._page.read_token):
            if request.method in ("GET", "HEAD"):
                return None
            return PlainTextResponse("this token may only read\n", 403)
        return PlainTextResponse("a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"})

    def page(self, answer: Callable[[Request], ShownPage | None]) -> Callable[[Request], Response]:
        """Return what shows a page to those who may see it."""

        def checked(request: Request) -> Response:
            if self.refusal(request) is not None:
                asked = {
                    "WWW-Authenticate": 'Basic realm="Chandy: the token is the password", charset="UTF-8"'
                }
                return PlainTextResponse("the token is needed, as the password of any user\n", 401, asked)
            page = answer(request)
            if page is None:
                return PlainTextResponse("this driver does not know that checkpoint, or does no more\n", 404)
            return HTMLResponse(html(page, request.scope.get("root_path", "")), headers=headers())

        return checked


def _is_token(given: bytes, token: str | None) -> bool:
    return token is not None and secrets.compare_digest(given, token.encode())


def _password(given: bytes) -> bytes:
    """Return the password that a browser sends; empty if it sends none (https://www.rfc-editor.org/rfc/rfc7617)."""
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except ValueError:
        return b""
