"""The HTTP server in the driver: a thread that answers, and the socket on which it is asked.

``CheckpointConfig.page`` turns it on.
"""

from __future__ import annotations

import socket
import threading
from typing import Final, Generic, Protocol, Self, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ...storage.logs import carried, logger
from ..errors import SetupError
from ..listening import Page
from .connections import CONNECTIONS, Connection
from .guard import Guard

log = logger(__name__)

_END_SECONDS: Final = 5.0
"""How long closing waits for answers under way."""
_LOOPBACK_NAMES: Final = ["localhost", "127.0.0.1", "[::1]"]


class Routes(Protocol):
    """What a server answers."""

    def routes(self, guard: Guard) -> list[BaseRoute]:
        """Return the routes, all but the probe whether the process answers."""
        ...


R = TypeVar("R", bound=Routes)


class Monitor(Generic[R]):
    """One server of one driver. It answers from the moment it is begun, also while the driver stands by."""

    def __init__(self, routes: R, page: Page, bound: socket.socket) -> None:
        """Make a server on a socket that is bound.

        Args:
            routes: what it answers.
            page: as the user has set it.
            bound: the socket.
        """
        self.routes = routes
        self._socket = bound
        scheme = "http" if page.certificate is None else "https"
        host = f"[{page.host}]" if ":" in page.host else page.host
        self.url = f"{scheme}://{host}:{bound.getsockname()[1]}"
        """Where it answers."""
        self._server = uvicorn.Server(
            uvicorn.Config(
                self._application(page, routes),
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
    def begin(cls, routes: R, page: Page) -> Self:
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
            monitor = cls(routes, page, bound)
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

    def _application(self, page: Page, routes: Routes) -> Starlette:
        # Without a token, nothing but the address keeps others out: a page of elsewhere must not reach it by a name.
        names = ["*"] if page.is_guarded else [*_LOOPBACK_NAMES, page.host]
        return Starlette(
            routes=[Route("/healthz", self._healthz), *routes.routes(Guard(page))],
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False),
                # A page of many checkpoints is a tenth of its size then, every few seconds. No answer has a secret that
                # its size could tell.
                Middleware(GZipMiddleware, minimum_size=4096, compresslevel=5),
            ],
        )

    def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")
