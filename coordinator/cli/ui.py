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
    """Serve the page of a pipeline from its storage, for a browser on this machine. No driver is asked.

    It shows the checkpoints that are kept, and what the journal has of failures and recoveries. The page of a driver
    that runs says more: CheckpointConfig(page=Page(...)). End with Ctrl-C or SIGTERM.
    """
    name, store = locate.only_pipeline(uri, pipeline)
    try:
        # Here and not above: the other commands need none of its packages.
        from ..listening import Page
        from ..monitor.server import Monitor
        from ..monitor.stored import StoredPipeline
    except ImportError as error:
        raise failure(f"{error}: pip install 'chandy[monitor]'") from error
    monitor = Monitor.begin(name, Page(f"127.0.0.1:{port}"))
    with EndSignal(signal.SIGTERM, signal.SIGINT, once=True) as ended:
        try:
            monitor.tell(StoredPipeline(Catalog(store), time.time))
            say(f"{name} is shown at {monitor.url}")
            ended.wait()
        finally:
            monitor.close()
