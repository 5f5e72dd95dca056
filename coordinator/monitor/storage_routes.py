"""What is told of a storage by HTTP: a list of its pipelines, and the pages of each. No driver is asked."""

from __future__ import annotations

import attrs
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import Receive, Scope, Send

from ...storage.errors import ChandyError
from .guard import Guard
from .page.listing import StoragePage, storage_page
from .pipeline_routes import PipelineRoutes
from .stored_pipelines import StoredPipelines


@attrs.define
class StorageRoutes:
    """The routes to all pipelines of a storage."""

    pipelines: StoredPipelines
    _made: dict[str, Router] = attrs.field(factory=dict, init=False)

    def routes(self, guard: Guard) -> list[BaseRoute]:
        """Return the routes."""

        async def one(scope: Scope, receive: Receive, send: Send) -> None:
            name = scope["path_params"]["pipeline"]
            if (pipeline := self.pipelines.known(name)) is None:
                await PlainTextResponse("the storage has no such pipeline\n", 404)(scope, receive, send)
                return
            if name not in self._made:
                self._made[name] = Router(PipelineRoutes(name, pipeline).routes(guard))
            await self._made[name](scope, receive, send)

        return [Route("/", guard.page(self._list)), Mount("/pipelines/{pipeline}", one)]

    def _list(self, request: Request) -> StoragePage:
        uri, now = self.pipelines.uri, self.pipelines.clock()
        try:
            return storage_page(uri, self.pipelines.standings(), now)
        except (ChandyError, OSError) as error:
            return storage_page(uri, (), now, str(error))
