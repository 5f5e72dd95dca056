"""A server of a pipeline's page and API, and requests to it."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from chandy.coordinator.listening import Page
from chandy.coordinator.monitor.pipeline_routes import PipelineRoutes
from chandy.coordinator.monitor.server import Monitor

from ...waiting import DEADLINE

Answer = tuple[int, str]


@pytest.fixture
def begin() -> Iterator[Callable[..., Monitor]]:
    made: list[Monitor] = []

    def new(pipeline: str = "p", **settings: str) -> Monitor:
        made.append(Monitor.begin(PipelineRoutes(pipeline), Page("127.0.0.1:0", **settings)))
        return made[-1]

    yield new
    for monitor in made:
        monitor.close()


def ask(
    monitor: Monitor, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> Answer:
    address = urlsplit(monitor.url).netloc
    connection = http.client.HTTPConnection(address, timeout=DEADLINE)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
