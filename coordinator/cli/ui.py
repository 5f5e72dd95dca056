"""`chandy ui`: the pages of a pipeline over its storage alone, when no driver runs."""

from __future__ import annotations

import signal
import time

import click

from ...storage.checkpoints import locate
from ...storage.checkpoints.catalog import Catalog
from ...storage.signals import EndSignal
from .group import main, pipeline_option, storage_uri
from .printing import failure, say


@main.command()
@storage_uri
@pipeline_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=9464,
    metavar="PORT",
    show_default=True,
    help="Where to answer on this machine; 0: any free one.",
)
def ui(uri: str, pipeline: str | None, port: int) -> None:
    """Serve the pages of a storage's pipelines, for a browser on this machine. No driver is asked.

    Of several pipelines there is a list first: who leads each, and how far it has come. The page of one shows the
    checkpoints that are kept, and what the journal has of failures and recoveries. The page of a driver that runs says
    more: CheckpointConfig(page=Page(...)). End with Ctrl-C or SIGTERM.
    """
    found = locate.pipelines(uri, pipeline)
    try:
        # Here and not above: the other commands need none of its packages.
        from ..listening import Page
        from ..monitor.pipeline_routes import PipelineRoutes
        from ..monitor.server import Monitor
        from ..monitor.storage_routes import StorageRoutes
        from ..monitor.stored import StoredPipeline
        from ..monitor.stored_pipelines import StoredPipelines
    except ImportError as error:
        raise failure(f"{error}: pip install 'chandy[monitor]'") from error
    routes: PipelineRoutes | StorageRoutes
    if len(found) == 1:
        ((name, store),) = found.items()
        routes = PipelineRoutes(name, StoredPipeline(Catalog(store), time.time))
        what = f"{name} is"
    else:
        routes = StorageRoutes(StoredPipelines(uri, time.time))
        what = f"{len(found)} pipelines are"
    monitor = Monitor.begin(routes, Page(f"127.0.0.1:{port}"))
    with EndSignal(signal.SIGTERM, signal.SIGINT, once=True) as ended:
        try:
            say(f"{what} shown at {monitor.url}")
            ended.wait()
        finally:
            monitor.close()
