"""What is told of one pipeline by HTTP: pages for people, metrics for Prometheus, health for probes, the API."""

from __future__ import annotations

import attrs
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from .api import PREFIX, Api
from .facts import Facts, ObservedPipeline
from .guard import Guard
from .health import troubles
from .metrics import CONTENT_TYPE, exposition
from .page.checkpoints import CheckpointPage, checkpoint
from .page.view import OverviewPage, overview, stands_by


@attrs.define
class PipelineRoutes:
    """The routes to one pipeline, which answer also while its driver stands by."""

    pipeline: str
    _source: ObservedPipeline | None = None
    """What the pipeline is known by; None while the driver does not lead it."""

    def tell(self, source: ObservedPipeline) -> None:
        """Say what the pipeline is known by, now that it is taken over."""
        self._source = source

    def routes(self, guard: Guard) -> list[BaseRoute]:
        """Return the routes."""
        api = Api(self.pipeline, guard.lets_order, lambda: self._source)
        described = JSONResponse(api.described())

        def ready(request: Request) -> Response:
            found = list(troubles(self._known()))
            # A probe learns whether, which needs no token in a template of pods. Why is for those who have it.
            said = ["the token is needed to be told why"] if found and guard.refusal(request) else found
            return PlainTextResponse("\n".join(said or ["ready"]) + "\n", 503 if found else 200)

        def page(request: Request) -> OverviewPage:
            return self._overview(request.query_params.get("span", "hour"), may_order=guard.lets_order)

        return [
            Route("/readyz", ready),
            Route("/metrics", guard.allowed(self._metrics)),
            Route("/", guard.page(page)),
            Route("/checkpoints/{id:int}", guard.page(self._checkpoint)),
            Route(f"{PREFIX}/openapi.json", guard.allowed(lambda: described)),
            *api.routes(guard.refusal),
        ]

    def _overview(self, span: str, *, may_order: bool) -> OverviewPage:
        if (source := self._source) is None:
            return stands_by(self.pipeline)
        return overview(
            self.pipeline,
            source.facts(),
            source.statistics(),
            source.assignment(),
            source.recoveries(),
            source.history(),
            source.trends(),
            span=span,
            may_order=may_order and source.orders is not None,
        )

    def _checkpoint(self, request: Request) -> CheckpointPage | None:
        source = self._source
        known = source.statistics().checkpoint(request.path_params["id"]) if source else None
        return None if known is None else checkpoint(self.pipeline, known)

    def _metrics(self) -> Response:
        return Response(exposition(self.pipeline, self._known()), media_type=CONTENT_TYPE)

    def _known(self) -> Facts | None:
        return None if self._source is None else self._source.facts()
