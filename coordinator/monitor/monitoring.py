"""The observer that comes with Chandy: calls users' functions, keeps journal and trends, serves the page."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ...state.local.machine import machine_name
from ...storage.store import Store
from ..execution.polls import Polls
from ..extras import needs_extra
from ..listening import Page
from ..observer import Orders, Running
from ..recovery.announcements import Tell, both, tell_nobody
from ..recovery.pipeline_events import PipelineEvent
from .activity import Activity
from .announcer import Announcer
from .facts import Home, Observed
from .journaling import JournalWriter
from .shadow_look import ShadowLook
from .trend_keeper import TrendKeeper

if TYPE_CHECKING:
    from .pipeline_routes import PipelineRoutes
    from .server import Monitor
    from .traces import Traces


class Monitoring:
    """Watches one pipeline for its users."""

    def __init__(self, tell: Tell, server: Monitor[PipelineRoutes] | None, closing: ExitStack) -> None:
        """Watch.

        Args:
            tell: tells users of events.
            server: answers those who ask; None if nobody does.
            closing: ends it.
        """
        self._tell = tell
        self._server = server
        self._closing = closing

    @classmethod
    def begin(
        cls,
        pipeline: str,
        closing: ExitStack,
        *,
        page: Page | None,
        on_event: Callable[[PipelineEvent], object] | None,
        traces: bool,
    ) -> Monitoring:
        """Listen and answer from now on, also while the driver stands by.

        Args:
            pipeline: its name.
            closing: ends it.
            page, on_event, traces: as in ``CheckpointConfig``.

        Raises:
            SetupError: the address cannot be listened on, or a package is missing.
        """
        tell: Tell = tell_nobody
        if on_event is not None:
            tell = _announced(on_event, "on_event", closing)
        if traces:
            tell = both(tell, _announced(_traces(pipeline).take, "traces", closing))
        server = None if page is None else _serve(pipeline, page)
        if server is not None:
            closing.callback(server.close)
        return cls(tell, server, closing)

    @property
    def url(self) -> str | None:
        """Where it answers; None: nowhere."""
        return None if self._server is None else self._server.url

    def tell(self, event: PipelineEvent) -> None:
        """Tell users and the journal of an event."""
        self._tell(event)

    def lead(self, store: Store, generation: int, clock: Callable[[], float]) -> None:
        """Keep the journal and the trends of the pipeline from now on."""
        self._journal = JournalWriter.of(store, generation)
        self._trends = TrendKeeper(store, generation, clock)
        self._clock = clock
        keeping = _announced(both(self._journal.take, self._trends.take), "the journal", self._closing)
        self._tell = both(self._tell, keeping)

    def follow(self, running: Running) -> Callable[[], object]:
        """Measure what the pipeline does, if somebody may ask, and return what ends that."""
        self._running = running
        self._began = self._clock()
        self._activity = Activity(
            lambda: running.supervisor.queries, running.metrics_by_host, self._trends.add
        )
        self._shadows = ShadowLook(running.followed or running.store)
        if self._server is None:
            return lambda: None
        return Polls.begin(self._activity.looks() | self._shadows.looks()).close

    def pass_orders_to(self, orders: Orders) -> None:
        """Answer for the pipeline from now on."""
        if self._server is None:
            return
        running = self._running
        home = Home(
            storage=running.store.uri,
            machine=machine_name(),
            pid=os.getpid(),
            application=running.application,
            spark_ui=running.spark_ui,
        )
        self._server.routes.tell(
            Observed(
                orders,
                running,
                self._journal,
                self._trends,
                home,
                self._clock,
                self._began,
                self._activity,
                self._shadows,
            )
        )


def _announced(listener: Tell, name: str, closing: ExitStack) -> Tell:
    announcer = Announcer(listener, name)
    closing.callback(announcer.close)
    return announcer.tell


def _traces(pipeline: str) -> Traces:
    # A pipeline without it needs none of its packages.
    with needs_extra("traces", what="there can be no traces", needed="the packages of OpenTelemetry"):
        from .traces import Traces
    return Traces(pipeline)


def _serve(pipeline: str, page: Page) -> Monitor[PipelineRoutes]:
    # A pipeline without it needs none of its packages.
    with needs_extra("monitor", what="metrics cannot be served", needed="the packages of a web server"):
        from .pipeline_routes import PipelineRoutes
        from .server import Monitor
    return Monitor.begin(PipelineRoutes(pipeline), page)
