"""The HTTP server in the driver: pages for people, metrics for Prometheus, health for probes.

``CheckpointConfig.page`` turns it on.
"""

from __future__ import annotations

import base64
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ...storage.logs import carried, logger
from ..errors import SetupError
from ..listening import Page
from .api import PREFIX, Api
from .connections import CONNECTIONS, Connection
from .facts import Facts, ObservedPipeline
from .health import troubles
from .metrics import CONTENT_TYPE, exposition
from .page.checkpoints import CheckpointPage, checkpoint
from .page.render import headers, html
from .page.view import OverviewPage, overview, stands_by

log = logger(__name__)

_END_SECONDS: Final = 5.0
"""How long closing waits for answers under way."""
_LOOPBACK_NAMES: Final = ["localhost", "127.0.0.1", "[::1]"]


class Monitor:
    """One server of one driver. It answers from the moment it is begun, also while the driver stands by."""

    def __init__(self, pipeline: str, page: Page, bound: socket.socket) -> None:
        """Make a server on a socket that is bound.

        Args:
            pipeline: the pipeline's name.
            page: as the user has set it.
            bound: the socket.
        """
        self._pipeline = pipeline
        self._settings = page
        self._socket = bound
        self._source: ObservedPipeline | None = None
        scheme = "http" if page.certificate is None else "https"
        host = f"[{page.host}]" if ":" in page.host else page.host
        self.url = f"{scheme}://{host}:{bound.getsockname()[1]}"
        """Where it answers."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application(page),
                log_config=None,
                access_log=False,
                lifespan="off",
                http=Connection,
                limit_concurrency=CONNECTIONS,
                timeout_graceful_shutdown=int(_END_SECONDS),
                ssl_certfile=page.certificate,
                ssl_keyfile=page.key,
            )
        )
        self._thread = threading.Thread(target=carried(self._run), name="chandy-monitor", daemon=True)

    @classmethod
    def begin(cls, pipeline: str, page: Page) -> Monitor:
        """Listen, and answer from now on.

        Raises:
            SetupError: the address is taken, or cannot be listened on; or a file for TLS cannot be used.
        """
        what = f"metrics cannot be served on {page.host}:{page.port}"
        family = socket.AF_INET6 if ":" in page.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((page.host, page.port))
            # Clients that connect before the thread runs wait for it instead of being refused.
            bound.listen()
            monitor = cls(pipeline, page, bound)
            # Here and not in its thread, where nobody would hear of a wrong file.
            monitor._server.config.load()
        except OSError as error:
            bound.close()
            advice = "choose another address by CheckpointConfig.page or --port, or correct the files for TLS"
            raise SetupError(
                what, "a free port, and files for TLS that can be read", str(error), advice
            ) from error
        monitor._thread.start()
        log.info("metrics are served", url=monitor.url)
        return monitor

    def tell(self, source: ObservedPipeline) -> None:
        """Say what the pipeline is known by, now that it is taken over."""
        self._source = source

    def close(self) -> None:
        """Answer no more."""
        self._server.should_exit = True
        self._thread.join(2 * _END_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception:
            # The pipeline goes on without.
            log.exception("metrics are served no more")

    def _application(self, page: Page) -> Starlette:
        # Without a token, nothing but the address keeps others out: a page of elsewhere must not reach it by a name.
        names = ["*"] if page.is_guarded else [*_LOOPBACK_NAMES, page.host]
        api = Api(self._pipeline, page.token is not None, lambda: self._source)
        described = JSONResponse(api.described())
        return Starlette(
            routes=[
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
                Route("/metrics", self._allowed(self._metrics)),
                Route("/", self._page(self._overview)),
                Route("/checkpoints/{id:int}", self._page(self._checkpoint)),
                Route(f"{PREFIX}/openapi.json", self._allowed(lambda: described)),
                *api.routes(self._refusal),
            ],
            middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)],
        )

    def _allowed(self, answer: Callable[[], Response]) -> Callable[[Request], Response]:
        def checked(request: Request) -> Response:
            return self._refusal(request) or answer()

        return checked

    def _refusal(self, request: Request) -> Response | None:
        """Return the answer to a request without the token; None to one that has it, or needs none."""
        # Starlette reads headers as Latin-1: so these are the bytes that the client has sent.
        scheme, _, rest = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        given = b""
        # A browser sends a password by itself, also for requests that a page of elsewhere makes: it may only read.
        if scheme.lower() == b"basic" and request.method in ("GET", "HEAD"):
            given = _password(rest)
        elif scheme.lower() == b"bearer":
            given = rest
        if not self._settings.is_guarded or _is_token(given, self._settings.token):
            return None
        if _is_token(given, self._settings.read_token):
            if request.method in ("GET", "HEAD"):
                return None
            return PlainTextResponse("this token may only read\n", 403)
        return PlainTextResponse("a bearer token is needed\n", 401, {"WWW-Authenticate": "Bearer"})

    def _page(
        self,
        answer: Callable[[Request, ObservedPipeline | None], OverviewPage | CheckpointPage | None],
    ) -> Callable[[Request], Response]:
        def checked(request: Request) -> Response:
            if self._refusal(request) is not None:
                asked = {
                    "WWW-Authenticate": 'Basic realm="Chandy: the token is the password", charset="UTF-8"'
                }
                return PlainTextResponse("the token is needed, as the password of any user\n", 401, asked)
            page = answer(request, self._source)
            if page is None:
                return PlainTextResponse("this driver does not know that checkpoint, or does no more\n", 404)
            return HTMLResponse(html(page, request.scope.get("root_path", "")), headers=headers())

        return checked

    def _overview(self, request: Request, source: ObservedPipeline | None) -> OverviewPage:
        if source is None:
            return stands_by(self._pipeline)
        return overview(
            self._pipeline,
            source.facts(),
            source.statistics(),
            source.assignment(),
            source.recoveries(),
            source.history(),
            source.trends(),
            span=request.query_params.get("span", "hour"),
            may_order=self._settings.token is not None and source.orders is not None,
        )

    def _checkpoint(self, request: Request, source: ObservedPipeline | None) -> CheckpointPage | None:
        known = source.statistics().checkpoint(request.path_params["id"]) if source else None
        return None if known is None else checkpoint(self._pipeline, known)

    def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    def _readyz(self, request: Request) -> Response:
        found = list(troubles(self._known()))
        # A probe learns whether, which needs no token in a template of pods. Why is for those who have it.
        said = ["the token is needed to be told why"] if found and self._refusal(request) else found
        return PlainTextResponse("\n".join(said or ["ready"]) + "\n", 503 if found else 200)

    def _metrics(self) -> Response:
        return Response(exposition(self._pipeline, self._known()), media_type=CONTENT_TYPE)

    def _known(self) -> Facts | None:
        return None if self._source is None else self._source.facts()


def _is_token(given: bytes, token: str | None) -> bool:
    return token is not None and secrets.compare_digest(given, token.encode())


def _password(given: bytes) -> bytes:
    """Return the password that a browser sends; empty if it sends none (https://www.rfc-editor.org/rfc/rfc7617)."""
    try:
        return base64.b64decode(given, validate=True).partition(b":")[2]
    except ValueError:
        return b""
