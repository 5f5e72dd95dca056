"""`chandy switch`: a shadow takes its pipeline over."""

from __future__ import annotations

import click

from ...storage.checkpoints import locate
from ..durations import seconds
from ..switch_orders import KEEP_OLD, await_switch, order_switch
from .group import main, pipeline_option, storage_uri
from .printing import say


@main.command()
@storage_uri
@pipeline_option
@click.option("--name", metavar="NAME", help="The shadow, if the pipeline has several.")
@click.option("--although-different", is_flag=True, help="Switch although something differs.")
@click.option(
    "--keep-old",
    default=KEEP_OLD,
    metavar="TIME",
    show_default=True,
    help="How long the driver before follows as a shadow; 0 s: not at all.",
)
@click.option(
    "--timeout", default="3 min", metavar="TIME", show_default=True, help="How long to wait for it."
)
def switch(
    uri: str, pipeline: str | None, name: str | None, although_different: bool, keep_old: str, timeout: str
) -> None:
    """Have a shadow take its pipeline over from the driver that leads it.

    The driver's batches end, a last checkpoint has them, and the shadow goes on with the next ones once it has compared
    these, too. It is refused while something differs. If the shadow does not come, the driver goes on.

    Afterwards the driver before follows as a shadow, which `chandy shadow` names: the way back is a switch, too.
    """
    store = locate.pipeline(uri, pipeline)
    shadow, nonce = order_switch(store, name, although_different=although_different, keep_old=keep_old)
    await_switch(store, shadow, nonce, seconds(timeout))
    say(f"shadow {shadow} leads the pipeline in {store.uri}")
